/* What a server counts for GET /metrics, in Prometheus' text form. Any thread. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "base/bytes.h"
#include "engine/scheduler.h"

#define METRICS_STATUSES 24 /* different ones that are counted each; others together */
#define METRICS_BUCKETS 16

struct histogram {
    const char *name, *help;
    const double *bounds; /* ascending, ends with 0 */
    int64_t counts[METRICS_BUCKETS + 1];
    double sum;
};

struct metrics {
    pthread_mutex_t mutex;
    struct {
        unsigned status;
        int64_t n;
    } requests[METRICS_STATUSES];
    int64_t cancelled; /* clients that left */
    struct histogram prefill, decode, first_token;
};

void metrics_init(struct metrics *metrics);
void metrics_clear(struct metrics *metrics);
/* A request has been answered; status 0: its client had left. */
void metrics_count_request(struct metrics *metrics, unsigned status, bool client_gone);
/* A generation has ended. `arrived`: when its request came, in the clock's seconds. */
void metrics_count_generation(struct metrics *metrics, const struct generation_figures *figures,
                              double arrived);
/* Appends all of them; `scheduler` may be NULL (nothing is loaded yet). */
void metrics_print(struct metrics *metrics, const struct scheduler_figures *scheduler,
                   struct bytes *out);
