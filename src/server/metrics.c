#include "server/metrics.h"

#include "base/memory.h"

static const double speeds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 0};
static const double times[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 0};

void metrics_init(struct metrics *metrics)
{
    *metrics = (struct metrics){
        .prefill = {.name = "calla_prefill_tokens_per_second",
                    .help = "speed at which a request's prompt was read",
                    .bounds = speeds},
        .decode = {.name = "calla_decode_tokens_per_second",
                   .help = "speed at which a request's answer came",
                   .bounds = speeds},
        .first_token = {.name = "calla_time_to_first_token_seconds",
                        .help = "from a request's arrival to its first token",
                        .bounds = times},
    };
    pthread_mutex_init(&metrics->mutex, NULL);
}

void metrics_clear(struct metrics *metrics)
{
    pthread_mutex_destroy(&metrics->mutex);
}

static void observe(struct histogram *histogram, double value)
{
    int bucket = 0;
    while (histogram->bounds[bucket] > 0 && value > histogram->bounds[bucket])
        bucket++;
    histogram->counts[bucket]++;
    histogram->sum += value;
}

void metrics_count_request(struct metrics *metrics, unsigned status, bool client_gone)
{
    pthread_mutex_lock(&metrics->mutex);
    int i = 0;
    while (i < METRICS_STATUSES - 1 && metrics->requests[i].n > 0 &&
           metrics->requests[i].status != status)
        i++;
    metrics->requests[i].status = status;
    metrics->requests[i].n++;
    metrics->cancelled += client_gone;
    pthread_mutex_unlock(&metrics->mutex);
}

void metrics_count_generation(struct metrics *metrics, const struct generation_figures *figures,
                              double arrived)
{
    if (figures->generated == 0)
        return;
    double reading = figures->first - figures->started, writing = figures->end - figures->first;
    pthread_mutex_lock(&metrics->mutex);
    observe(&metrics->first_token, figures->first - arrived);
    if (reading > 0)
        observe(&metrics->prefill, (figures->prompt - figures->cached) / reading);
    if (figures->generated > 1 && writing > 0)
        observe(&metrics->decode, (figures->generated - 1) / writing);
    pthread_mutex_unlock(&metrics->mutex);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_head(const char *name, const char *type, const char *help, struct bytes *out)
{
    bytes_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_one(const char *name, const char *type, const char *help, double value,
                      struct bytes *out)
{
    print_head(name, type, help, out);
    bytes_format(out, "%s %.17g\n", name, value);
}

static void print_histogram(const struct histogram *histogram, struct bytes *out)
{
    int64_t total = 0;
    int i = 0;
    print_head(histogram->name, "histogram", histogram->help, out);
    for (; histogram->bounds[i] > 0; i++) {
        total += histogram->counts[i];
        bytes_format(out, "%s_bucket{le=\"%g\"} %lld\n", histogram->name, histogram->bounds[i],
                     (long long)total);
    }
    total += histogram->counts[i];
    bytes_format(out, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %.9g\n%s_count %lld\n", histogram->name,
                 (long long)total, histogram->name, histogram->sum, histogram->name,
                 (long long)total);
}

static void print_scheduler(const struct scheduler_figures *s, struct bytes *out)
{
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"calla_requests_queued", "gauge", "generations that wait", s->queued},
        {"calla_requests_running", "gauge", "generations that run", s->running},
        {"calla_prompt_tokens_read_total", "counter", "prompt tokens that went through the model",
         (double)s->read},
        {"calla_prompt_tokens_cached_total", "counter", "prompt tokens that the prefix cache had",
         (double)s->cached},
        {"calla_generated_tokens_total", "counter", "tokens generated", (double)s->drawn},
        {"calla_prefill_seconds_total", "counter", "time spent reading prompts", s->read_seconds},
        {"calla_decode_seconds_total", "counter", "time spent in decode steps", s->decode_seconds},
        {"calla_decode_steps_total", "counter", "decode steps", (double)s->steps},
        {"calla_decode_rows_total", "counter", "rows of all decode steps", (double)s->rows},
        {"calla_decode_rows_max", "gauge", "most rows of a decode step so far", s->most_rows},
        {"calla_suspensions_total", "counter", "generations that lost their place for a while",
         (double)s->suspended},
        {"calla_failed_steps_total", "counter", "steps that the device failed",
         (double)s->failed_steps},
        {"calla_cache_bytes", "gauge", "bytes that the prefix cache holds", (double)s->cache.used},
        {"calla_cache_bytes_max", "gauge", "bytes that it held at most", (double)s->cache.peak},
        {"calla_cache_budget_bytes", "gauge", "bytes that it may hold", (double)s->cache.budget},
        {"calla_cache_entries", "gauge", "prefixes in the cache", s->cache.n_entries},
        {"calla_cache_hits_total", "counter", "prompts that went on from a cached prefix",
         (double)s->cache.hits},
        {"calla_cache_misses_total", "counter", "prompts that were read from their beginning",
         (double)s->cache.misses},
        {"calla_cache_evictions_total", "counter", "prefixes that had to go",
         (double)s->cache.evictions},
        {"calla_disk_cache_bytes", "gauge", "bytes of the disk cache's files",
         (double)s->disk.used},
        {"calla_disk_cache_files", "gauge", "prefixes on the disk", s->disk.files},
        {"calla_disk_cache_loads_total", "counter", "prompts that went on from the disk",
         (double)s->disk.loads},
        {"calla_disk_cache_writes_total", "counter", "prefixes written to the disk",
         (double)s->disk.writes},
        {"calla_disk_cache_failures_total", "counter", "files that could not be written or read",
         (double)s->disk.failures},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        print_one(rows[i].name, rows[i].type, rows[i].help, rows[i].value, out);
}

void metrics_print(struct metrics *metrics, const struct scheduler_figures *scheduler,
                   struct bytes *out)
{
    pthread_mutex_lock(&metrics->mutex);
    print_head("calla_requests_total", "counter", "requests by status; 0: the client had left",
               out);
    for (int i = 0; i < METRICS_STATUSES && metrics->requests[i].n > 0; i++)
        bytes_format(out, "calla_requests_total{status=\"%u\"} %lld\n", metrics->requests[i].status,
                     (long long)metrics->requests[i].n);
    print_one("calla_clients_gone_total", "counter", "requests whose client left before the end",
              (double)metrics->cancelled, out);
    print_histogram(&metrics->first_token, out);
    print_histogram(&metrics->prefill, out);
    print_histogram(&metrics->decode, out);
    pthread_mutex_unlock(&metrics->mutex);
    if (scheduler)
        print_scheduler(scheduler, out);
    print_one("calla_memory_resident_bytes", "gauge", "resident memory, the mapped weights too",
              (double)memory_resident(), out);
}
