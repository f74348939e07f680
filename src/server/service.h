/* What all requests share: the model, its engine and the scheduler that runs it; opened while the
 * port already answers. Handlers run on the connections' threads and only read it. */
#pragma once

#include <stdatomic.h>

#include "calla.h"
#include "engine/scheduler.h"
#include "library/model.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/plan.h"

#define SERVICE_BODY_MAX ((size_t)32 << 20) /* bytes of a request */
#define SERVICE_NAMES 17                    /* the model's id and its aliases */

struct service_options {
    const char *path; /* the checkpoint's folder; its last part is the model's id */
    const char *const *aliases;
    int n_aliases;
    const struct backend_ops *ops;
    int threads;
    const char *cpu;
    bool lock, warm_up;
    struct server_wishes wishes;
    const char *disk_folder; /* of the disk cache; NULL: none */
    int64_t disk_bytes;
    int queue;            /* requests that may wait */
    double chunk_seconds; /* see struct scheduler_options */
    const char *preset;   /* sampling and thinking by default; NULL: the checkpoint's */
    bool reasoning_twice; /* also as `reasoning` */
    void (*log)(void *context, const char *line); /* what is worth reading while it opens */
    void *log_context;
};

enum service_state { SERVICE_LOADING, SERVICE_READY, SERVICE_STOPPING };

struct service {
    struct service_options options;
    _Atomic enum service_state state; /* what follows but metrics is valid from READY on */
    struct metrics metrics;
    struct model model;
    struct server_plan plan;
    struct engine engine;
    struct disk_cache *disk; /* NULL: none */
    struct prefix_cache *cache;
    struct scheduler *scheduler;
    struct calla_request defaults; /* sampling and thinking */
    struct {
        int32_t prefix, suffix, middle, end_of_text; /* -1: the vocabulary has none */
    } fim;
    char id[256];
    const char *names[SERVICE_NAMES]; /* [n_names], the id first */
    int n_names;
    int64_t created; /* seconds since 1970 */
    char fingerprint[24];
    atomic_uint_fast64_t nonce; /* of answers' ids */
};

/* Before the port opens: names and metrics. Borrows the options' texts. */
void service_init(struct service *service, const struct service_options *options);
/* Opens the model. After an error service_close is called as after success. */
enum status service_open(struct service *service, struct error *error);
/* Requests that still run end with an error; there will be no others. Any thread. */
void service_cancel(struct service *service);
/* Ends the running jobs within `grace` seconds. */
void service_stop(struct service *service, double grace);
void service_close(struct service *service);
/* Whether a request's `model` is this one. */
bool service_has_name(const struct service *service, const char *name);
/* What requests are held to. */
struct openai_limits service_limits(const struct service *service);
