/* libcalla: opening and closing. A request goes one way: template -> tokenizer -> engine ->
 * detokenizer -> reply parser -> stop strings -> the caller's callback (request.c, session.c,
 * output.c). */
#include "calla.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "library/cache_plan.h"
#include "library/handles.h"
#include "library/open.h"
#include "library/template_check.h"

enum calla_status library_error(enum status status, const struct error *from,
                                struct calla_error *to)
{
    static const enum calla_status names[] = {
        [STATUS_OK] = CALLA_OK,
        [STATUS_INVALID] = CALLA_INVALID,
        [STATUS_UNSUPPORTED] = CALLA_INVALID,
        [STATUS_IO] = CALLA_IO,
        [STATUS_NO_MEMORY] = CALLA_NO_MEMORY,
        [STATUS_CONTEXT] = CALLA_CONTEXT,
        [STATUS_CANCELLED] = CALLA_CANCELLED,
        [STATUS_DEVICE] = CALLA_DEVICE,
        [STATUS_BUSY] = CALLA_NO_MEMORY, /* a session has a pool of its own, so it is too small */
    };
    _Static_assert(sizeof to->message == sizeof from->message, "messages are copied whole");
    if (to) {
        to->status = names[status];
        memcpy(to->message, status == STATUS_OK ? "" : from->message,
               status == STATUS_OK ? 1 : sizeof to->message);
    }
    return names[status];
}

const char *calla_version(void)
{
    return CALLA_VERSION;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void log_line(const struct calla_open_options *options, const char *line)
{
    if (options && options->log && line)
        options->log(options->log_context, line);
}

static enum status log_plan(const struct calla_open_options *options, const struct engine *engine,
                            int64_t cache_bytes, struct error *error)
{
    struct bytes line = {0};
    bytes_append_text(&line, "memory: ");
    memory_plan_print(&engine->plan, engine->options.context, engine->options.n_sequences, &line);
    if (cache_bytes > 0)
        bytes_format(&line, "; up to %.2f more to reuse what was read",
                     (double)cache_bytes / (1024.0 * 1024 * 1024));
    const char *text = bytes_terminate(&line);
    log_line(options, text);
    bytes_clear(&line);
    return text ? STATUS_OK : error_no_memory(error, "the memory plan");
}

static enum status open_model(const char *path, const struct backend_ops *ops,
                              const struct calla_open_options *options, struct calla_model *opened,
                              struct error *error)
{
    enum status status = model_open(path, &opened->model, error);
    if (status != STATUS_OK)
        return status;
    struct error note;
    if (template_differs(path, &note)) {
        if (note.status == STATUS_NO_MEMORY)
            return error_set(error, note.status, "%s", note.message);
        log_line(options, note.message);
    }
    const struct weights *weights = checkpoint_weights(opened->model.checkpoint);
    struct engine_options engine = {
        .ops = ops,
        .n_sequences = 1,
        .threads = options ? options->threads : 0,
        .cpu = options ? options->cpu : NULL,
    };
    status = engine_context(ops, weights, options ? options->max_context : 0,
                            checkpoint_config(opened->model.checkpoint)->max_position_embeddings,
                            &engine.context, error);
    if (options == NULL || options->cache_bytes >= 0)
        engine.kv_rows = engine.context + (int64_t)PREFIX_SPARE_ROWS;
    if (status == STATUS_OK)
        status = engine_plan(weights, tokenizer_size(opened->model.tokenizer), &engine,
                             &opened->engine, error);
    const struct memory_room room = memory_look();
    if (status == STATUS_OK) /* before the log tells of a plan */
        status = memory_plan_check_in(&room, &opened->engine.plan, engine.context, 1, error);
    if (status == STATUS_OK)
        status = cache_plan(options ? options->cache_bytes : 0, &opened->engine.plan, &room,
                            &opened->cache_bytes, error);
    if (status == STATUS_OK)
        status = log_plan(options, &opened->engine, opened->cache_bytes, error);
    if (status == STATUS_OK && options && options->lock)
        status = checkpoint_lock(opened->model.checkpoint, error);
    if (status == STATUS_OK && options && options->warm_up)
        checkpoint_preload(opened->model.checkpoint);
    if (status == STATUS_OK)
        status = engine_open(&opened->engine, error);
    return status == STATUS_OK && options && options->warm_up
               ? engine_warm_up(&opened->engine, error)
               : status;
}

enum status library_open(const char *path, const struct backend_ops *ops,
                         const struct calla_open_options *options, struct calla_model **model,
                         struct error *error)
{
    *model = NULL;
    enum status status =
        backend_check(ops, options ? options->threads : 0, options ? options->cpu : NULL, error);
    if (status != STATUS_OK)
        return status;
    struct calla_model *opened = calloc(1, sizeof *opened);
    status = opened ? open_model(path, ops, options, opened, error)
                    : error_no_memory(error, "the model");
    if (status != STATUS_OK) {
        calla_close(opened);
        opened = NULL;
    }
    *model = opened;
    return status;
}

enum calla_status calla_open(const char *path, const struct calla_open_options *options,
                             struct calla_model **model, struct calla_error *error)
{
    struct error problem;
    const struct backend_ops *ops;
    *model = NULL;
    enum status status = backend_find(options ? options->backend : NULL, &ops, &problem);
    if (status == STATUS_OK)
        status = library_open(path, ops, options, model, &problem);
    return library_error(status, &problem, error);
}

void calla_close(struct calla_model *model)
{
    if (!model)
        return;
    engine_close(&model->engine);
    model_close(&model->model);
    free(model);
}

int32_t calla_context(const struct calla_model *model)
{
    return model->engine.options.context;
}
