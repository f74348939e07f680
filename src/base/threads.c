#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Looks at the job word before sleeping, at 20 to 100 ns each: longer than the serial parts of a
 * step, shorter than anyone notices. */
#define SPINS 20000
#define SPINS_BEFORE_YIELD 2000 /* of the caller, for a worker that still has a unit */

/* The job word: the job's number in the upper half, the next unit to take in the lower one. Taking
 * a unit is a compare-and-swap of the whole word. Before the fields of a new job are written, the
 * word gets a number of its own and CLOSED for a unit, so a late worker can neither take a unit of
 * the old job nor one of the new before all is there. */
#define JOB_SHIFT 32
#define CLOSED 0xFFFFFFFFu /* also the mask of the lower half */

/* Of each worker: the system's default is the shell's limit or 0.1 to 8 MB. Units need some 0.05
 * MB, sanitized ones more. */
#define STACK_SIZE ((size_t)1 << 20)

struct worker {
    struct threads *threads;
    pthread_t thread;
    int index; /* from 1 on: 0 is the caller */
};

struct threads {
    _Alignas(64) _Atomic uint64_t job;
    _Alignas(64) atomic_int done; /* units of the current job */
    _Alignas(64) atomic_int sleepers;
    _Atomic(void *) context; /* of the current job; written before its number */
    _Atomic(thread_work *) work;
    atomic_int n_units;
    atomic_bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int n, n_started;
    struct worker *workers; /* [n - 1] */
};

void thread_set_name(const char *name)
{
#ifdef __APPLE__
    pthread_setname_np(name);
#else
    pthread_setname_np(pthread_self(), name);
#endif
}

static void pause_briefly(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb");
#endif
}

/* Takes and does units of job `number` until none is left. */
static void take_units(struct threads *threads, uint64_t number, int thread)
{
    uint64_t word = atomic_load(&threads->job);
    while (word >> JOB_SHIFT == number) {
        int64_t unit = (int64_t)(word & CLOSED);
        if (unit >= atomic_load_explicit(&threads->n_units, memory_order_relaxed))
            return;
        if (!atomic_compare_exchange_weak(&threads->job, &word, word + 1))
            continue;
        /* the job cannot end before this unit, so its fields are this job's */
        thread_work *work = atomic_load_explicit(&threads->work, memory_order_relaxed);
        work(atomic_load_explicit(&threads->context, memory_order_relaxed), (int)unit, thread);
        atomic_fetch_add(&threads->done, 1);
        word = atomic_load(&threads->job);
    }
}

/* Waits for a job with another number than the last one seen. */
static uint64_t next_job(struct threads *threads, uint64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        uint64_t number = atomic_load(&threads->job) >> JOB_SHIFT;
        if (number != seen || atomic_load(&threads->stop))
            return number;
        pause_briefly();
    }
    pthread_mutex_lock(&threads->mutex);
    atomic_fetch_add(&threads->sleepers, 1);
    uint64_t number;
    while ((number = atomic_load(&threads->job) >> JOB_SHIFT) == seen &&
           !atomic_load(&threads->stop))
        pthread_cond_wait(&threads->wake, &threads->mutex);
    atomic_fetch_sub(&threads->sleepers, 1);
    pthread_mutex_unlock(&threads->mutex);
    return number;
}

static void *worker_run(void *argument)
{
    struct worker *worker = argument;
    struct threads *threads = worker->threads;
    uint64_t seen = 0;
    thread_set_name("calla-worker");
    while (!atomic_load(&threads->stop)) {
        seen = next_job(threads, seen);
        take_units(threads, seen, worker->index);
    }
    return NULL;
}

static void wake_sleepers(struct threads *threads)
{
    if (atomic_load(&threads->sleepers) == 0)
        return;
    pthread_mutex_lock(&threads->mutex);
    pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->mutex);
}

/* False when the system gives no more threads. */
static bool start_worker(struct threads *threads)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    struct worker *worker = &threads->workers[threads->n_started];
    *worker = (struct worker){.threads = threads, .index = threads->n_started + 1};
    int problem = pthread_create(&worker->thread, &attributes, worker_run, worker);
    pthread_attr_destroy(&attributes);
    threads->n_started += problem == 0;
    return problem == 0;
}

enum status threads_new(int n, struct threads **out, struct error *error)
{
    *out = NULL;
    if (n < 1 || n > THREADS_MAX)
        return error_set(error, STATUS_INVALID, "threads: found %d, wanted 1 to %d", n,
                         THREADS_MAX);
    struct threads *threads = aligned_alloc(_Alignof(struct threads), sizeof *threads);
    if (!threads)
        return error_no_memory(error, "the threads");
    *threads = (struct threads){.n = n};
    pthread_mutex_init(&threads->mutex, NULL);
    pthread_cond_init(&threads->wake, NULL);
    threads->workers = calloc((size_t)n, sizeof *threads->workers);
    if (!threads->workers) {
        threads_free(threads);
        return error_no_memory(error, "the threads");
    }
    while (threads->n_started < n - 1)
        if (!start_worker(threads)) {
            int started = threads->n_started + 1;
            threads_free(threads);
            return error_set(error, STATUS_NO_MEMORY,
                             "threads: the system gave %d, wanted %d; choose fewer", started, n);
        }
    *out = threads;
    return STATUS_OK;
}

void threads_free(struct threads *threads)
{
    if (!threads)
        return;
    atomic_store(&threads->stop, true);
    pthread_mutex_lock(&threads->mutex);
    pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->mutex);
    for (int i = 0; i < threads->n_started; i++)
        pthread_join(threads->workers[i].thread, NULL);
    pthread_cond_destroy(&threads->wake);
    pthread_mutex_destroy(&threads->mutex);
    free(threads->workers);
    free(threads);
}

int threads_count(const struct threads *threads)
{
    return threads->n;
}

void threads_run(struct threads *threads, thread_work *work, void *context, int n_units)
{
    if (n_units < 1)
        return;
    if (threads->n == 1 || n_units == 1) {
        for (int unit = 0; unit < n_units; unit++)
            work(context, unit, 0);
        return;
    }
    uint64_t word = atomic_load(&threads->job);
    atomic_store(&threads->job, ((word >> JOB_SHIFT) + 1) << JOB_SHIFT | CLOSED);
    atomic_store_explicit(&threads->work, work, memory_order_relaxed);
    atomic_store_explicit(&threads->context, context, memory_order_relaxed);
    atomic_store_explicit(&threads->done, 0, memory_order_relaxed);
    atomic_store(&threads->n_units, n_units); /* not before the closed word is seen */
    uint64_t open = ((word >> JOB_SHIFT) + 2) << JOB_SHIFT;
    atomic_store(&threads->job, open);
    wake_sleepers(threads);
    take_units(threads, open >> JOB_SHIFT, 0);
    for (int i = 0; atomic_load(&threads->done) < n_units; i++)
        if (i < SPINS_BEFORE_YIELD)
            pause_briefly();
        else
            sched_yield();
}
