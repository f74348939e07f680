/* A fixed group of threads that share the units of one job after the other. The caller's thread
 * works too, so a group of n has n - 1 workers; they watch for the next job for a moment and then
 * sleep, so that jobs which follow each other closely cost no system call and idling costs nothing.
 * A worker that is late or not running holds up no job: whoever is there takes its units. */
#pragma once

#include "base/error.h"

struct threads;

/* Names the calling thread for those who look at the process (15 bytes at most). */
void thread_set_name(const char *name);

/* n from 1 to THREADS_MAX. */
#define THREADS_MAX 1024
enum status threads_new(int n, struct threads **out, struct error *error);
void threads_free(struct threads *threads); /* NULL is allowed */
int threads_count(const struct threads *threads);

/* Calls work(context, unit, thread) once for each unit of 0..n_units-1, in any order and on any
 * thread, and returns when all are done. `thread` is 0..n-1, the caller's is 0: no two units run
 * with the same one at a time. Units must need little stack: the caller's may be small. One job at
 * a time, from one thread. */
typedef void thread_work(void *context, int unit, int thread);
void threads_run(struct threads *threads, thread_work *work, void *context, int n_units);
