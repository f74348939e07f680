#include "engine/job.h"

#include <stdlib.h>

#include "base/clock.h"

/* On the engine's thread. A reader that is too far behind loses its request. */
static void put(void *context, const struct generated *generated)
{
    struct job *job = context;
    pthread_mutex_lock(&job->mutex);
    if (job->news.overflowed || !mailbox_put(&job->mailbox, generated)) { /* never with a gap */
        job->news.overflowed = true;
        atomic_store(&job->cancel, true);
    }
    pthread_mutex_unlock(&job->mutex);
}

static void destroy(struct shared *shared)
{
    struct job *job = (struct job *)shared;
    if (job->leader)
        job_unref(job->leader);
    generation_free(job->generation);
    mailbox_clear(&job->mailbox);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->mutex);
    free(job);
}

enum status job_new(struct engine *engine, const struct generation_options *options, int mailbox,
                    struct job *leader, struct job **out, struct error *error)
{
    struct generation_options own = *options;
    struct job *job = *out = calloc(1, sizeof *job);
    if (!job)
        return error_no_memory(error, "a request");
    own.emit = put;
    own.context = job;
    pthread_mutex_init(&job->mutex, NULL);
    clock_condition_init(&job->changed);
    shared_init(&job->shared, destroy);
    enum status status = mailbox_init(&job->mailbox, mailbox, options->n_top, error);
    if (status == STATUS_OK)
        status = generation_new(engine, &own, &job->generation, error);
    if (status != STATUS_OK) {
        job_unref(job);
        *out = NULL;
        return status;
    }
    job->news.figures = *generation_figures(job->generation);
    if (leader) {
        job_ref(leader);
        job->leader = leader;
    }
    return STATUS_OK;
}

void job_ref(struct job *job)
{
    shared_hold(&job->shared);
}

void job_unref(struct job *job)
{
    shared_release(&job->shared);
}

bool job_must_wait(const struct job *job)
{
    return job->leader && !atomic_load(&job->leader->has_read);
}

void job_tell(struct job *job)
{
    static const enum job_phase phases[] = {
        [GENERATION_WAITING] = JOB_QUEUED,
        [GENERATION_READING] = JOB_READING,
        [GENERATION_DECODING] = JOB_DECODING,
        [GENERATION_ENDED] = JOB_DECODING, /* until job_end, when its sequence is free */
    };
    enum job_phase phase = phases[generation_phase(job->generation)];
    if (phase == JOB_DECODING)
        atomic_store(&job->has_read, true);
    pthread_mutex_lock(&job->mutex);
    job->news.figures = *generation_figures(job->generation);
    bool news = job->mailbox.length > 0 || job->news.phase != phase;
    job->news.phase = phase;
    pthread_mutex_unlock(&job->mutex);
    if (news) /* behind the mutex, which whoever wakes takes at once */
        pthread_cond_signal(&job->changed);
}

void job_end(struct job *job)
{
    atomic_store(&job->has_read, true);
    pthread_mutex_lock(&job->mutex);
    job->news.figures = *generation_figures(job->generation);
    job->news.phase = JOB_ENDED;
    job->news.end = job->news.overflowed ? GENERATION_CANCELLED : generation_end(job->generation);
    job->news.error = *generation_error(job->generation);
    pthread_mutex_unlock(&job->mutex);
    pthread_cond_signal(&job->changed);
}

int job_wait(struct job *job, double seconds, struct generated *out, int n, struct job_news *news)
{
    struct timespec end = clock_after(seconds);
    pthread_mutex_lock(&job->mutex);
    while (job->mailbox.length == 0 && job->news.phase == news->phase &&
           job->news.phase != JOB_ENDED &&
           pthread_cond_timedwait(&job->changed, &job->mutex, &end) == 0)
        ;
    int taken = mailbox_take(&job->mailbox, out, n);
    *news = job->news;
    if (news->phase == JOB_ENDED && job->mailbox.length > 0)
        news->phase = JOB_DECODING; /* the end comes after the last token */
    pthread_mutex_unlock(&job->mutex);
    return taken;
}

void job_cancel(struct job *job)
{
    atomic_store(&job->cancel, true);
}

void job_free(struct job *job)
{
    if (!job)
        return;
    job_cancel(job);
    job_unref(job);
}
