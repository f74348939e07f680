/* A generation, and the place where its tokens wait for whoever submitted it. Owned by the
 * scheduler and its client together. */
#pragma once

#include <pthread.h>

#include "engine/mailbox.h"
#include "engine/scheduler.h"

struct job {
    struct shared shared;
    struct job *next; /* in the queue */
    struct generation *generation;
    struct job *leader; /* it reads first; NULL: this one waits for nobody */
    bool alone;         /* its next step is not shared: one with others has failed */
    atomic_bool cancel;
    atomic_bool has_read; /* its prompt, or it has ended */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    struct mailbox mailbox;
    struct job_news news; /* as of the last job_tell */
};

enum status job_new(struct engine *engine, const struct generation_options *options, int mailbox,
                    struct job *leader, struct job **out, struct error *error);
void job_ref(struct job *job);
void job_unref(struct job *job);
/* Whether the leader has still to read. */
bool job_must_wait(const struct job *job);
/* Tells the client how far the generation is. */
void job_tell(struct job *job);
/* The same when it has ended. */
void job_end(struct job *job);
