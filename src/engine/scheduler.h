/* Many generations on one engine: its own thread drives the backend and all sequences, others
 * submit jobs and wait for their tokens.
 *
 * Jobs wait in one queue, first come, first served. As many as there are sequences run at once;
 * each turn of the loop reads a part of one prompt, the running ones taking turns, and does one
 * decode step for all that decode. So a short prompt never waits for a long one to be read. A part
 * takes `chunk_seconds` at most, as far as the shortest allows it: it is a chunk of so many tokens,
 * or, where the backend can pause one, a slice of a chunk of many more, which costs less a token;
 * beside that only short prompts are read, long ones after it in turn.
 *
 * When KV rows run out, first entries of the prefix cache go, then the job that came last gives its
 * place back and reads everything again later. A step that fails is repeated for each row alone,
 * after its tokens were read again if the device left the sequence broken: only those that fail
 * again end. */
#pragma once

#include "engine/generation.h"

struct scheduler;
struct job;

struct scheduler_options {
    int parallel;            /* sequences, as many as the engine was planned for; <= its max_rows */
    int queue;               /* jobs that may wait */
    int mailbox;             /* tokens a job may be ahead of its reader; more cancel it */
    double chunk_seconds;    /* that one prompt holds up the others at a time */
    struct disk_cache *disk; /* the prefix cache's; NULL: none */
};

/* Counted since the start. */
struct scheduler_figures {
    int queued, running;         /* jobs, now */
    int most_rows;               /* of one decode step */
    int64_t steps, rows;         /* decode steps, and tokens read by them */
    int64_t read, cached, drawn; /* tokens of prompts read, found in the cache; generated */
    int64_t suspended;           /* times that a job lost its place */
    int64_t failed_steps;        /* that the device failed */
    double read_seconds, decode_seconds;
    struct prefix_cache_figures cache;
    struct disk_cache_figures disk; /* zeros without one */
};

/* The engine must be open; it, and the cache, are the scheduler's until it is freed. */
enum status scheduler_new(struct engine *engine, struct prefix_cache *cache,
                          const struct scheduler_options *options, struct scheduler **out,
                          struct error *error);
/* Takes no new jobs (STATUS_CANCELLED) and lets the others end, for `grace` seconds at most; then
 * they are cancelled. Returns when none is left. */
void scheduler_stop(struct scheduler *scheduler, double grace);
/* After scheduler_stop; jobs that are still held stay valid. */
void scheduler_free(struct scheduler *scheduler);
/* The disk cache has work: any thread. */
void scheduler_wake(struct scheduler *scheduler);
void scheduler_read_figures(struct scheduler *scheduler, struct scheduler_figures *out);

/* ---- jobs: any thread ------------------------------------------------------------------------ */

enum job_phase { JOB_QUEUED, JOB_READING, JOB_DECODING, JOB_ENDED };

struct job_news {
    enum job_phase phase;
    struct generation_figures figures;
    enum generation_end end; /* with JOB_ENDED and no token left to take */
    bool overflowed;         /* cancelled because its reader was too slow */
    struct error error;      /* with GENERATION_FAILED */
};

/* Puts n generations into the queue, all or none; options[i].emit is not looked at. Those of one
 * call begin with the same prompt or not: the first one reads first, so that the others find what
 * it left. STATUS_BUSY: the queue is full. */
enum status scheduler_submit(struct scheduler *scheduler, const struct generation_options *options,
                             int n, struct job **jobs, struct error *error);
/* Waits, `seconds` at most, for tokens, another phase than `news` tells, or the end; takes at most
 * n tokens, gives their number and fills `news` (zeroed before the first call). */
int job_wait(struct job *job, double seconds, struct generated *out, int n, struct job_news *news);
/* The engine lets go of it within one step. */
void job_cancel(struct job *job);
/* Cancels what has not ended. What its options borrow is needed until JOB_ENDED was seen, or as
 * long as the options' owner is held. */
void job_free(struct job *job);
