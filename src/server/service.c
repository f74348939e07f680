#include "server/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sha256.h"
#include "library/template_check.h"

#define MAILBOX 8192 /* tokens that a reader may be behind */

/* The last part of a path, that of the folder itself for `.`, without a slash at its end. */
static void name_of(const char *given, char *out, size_t size)
{
    char *whole = realpath(given, NULL);
    const char *path = whole ? whole : given;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(out, size, "%.*s", (int)(end - start), path + start);
    free(whole);
}

void service_init(struct service *service, const struct service_options *options)
{
    *service = (struct service){.options = *options, .created = (int64_t)time(NULL)};
    atomic_init(&service->state, SERVICE_LOADING);
    metrics_init(&service->metrics);
    name_of(options->path, service->id, sizeof service->id);
    service->names[service->n_names++] = service->id;
    for (int i = 0; i < options->n_aliases && service->n_names < SERVICE_NAMES; i++)
        service->names[service->n_names++] = options->aliases[i];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    atomic_init(&service->nonce, (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec);
    snprintf(service->fingerprint, sizeof service->fingerprint, "calla-%s", calla_version());
}

bool service_has_name(const struct service *service, const char *name)
{
    for (int i = 0; i < service->n_names; i++)
        if (strcmp(service->names[i], name) == 0)
            return true;
    return false;
}

static void log_line(const struct service *service, const char *line)
{
    if (service->options.log && line)
        service->options.log(service->options.log_context, line);
}

static enum status check_template(const struct service *service, struct error *error)
{
    struct error note;
    if (!template_differs(service->options.path, &note))
        return STATUS_OK;
    if (note.status == STATUS_NO_MEMORY)
        return error_set(error, note.status, "%s", note.message);
    log_line(service, note.message);
    return STATUS_OK;
}

static enum status make_plan(struct service *service, struct error *error)
{
    const struct memory_room room = memory_look();
    const struct config *config = checkpoint_config(service->model.checkpoint);
    struct bytes line = {0};
    enum status status = server_plan_make(
        service->options.ops, checkpoint_weights(service->model.checkpoint),
        config->max_position_embeddings, &service->options.wishes, &room, &service->plan, error);
    if (status != STATUS_OK)
        return status;
    bytes_append_text(&line, "memory: ");
    server_plan_print(&service->plan, &line);
    log_line(service, bytes_terminate(&line));
    bytes_clear(&line);
    return STATUS_OK;
}

static enum status open_engine(struct service *service, struct error *error)
{
    const struct service_options *options = &service->options;
    const struct engine_options engine = {
        .ops = options->ops,
        .context = service->plan.context,
        .n_sequences = service->plan.parallel,
        .kv_rows = service->plan.kv_rows,
        .threads = options->threads,
        .cpu = options->cpu,
    };
    enum status status =
        engine_plan(checkpoint_weights(service->model.checkpoint),
                    tokenizer_size(service->model.tokenizer), &engine, &service->engine, error);
    if (status == STATUS_OK && options->lock)
        status = checkpoint_lock(service->model.checkpoint, error);
    if (status == STATUS_OK && options->warm_up)
        checkpoint_preload(service->model.checkpoint);
    if (status == STATUS_OK)
        status = engine_open(&service->engine, error);
    if (status == STATUS_OK && service->plan.parallel > service->engine.backend->limits.max_rows)
        status = error_set(error, STATUS_INVALID, "parallel: found %d, wanted at most %d",
                           service->plan.parallel, service->engine.backend->limits.max_rows);
    return status == STATUS_OK && options->warm_up ? engine_warm_up(&service->engine, error)
                                                   : status;
}

static void wake(void *context)
{
    const struct service *service = context;
    scheduler_wake(service->scheduler);
}

static enum status open_disk(struct service *service, struct error *error)
{
    char weights[SHA256_HEX_SIZE];
    if (!service->options.disk_folder)
        return STATUS_OK;
    enum status status = checkpoint_digest(service->model.checkpoint, weights, error);
    const struct disk_cache_options options = {.folder = service->options.disk_folder,
                                               .budget = service->options.disk_bytes,
                                               .weights = weights,
                                               .log = service->options.log,
                                               .log_context = service->options.log_context,
                                               .wake = wake,
                                               .wake_context = service};
    if (status == STATUS_OK)
        status = disk_cache_open(&service->engine, &options, &service->disk, error);
    if (status != STATUS_OK)
        return status;
    struct disk_cache_figures figures;
    char line[160];
    disk_cache_read_figures(service->disk, &figures);
    snprintf(line, sizeof line, "disk cache: %d prefixes, %.2f of %.2f GiB", figures.files,
             (double)figures.used / (1 << 30), (double)figures.budget / (1 << 30));
    log_line(service, line);
    return STATUS_OK;
}

static enum status open_scheduler(struct service *service, struct error *error)
{
    const struct prefix_cache_options cache = {.budget = service->plan.cache_bytes,
                                               .disk = service->disk};
    const struct scheduler_options options = {.parallel = service->plan.parallel,
                                              .queue = service->options.queue,
                                              .mailbox = MAILBOX,
                                              .chunk_seconds = service->options.chunk_seconds,
                                              .disk = service->disk};
    enum status status = prefix_cache_new(&service->engine, &cache, &service->cache, error);
    return status == STATUS_OK ? scheduler_new(&service->engine, service->cache, &options,
                                               &service->scheduler, error)
                               : status;
}

static enum status set_defaults(struct service *service, struct error *error)
{
    struct calla_error problem;
    model_request_init(&service->model, &service->defaults);
    if (service->options.preset &&
        calla_request_preset(&service->defaults, service->options.preset, &problem) != CALLA_OK)
        return error_set(error, STATUS_INVALID, "%s", problem.message);
    const struct tokenizer *tokenizer = service->model.tokenizer;
    service->fim.prefix = tokenizer_added_id(tokenizer, "<|fim_prefix|>");
    service->fim.suffix = tokenizer_added_id(tokenizer, "<|fim_suffix|>");
    service->fim.middle = tokenizer_added_id(tokenizer, "<|fim_middle|>");
    service->fim.end_of_text = tokenizer_added_id(tokenizer, "<|endoftext|>");
    return STATUS_OK;
}

enum status service_open(struct service *service, struct error *error)
{
    enum status status =
        backend_check(service->options.ops, service->options.threads, service->options.cpu, error);
    if (status == STATUS_OK)
        status = model_open(service->options.path, &service->model, error);
    if (status == STATUS_OK)
        status = check_template(service, error);
    if (status == STATUS_OK)
        status = make_plan(service, error);
    if (status == STATUS_OK)
        status = open_engine(service, error);
    if (status == STATUS_OK)
        status = set_defaults(service, error);
    if (status == STATUS_OK)
        status = open_disk(service, error);
    if (status == STATUS_OK)
        status = open_scheduler(service, error);
    if (status == STATUS_OK)
        atomic_store(&service->state, SERVICE_READY);
    return status;
}

void service_cancel(struct service *service)
{
    atomic_store(&service->state, SERVICE_STOPPING);
}

void service_stop(struct service *service, double grace)
{
    service_cancel(service);
    if (service->scheduler)
        scheduler_stop(service->scheduler, grace);
}

void service_close(struct service *service)
{
    prefix_cache_free(service->cache);
    disk_cache_close(service->disk); /* before the scheduler, which it wakes */
    scheduler_free(service->scheduler);
    engine_close(&service->engine);
    model_close(&service->model);
    metrics_clear(&service->metrics);
}

struct openai_limits service_limits(const struct service *service)
{
    return (struct openai_limits){.body_size = SERVICE_BODY_MAX,
                                  .vocabulary = tokenizer_size(service->model.tokenizer)};
}
