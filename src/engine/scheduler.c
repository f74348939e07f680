#include "engine/scheduler.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/threads.h"
#include "engine/chunk.h"
#include "engine/job.h"

struct scheduler {
    struct engine *engine;
    struct prefix_cache *cache;
    struct scheduler_options options;
    struct sequence **idle; /* [n_idle] sequences without a job */
    int n_idle;
    struct job **running;  /* [n_running], in the order of admission */
    int n_running, turn;   /* turn: whose chunk was read last */
    bool full;             /* KV rows ran out: nobody is admitted before a job has ended */
    struct job **decoding; /* [parallel] those of the step, scratch */
    struct row *rows;
    struct ranked *ranked;
    struct chunk_size whole, sliced; /* of chunks that run to their end, and of those that pause */
    double paused_seconds, longest_slice; /* what the paused chunk took so far */

    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    struct job *first, *last; /* the queue */
    bool stopping, cancelling;
    struct scheduler_figures figures;
};

/* ---- the queue ------------------------------------------------------------------------------- */

static void push_back(struct scheduler *s, struct job *job)
{
    job->next = NULL;
    *(s->last ? &s->last->next : &s->first) = job;
    s->last = job;
    s->figures.queued++;
}

static void push_front(struct scheduler *s, struct job *job)
{
    job->next = s->first;
    s->first = job;
    s->last = s->last ? s->last : job;
    s->figures.queued++;
}

/* The next job that may run, or has been cancelled; NULL: none. */
static struct job *pop(struct scheduler *s, bool room, bool *cancelled)
{
    struct job *before = NULL;
    for (struct job *job = s->first; job; before = job, job = job->next) {
        *cancelled = atomic_load(&job->cancel);
        if (!*cancelled && (!room || job_must_wait(job)))
            continue;
        *(before ? &before->next : &s->first) = job->next;
        s->last = s->last == job ? before : s->last;
        s->figures.queued--;
        s->figures.running += !*cancelled;
        return job;
    }
    return NULL;
}

/* ---- the engine's thread --------------------------------------------------------------------- */

/* Takes a running job off its place; its KV rows are free for others at once. */
static void take_out(struct scheduler *s, int i, struct sequence *sequence)
{
    struct backend *backend = s->engine->backend;
    backend->ops->sequence_reset(backend, sequence);
    s->idle[s->n_idle++] = sequence;
    s->turn -= i <= s->turn; /* nobody's turn is skipped */
    for (s->n_running--; i < s->n_running; i++)
        s->running[i] = s->running[i + 1];
    pthread_mutex_lock(&s->mutex);
    s->figures.running--; /* before anybody hears that the job has ended */
    pthread_mutex_unlock(&s->mutex);
}

static void end_job(struct scheduler *s, int i)
{
    struct job *job = s->running[i];
    take_out(s, i, generation_finish(job->generation));
    s->full = false;
    job_end(job);
    job_unref(job);
}

/* The job that came last gives its place back until another one has ended. False: it is the only
 * one. */
static bool suspend_last(struct scheduler *s)
{
    if (s->n_running < 2)
        return false;
    int i = s->n_running - 1;
    struct job *job = s->running[i];
    take_out(s, i, generation_suspend(job->generation));
    job_tell(job);
    s->full = true;
    pthread_mutex_lock(&s->mutex);
    s->figures.suspended++;
    push_front(s, job);
    pthread_mutex_unlock(&s->mutex);
    return true;
}

static void admit(struct scheduler *s)
{
    for (;;) {
        bool cancelled;
        pthread_mutex_lock(&s->mutex);
        struct job *job = pop(s, s->n_idle > 0 && !(s->full && s->n_running > 0), &cancelled);
        pthread_mutex_unlock(&s->mutex);
        if (!job)
            return;
        if (cancelled) {
            generation_stop(job->generation, NULL);
            job_end(job);
            job_unref(job);
            continue;
        }
        generation_start(job->generation, s->cache, s->idle[--s->n_idle]);
        s->running[s->n_running++] = job;
        const struct generation_figures *figures = generation_figures(job->generation);
        pthread_mutex_lock(&s->mutex);
        s->figures.cached += figures->suspended == 0 ? figures->cached : 0;
        pthread_mutex_unlock(&s->mutex);
        job_tell(job);
    }
}

/* Ends those that are cancelled or done. */
static void sweep(struct scheduler *s)
{
    for (int i = s->n_running - 1; i >= 0; i--) {
        struct generation *generation = s->running[i]->generation;
        if (atomic_load(&s->running[i]->cancel))
            generation_stop(generation, NULL);
        if (generation_phase(generation) == GENERATION_ENDED)
            end_job(s, i);
    }
}

/* Whether a call found too few KV rows although all others were asked to leave: then the job
 * ends. */
static void out_of_rows(struct scheduler *s, struct job *job, const struct error *error)
{
    if (!suspend_last(s))
        generation_stop(job->generation, error);
}

/* The job whose chunk has paused; NULL: none. */
static struct job *find_paused(const struct scheduler *s)
{
    for (int i = 0; i < s->n_running; i++)
        if (generation_has_paused(s->running[i]->generation))
            return s->running[i];
    return NULL;
}

/* By what a paused chunk's size is judged: two layers of it are to fit into a slice. A slice that
 * was too long all the same had layers that took far more than others: attention in a long
 * context. */
static double slice_seconds(const struct scheduler *s)
{
    double two_layers = 2 * s->paused_seconds / s->engine->shape->num_hidden_layers;
    bool overran = s->longest_slice > 1.25 * s->options.chunk_seconds;
    return overran && s->longest_slice > two_layers ? s->longest_slice : two_layers;
}

/* A chunk that ends within chunk_seconds, or a slice of a longer one where the backend can pause
 * it: the longer a chunk, the more tokens share a read of the weights. `paused`: whose chunk has.
 * Sets what it took. */
static enum status read_some(struct scheduler *s, struct job *job, const struct job *paused,
                             double *seconds, struct error *error)
{
    bool sliced = s->engine->backend->limits.pauses && (!paused || paused == job);
    struct chunk_size *size = sliced ? &s->sliced : &s->whole;
    const struct generation_figures *figures = generation_figures(job->generation);
    int32_t before = figures->read;
    double start = clock_seconds();
    const struct interrupt interrupt = {&job->cancel, sliced ? start + size->seconds : 0};
    enum status status = generation_read(job->generation, chunk_size_next(size), &interrupt, error);
    *seconds = clock_seconds() - start;
    if (!sliced) {
        chunk_size_learn(size, figures->read - before, *seconds);
        return status;
    }
    if (!paused)
        s->paused_seconds = s->longest_slice = 0;
    s->paused_seconds += *seconds;
    s->longest_slice = *seconds > s->longest_slice ? *seconds : s->longest_slice;
    int32_t read = figures->read - before; /* 0 but at the chunk's end */
    chunk_size_learn(size, read, slice_seconds(s));
    chunk_size_guess(&s->whole, read, s->paused_seconds);
    return status;
}

/* Whether a prompt is read now: beside a paused chunk, where it has to be read in small ones, only
 * if less than half of such a long chunk is left of it. More has its turn when the paused one has
 * ended. */
static bool may_read(const struct scheduler *s, const struct job *job, const struct job *paused)
{
    const struct generation_figures *f = generation_figures(job->generation);
    return generation_phase(job->generation) == GENERATION_READING &&
           (!paused || paused == job ||
            f->prompt - f->cached - f->read <= chunk_size_next(&s->sliced) / 2);
}

static void read_chunk(struct scheduler *s)
{
    const struct job *paused = find_paused(s);
    for (int k = 1; k <= s->n_running; k++) {
        int i = (s->turn + k) % s->n_running;
        struct job *job = s->running[i];
        struct error error;
        if (!may_read(s, job, paused))
            continue;
        s->turn = i;
        struct generation_figures before = *generation_figures(job->generation);
        double seconds;
        enum status status = read_some(s, job, paused, &seconds, &error);
        const struct generation_figures *after = generation_figures(job->generation);
        int32_t read = after->read - before.read;
        if (status == STATUS_BUSY)
            out_of_rows(s, job, &error);
        pthread_mutex_lock(&s->mutex);
        s->figures.read += read;
        s->figures.drawn += after->generated - before.generated;
        s->figures.read_seconds += seconds;
        s->figures.failed_steps += status == STATUS_DEVICE;
        pthread_mutex_unlock(&s->mutex);
        job_tell(job);
        return;
    }
}

/* Rows of all that decode; gives their number. */
static int gather(struct scheduler *s)
{
    for (;;) {
        int n = 0;
        bool lacking = false;
        for (int i = 0; i < s->n_running && !lacking; i++) {
            struct job *job = s->running[i];
            struct error error;
            if (generation_phase(job->generation) != GENERATION_DECODING)
                continue;
            enum status status = generation_row(job->generation, &s->rows[n], &error);
            lacking = status == STATUS_BUSY;
            if (lacking)
                out_of_rows(s, job, &error);
            else if (status == STATUS_OK)
                s->decoding[n++] = job;
        }
        if (!lacking)
            return n;
    }
}

/* Reads a broken sequence's tokens again; the step after that is for this job alone. */
static void read_again(struct scheduler *s, struct job *job)
{
    job->alone = true;
    generation_start(job->generation, s->cache, generation_suspend(job->generation));
}

/* A step for each row, where that of all failed with `problem` (STATUS_OK: was not done). Gives the
 * number of those that failed, whose jobs end. */
static int decode_each(struct scheduler *s, int n, const struct error *problem)
{
    struct backend *backend = s->engine->backend;
    int failed = 0;
    for (int i = 0; i < n; i++) {
        struct job *job = s->decoding[i];
        struct error error = *problem;
        struct ranked ranked;
        if (n > 1 && s->rows[i].sequence->broken) {
            read_again(s, job);
        } else if (!s->rows[i].sequence->broken &&
                   backend->ops->decode_step(backend, &s->rows[i], 1, &ranked, &error) ==
                       STATUS_OK) {
            job->alone = false;
            generation_take(job->generation, &ranked, 0);
        } else {
            generation_stop(job->generation, &error);
            failed++;
        }
    }
    return failed;
}

static bool all_together(const struct scheduler *s, int n)
{
    for (int i = 0; i < n; i++)
        if (s->decoding[i]->alone)
            return false;
    return n > 1;
}

static void decode(struct scheduler *s)
{
    struct backend *backend = s->engine->backend;
    int n = gather(s), failed = 0;
    bool together = all_together(s, n), done = false;
    int64_t drawn = 0;
    struct error error = {.status = STATUS_OK};
    if (n == 0)
        return;
    for (int i = 0; i < n; i++)
        drawn -= generation_figures(s->decoding[i]->generation)->generated;
    double start = clock_seconds();
    if (together)
        done = backend->ops->decode_step(backend, s->rows, n, s->ranked, &error) == STATUS_OK;
    for (int i = 0; i < n && done; i++)
        generation_take(s->decoding[i]->generation, &s->ranked[i], i);
    if (!done)
        failed = decode_each(s, n, &error) + together;
    for (int i = 0; i < n; i++)
        drawn += generation_figures(s->decoding[i]->generation)->generated;
    double seconds = clock_seconds() - start;
    pthread_mutex_lock(&s->mutex);
    s->figures.steps++;
    s->figures.rows += n;
    s->figures.drawn += drawn;
    if ((done ? n : 1) > s->figures.most_rows)
        s->figures.most_rows = done ? n : 1;
    s->figures.decode_seconds += seconds;
    s->figures.failed_steps += failed;
    pthread_mutex_unlock(&s->mutex);
    for (int i = 0; i < n; i++)
        job_tell(s->decoding[i]);
}

static void cancel_all(struct scheduler *s)
{
    for (int i = 0; i < s->n_running; i++)
        atomic_store(&s->running[i]->cancel, true);
    for (struct job *job = s->first; job; job = job->next)
        atomic_store(&job->cancel, true);
}

/* Waits for something to do. False: there will be nothing any more. */
static bool wait_for_work(struct scheduler *s)
{
    pthread_mutex_lock(&s->mutex);
    prefix_cache_read_figures(s->cache, &s->figures.cache);
    if (s->options.disk)
        disk_cache_read_figures(s->options.disk, &s->figures.disk);
    while (s->n_running == 0 && !s->first && !s->stopping &&
           !(s->options.disk && disk_cache_has_work(s->options.disk)))
        pthread_cond_wait(&s->changed, &s->mutex);
    if (s->cancelling)
        cancel_all(s);
    bool more = s->n_running > 0 || s->first || !s->stopping;
    pthread_mutex_unlock(&s->mutex);
    return more;
}

static void *run(void *context)
{
    struct scheduler *s = context;
    thread_set_name("calla-engine");
    while (wait_for_work(s)) {
        sweep(s);
        admit(s);
        read_chunk(s);
        decode(s);
        sweep(s);
        if (s->options.disk)
            disk_cache_work(s->options.disk);
    }
    pthread_mutex_lock(&s->mutex);
    s->started = false;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum status open_sequences(struct scheduler *s, struct error *error)
{
    struct backend *backend = s->engine->backend;
    size_t n = (size_t)s->options.parallel;
    s->idle = calloc(n, sizeof *s->idle);
    s->running = calloc(n, sizeof *s->running);
    s->decoding = calloc(n, sizeof *s->decoding);
    s->rows = calloc(n, sizeof *s->rows);
    s->ranked = calloc(n, sizeof *s->ranked);
    if (!s->idle || !s->running || !s->decoding || !s->rows || !s->ranked)
        return error_no_memory(error, "the scheduler");
    while (s->n_idle < s->options.parallel) {
        enum status status = backend->ops->sequence_new(backend, &s->idle[s->n_idle], error);
        if (status != STATUS_OK)
            return status;
        s->n_idle++;
    }
    return STATUS_OK;
}

enum status scheduler_new(struct engine *engine, struct prefix_cache *cache,
                          const struct scheduler_options *options, struct scheduler **out,
                          struct error *error)
{
    int most = engine->backend->limits.max_rows;
    *out = NULL;
    if (options->parallel < 1 || options->parallel > most)
        return error_set(error, STATUS_INVALID, "parallel: found %d, wanted 1 to %d",
                         options->parallel, most);
    struct scheduler *s = *out = calloc(1, sizeof *s);
    if (!s)
        return error_no_memory(error, "the scheduler");
    s->engine = engine;
    s->cache = cache;
    s->turn = -1; /* the first one begins */
    s->options = *options;
    chunk_size_init(&s->whole, options->chunk_seconds, engine->backend->limits.max_chunk);
    chunk_size_init(&s->sliced, options->chunk_seconds, engine->backend->limits.max_chunk);
    pthread_mutex_init(&s->mutex, NULL);
    clock_condition_init(&s->changed);
    enum status status = open_sequences(s, error);
    if (status == STATUS_OK) {
        s->started = true;
        if (pthread_create(&s->thread, NULL, run, s) != 0) {
            s->started = false;
            status = error_set(error, STATUS_NO_MEMORY, "the engine's thread cannot be started");
        }
    }
    if (status != STATUS_OK) {
        scheduler_free(s);
        *out = NULL;
    }
    return status;
}

void scheduler_stop(struct scheduler *s, double grace)
{
    struct timespec end = clock_after(grace);
    pthread_mutex_lock(&s->mutex);
    bool running = !s->stopping;
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    while (s->started && pthread_cond_timedwait(&s->changed, &s->mutex, &end) == 0)
        ;
    s->cancelling = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (running)
        pthread_join(s->thread, NULL);
}

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_idle; i++)
        s->engine->backend->ops->sequence_free(s->engine->backend, s->idle[i]);
    free(s->idle);
    free(s->running);
    free(s->decoding);
    free(s->rows);
    free(s->ranked);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

void scheduler_wake(struct scheduler *s)
{
    pthread_mutex_lock(&s->mutex);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

void scheduler_read_figures(struct scheduler *s, struct scheduler_figures *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = s->figures;
    pthread_mutex_unlock(&s->mutex);
}

/* Whether n more jobs may wait; a call that asks for much is served by an idle engine. */
static bool has_room(const struct scheduler *s, int n)
{
    int free_places = s->options.parallel - s->figures.running;
    return s->figures.queued + n <= s->options.queue + free_places ||
           s->figures.queued + s->figures.running == 0;
}

enum status scheduler_submit(struct scheduler *s, const struct generation_options *options, int n,
                             struct job **jobs, struct error *error)
{
    enum status status = STATUS_OK;
    int made = 0;
    for (; made < n && status == STATUS_OK; made++)
        status = job_new(s->engine, &options[made], s->options.mailbox, made > 0 ? jobs[0] : NULL,
                         &jobs[made], error);
    made -= status != STATUS_OK;
    pthread_mutex_lock(&s->mutex);
    if (status == STATUS_OK && s->stopping)
        status = error_set(error, STATUS_CANCELLED, "the server is shutting down");
    if (status == STATUS_OK && !has_room(s, n))
        status =
            error_set(error, STATUS_BUSY, "the queue is full: %d requests wait", s->figures.queued);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        job_ref(jobs[i]);
        push_back(s, jobs[i]);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    while (status != STATUS_OK && made > 0)
        job_free(jobs[--made]);
    return status;
}
