#include "engine/disk_writer.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/threads.h"

enum task { TASK_NONE, TASK_CREATE, TASK_STATE, TASK_BLOCK, TASK_COMMIT, TASK_END };

struct disk_writer {
    struct disk_identity identity;
    void (*wake)(void *context);
    void *context;
    /* the piece; the thread's while it is busy */
    struct disk_file file;
    const char *path;
    const int32_t *tokens, *lengths;
    int32_t n_tokens;
    int n_states, index;
    const void *data;

    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    enum task task;
    enum status status; /* of the last piece */
    struct error error;
};

static enum status do_task(struct disk_writer *w, enum task task, struct error *error)
{
    switch (task) {
    case TASK_CREATE:
        return disk_file_create(w->path, &w->identity, w->tokens, w->n_tokens, w->lengths,
                                w->n_states, &w->file, error);
    case TASK_STATE:
        return disk_file_put_state(&w->file, w->index, w->data, error);
    case TASK_BLOCK:
        return disk_file_put_block(&w->file, w->index, w->data, error);
    case TASK_COMMIT:
        return disk_file_commit(&w->file, w->path, error);
    case TASK_NONE:
    case TASK_END:
        break;
    }
    return STATUS_OK;
}

static void *run(void *context)
{
    struct disk_writer *w = context;
    thread_set_name("calla-disk");
    pthread_mutex_lock(&w->mutex);
    while (w->task != TASK_END) {
        if (w->task == TASK_NONE) {
            pthread_cond_wait(&w->changed, &w->mutex);
            continue;
        }
        enum task task = w->task;
        struct error error;
        pthread_mutex_unlock(&w->mutex);
        enum status status = do_task(w, task, &error);
        pthread_mutex_lock(&w->mutex);
        w->task = TASK_NONE;
        w->status = status;
        if (status != STATUS_OK)
            w->error = error;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->mutex);
        if (w->wake)
            w->wake(w->context);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static void post(struct disk_writer *w, enum task task)
{
    pthread_mutex_lock(&w->mutex);
    w->task = task;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

enum status disk_writer_new(const struct disk_identity *identity, void (*wake)(void *context),
                            void *context, struct disk_writer **out, struct error *error)
{
    struct disk_writer *w = *out = calloc(1, sizeof *w);
    if (!w)
        return error_no_memory(error, "the disk cache");
    w->identity = *identity;
    w->wake = wake;
    w->context = context;
    w->file.descriptor = -1;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, run, w) == 0)
        return STATUS_OK;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    *out = NULL;
    return error_set(error, STATUS_NO_MEMORY, "cache-disk: its thread cannot be started");
}

void disk_writer_free(struct disk_writer *w)
{
    if (!w)
        return;
    post(w, TASK_END);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

bool disk_writer_is_busy(struct disk_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    bool busy = w->task != TASK_NONE;
    pthread_mutex_unlock(&w->mutex);
    return busy;
}

void disk_writer_wait(struct disk_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    while (w->task != TASK_NONE)
        pthread_cond_wait(&w->changed, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}

enum status disk_writer_status(struct disk_writer *w, struct error *error)
{
    pthread_mutex_lock(&w->mutex);
    enum status status = w->status;
    if (status != STATUS_OK)
        *error = w->error;
    pthread_mutex_unlock(&w->mutex);
    return status;
}

void disk_writer_create(struct disk_writer *w, const char *path, const int32_t *tokens,
                        int32_t n_tokens, const int32_t *lengths, int n_states)
{
    w->path = path;
    w->tokens = tokens;
    w->n_tokens = n_tokens;
    w->lengths = lengths;
    w->n_states = n_states;
    post(w, TASK_CREATE);
}

void disk_writer_put_state(struct disk_writer *w, int i, const void *state)
{
    w->index = i;
    w->data = state;
    post(w, TASK_STATE);
}

void disk_writer_put_block(struct disk_writer *w, int block, const void *rows)
{
    w->index = block;
    w->data = rows;
    post(w, TASK_BLOCK);
}

void disk_writer_commit(struct disk_writer *w)
{
    post(w, TASK_COMMIT);
}

void disk_writer_abandon(struct disk_writer *w)
{
    disk_writer_wait(w);
    if (w->path)
        disk_file_abandon(&w->file, w->path);
    w->path = NULL;
}
