/* libcalla: the public API of include/calla.h on the layers below. A request goes one way: template
 * -> tokenizer -> engine -> detokenizer -> reply parser -> stop strings -> the caller's callback.
 */
#include "calla.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "engine/generation.h"
#include "library/cache_plan.h"
#include "library/model.h"
#include "library/open.h"
#include "library/output.h"
#include "library/template_check.h"
#include "text/messages.h"
#include "text/template.h"

struct calla_model {
    struct model model;
    struct engine engine;
    int64_t cache_bytes; /* budget of the session's prefix cache */
};

struct calla_session {
    struct calla_model *owner;
    struct sequence *sequence;
    struct prefix_cache *cache;
    struct token_list prompt_ids, completion_ids;
    atomic_bool cancel;
};

static enum calla_status give_error(enum status status, const struct error *from,
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
    return give_error(status, &problem, error);
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

static enum status open_session(struct calla_model *model, struct calla_session *session,
                                struct error *error)
{
    struct backend *backend = model->engine.backend;
    session->owner = model;
    enum status status = backend->ops->sequence_new(backend, &session->sequence, error);
    /* the KV rows that it holds are those of the planned pool */
    struct prefix_cache_options options = {
        .budget = model->cache_bytes > 0 ? model->cache_bytes + model->engine.plan.kv_cache : 0};
    return status == STATUS_OK ? prefix_cache_new(&model->engine, &options, &session->cache, error)
                               : status;
}

enum calla_status calla_session_new(struct calla_model *model, struct calla_session **session,
                                    struct calla_error *error)
{
    struct error problem;
    struct calla_session *opened = calloc(1, sizeof *opened);
    enum status status =
        opened ? open_session(model, opened, &problem) : error_no_memory(&problem, "the session");
    if (status != STATUS_OK) {
        calla_session_free(opened);
        opened = NULL;
    }
    *session = opened;
    return give_error(status, &problem, error);
}

void calla_session_free(struct calla_session *session)
{
    if (!session)
        return;
    struct backend *backend = session->owner->engine.backend;
    prefix_cache_free(session->cache);
    if (session->sequence)
        backend->ops->sequence_free(backend, session->sequence);
    token_list_clear(&session->prompt_ids);
    token_list_clear(&session->completion_ids);
    free(session);
}

void calla_cancel(struct calla_session *session)
{
    atomic_store(&session->cancel, true);
}

/* ---- requests -------------------------------------------------------------------------------- */

void calla_request_init(const struct calla_model *model, struct calla_request *request)
{
    model_request_init(&model->model, request);
}

static const struct {
    const char *name;
    enum calla_thinking thinking;
    double temperature, top_p;
    int32_t top_k;
    double presence_penalty;
} presets[] = {
    /* spec 1.2; min_p is 0 and the repetition penalty 1 in all of them */
    {"thinking", CALLA_THINKING_ON, 1.0, 0.95, 20, 1.5},
    {"coding", CALLA_THINKING_ON, 0.6, 0.95, 20, 0.0},
    {"chat", CALLA_THINKING_OFF, 0.7, 0.8, 20, 1.5},
    {"reasoning", CALLA_THINKING_OFF, 1.0, 1.0, 40, 2.0},
};
#define N_PRESETS (int)(sizeof presets / sizeof presets[0])

const char *calla_preset_name(int i)
{
    return i >= 0 && i < N_PRESETS ? presets[i].name : NULL;
}

enum calla_status calla_request_preset(struct calla_request *request, const char *name,
                                       struct calla_error *error)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(name, presets[i].name) != 0)
            continue;
        request->thinking = presets[i].thinking;
        request->temperature = presets[i].temperature;
        request->top_p = presets[i].top_p;
        request->top_k = presets[i].top_k;
        request->min_p = 0;
        request->presence_penalty = presets[i].presence_penalty;
        request->frequency_penalty = 0;
        request->repetition_penalty = 1;
        return CALLA_OK;
    }
    struct error problem;
    error_set(&problem, STATUS_INVALID,
              "preset: found '%s', wanted thinking, coding, chat or reasoning", name);
    return give_error(STATUS_INVALID, &problem, error);
}

static enum status check_range(const char *name, double value, double low, double high,
                               struct error *error)
{
    if (value >= low && value <= high) /* false for NaN */
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: found %.10g, wanted %.10g to %.10g", name, value,
                     low, high);
}

static enum status check_request(const struct calla_request *r, struct error *error)
{
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"max_tokens", r->max_tokens, 0, INT32_MAX},
        {"temperature", r->temperature, 0, 100},
        {"top_k", r->top_k, 0, INT32_MAX},
        {"top_p", r->top_p, TOP_P_MIN, 1},
        {"min_p", r->min_p, 0, 1},
        {"presence_penalty", r->presence_penalty, -2, 2},
        {"frequency_penalty", r->frequency_penalty, -2, 2},
        {"repetition_penalty", r->repetition_penalty, 1e-3, 1e3},
    };
    if (!r->messages == !r->prompt)
        return error_set(error, STATUS_INVALID, "request: wanted either messages or a prompt");
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        enum status status =
            check_range(ranges[i].name, ranges[i].value, ranges[i].low, ranges[i].high, error);
        if (status != STATUS_OK)
            return status;
    }
    for (int i = 0; i < r->n_stop; i++)
        if (!r->stop[i][0])
            return error_set(error, STATUS_INVALID, "stop: found an empty string");
        else if (utf8_valid_length(r->stop[i], strlen(r->stop[i])) != strlen(r->stop[i]))
            return error_set(error, STATUS_INVALID, "stop: found '%s', which is not UTF-8",
                             r->stop[i]); /* it could cut a character in two */
    return STATUS_OK;
}

/* ---- prompt ---------------------------------------------------------------------------------- */

static enum status encode_messages(const struct model *model, const struct calla_request *request,
                                   const json_t *tools, struct token_list *ids, struct error *error)
{
    json_t *given = NULL, *messages = NULL;
    struct prompt prompt = {0};
    enum status status =
        json_parse(request->messages, strlen(request->messages), "messages", &given, error);
    if (status == STATUS_OK)
        status = messages_prepare(given, &messages, error);
    struct template_options options = {
        .add_generation_prompt = true,
        .enable_thinking = request->thinking == CALLA_THINKING_OFF  ? TEMPLATE_FALSE
                           : request->thinking == CALLA_THINKING_ON ? TEMPLATE_TRUE
                                                                    : TEMPLATE_UNDEFINED,
        .preserve_thinking = request->preserve_thinking ? TEMPLATE_TRUE : TEMPLATE_UNDEFINED,
    };
    if (status == STATUS_OK)
        status = template_render(messages, tools, &options, &prompt, error);
    if (status == STATUS_OK)
        status = prompt_encode(&prompt, model->tokenizer, ids, error);
    prompt_clear(&prompt);
    json_decref(given);
    json_decref(messages);
    return status;
}

static enum status encode_request(const struct model *model, const struct calla_request *request,
                                  const json_t *tools, struct token_list *ids, struct error *error)
{
    if (request->messages)
        return encode_messages(model, request, tools, ids, error);
    struct text_span span = {request->prompt, request->prompt_length, true};
    return tokenizer_encode(model->tokenizer, &span, 1, ids, error);
}

/* The tools and the prompt's ids of a request that is right. *tools, which may be NULL, is owned by
 * the caller also after an error. */
static enum status prepare(const struct model *model, const struct calla_request *request,
                           json_t **tools, struct token_list *ids, struct error *error)
{
    enum status status = check_request(request, error);
    if (status == STATUS_OK && request->tools) {
        status = json_parse(request->tools, strlen(request->tools), "tools", tools, error);
        if (status == STATUS_OK)
            status = messages_check_tools(*tools, error);
    }
    return status == STATUS_OK ? encode_request(model, request, *tools, ids, error) : status;
}

enum calla_status calla_count_tokens(const struct calla_model *model,
                                     const struct calla_request *request, int32_t *tokens,
                                     struct calla_error *error)
{
    struct error problem;
    struct token_list ids = {0};
    json_t *parsed = NULL;
    enum status status = prepare(&model->model, request, &parsed, &ids, &problem);
    *tokens = status == STATUS_OK ? (int32_t)ids.length : 0;
    token_list_clear(&ids);
    json_decref(parsed);
    return give_error(status, &problem, error);
}

/* ---- generating ------------------------------------------------------------------------------ */

/* Empties a list and keeps its memory; that an earlier request ran out of memory is over. */
static void empty_list(struct token_list *list)
{
    list->length = 0;
    list->failed = false;
}

/* What a generation tells while it runs. */
struct run {
    struct calla_session *session;
    struct output *output;
};

static void take_token(void *context, const struct generated *generated)
{
    const struct run *run = context;
    token_list_append(&run->session->completion_ids, generated->token);
    if (model_is_stop(&run->session->owner->model, generated->token))
        run->output->end = REPLY_END_STOP;
    else
        output_push(run->output, generated->token);
}

static void report_progress(const struct calla_request *request, void *context,
                            const struct generation *generation)
{
    const struct generation_figures *figures = generation_figures(generation);
    if (request->progress)
        request->progress(context, figures->read, figures->prompt - figures->cached);
}

/* One chunk of the prompt. */
static void read_more(struct calla_session *session, const struct calla_request *request,
                      void *context, struct generation *generation)
{
    struct engine *engine = &session->owner->engine;
    struct error error;
    report_progress(request, context, generation);
    if (generation_read(generation, engine->backend->limits.max_chunk, &session->cancel, &error) ==
        STATUS_BUSY) /* a session has the pool for itself */
        generation_stop(generation, &error);
    if (generation_phase(generation) != GENERATION_READING)
        report_progress(request, context, generation);
}

static void decode_one(struct calla_session *session, struct generation *generation)
{
    struct backend *backend = session->owner->engine.backend;
    struct error error;
    struct row row;
    struct ranked ranked;
    enum status status = generation_row(generation, &row, &error);
    if (status == STATUS_OK)
        status = backend->ops->decode_step(backend, &row, 1, &ranked, &error);
    if (status != STATUS_OK)
        generation_stop(generation, &error);
    else if (!atomic_load(&session->cancel))
        generation_take(generation, &ranked, 0);
}

/* Reads and decodes until something ends the answer. */
static enum status run_generation(struct calla_session *session,
                                  const struct calla_request *request, void *context,
                                  struct output *output, struct generation *generation,
                                  struct error *error)
{
    generation_start(generation, session->cache, session->sequence);
    while (generation_phase(generation) != GENERATION_ENDED) {
        if (atomic_load(&session->cancel) || output->complete || output->refused)
            generation_stop(generation, NULL);
        else if (generation_phase(generation) == GENERATION_READING)
            read_more(session, request, context, generation);
        else
            decode_one(session, generation);
    }
    generation_finish(generation);
    switch (generation_end(generation)) {
    case GENERATION_FAILED:
        *error = *generation_error(generation);
        return error->status;
    case GENERATION_CANCELLED:
        return output->complete ? STATUS_OK : error_set(error, STATUS_CANCELLED, "cancelled");
    case GENERATION_LENGTH:
        output->end = REPLY_END_LENGTH;
        return STATUS_OK;
    case GENERATION_STOPPED:
        return STATUS_OK;
    }
    return STATUS_OK;
}

static void fill_options(const struct calla_session *session, const struct calla_request *request,
                         struct generation_options *options)
{
    const struct model *model = &session->owner->model;
    const struct token_list *prompt = &session->prompt_ids;
    *options = (struct generation_options){
        .prompt = prompt->data,
        .n_prompt = (int32_t)prompt->length,
        .sampling = {.temperature = request->temperature,
                     .top_k = request->top_k,
                     .top_p = request->top_p,
                     .min_p = request->min_p,
                     .presence_penalty = request->presence_penalty,
                     .frequency_penalty = request->frequency_penalty,
                     .repetition_penalty = request->repetition_penalty,
                     .seed = request->seed},
        .max_tokens = request->max_tokens > 0 ? request->max_tokens : -1,
        .stop_ids = model->stop_ids,
        .n_stop_ids = model->n_stop_ids,
        .n_top = -1,
        .emit = take_token,
    };
    prefix_places_find(&model->turns, prompt->data, (int32_t)prompt->length, &options->places);
}

static enum status generate(struct calla_session *session, const struct calla_request *request,
                            void *context, struct output *output, struct calla_result *result,
                            struct error *error)
{
    struct run run = {session, output};
    struct generation_options options;
    struct generation *generation;
    fill_options(session, request, &options);
    options.context = &run;
    enum status status = generation_new(&session->owner->engine, &options, &generation, error);
    if (status != STATUS_OK)
        return status;
    status = run_generation(session, request, context, output, generation, error);
    const struct generation_figures *figures = generation_figures(generation);
    double first = figures->generated > 0 ? figures->first : figures->end;
    result->cached_tokens = figures->cached;
    result->prompt_seconds = first - figures->started;
    result->completion_seconds = figures->end - first;
    generation_free(generation);
    if (status == STATUS_OK && session->completion_ids.failed)
        status = error_no_memory(error, "the answer");
    return status;
}

/* Where the answer's parts go. */
struct receiver {
    calla_callback *callback;
    void *context;
};

static bool pass_event(void *context, const struct reply_event *event)
{
    static const enum calla_event_kind kinds[] = {
        [REPLY_REASONING] = CALLA_REASONING,   [REPLY_CONTENT] = CALLA_CONTENT,
        [REPLY_CALL_BEGIN] = CALLA_CALL_BEGIN, [REPLY_ARGUMENTS] = CALLA_ARGUMENTS,
        [REPLY_CALL_END] = CALLA_CALL_END,
    };
    const struct receiver *receiver = context;
    const struct calla_event passed = {.kind = kinds[event->kind],
                                       .text = event->data,
                                       .length = event->length,
                                       .call = event->call};
    return !receiver->callback || receiver->callback(receiver->context, &passed) == 0;
}

/* What is held goes out, and how it ended is known. */
static enum status finish_request(struct output *output, enum status status,
                                  struct calla_result *result, struct error *error)
{
    static const enum calla_finish finishes[] = {
        [REPLY_FINISH_STOP] = CALLA_FINISH_STOP,
        [REPLY_FINISH_LENGTH] = CALLA_FINISH_LENGTH,
        [REPLY_FINISH_TOOL_CALLS] = CALLA_FINISH_TOOL_CALLS,
    };
    enum reply_finish how;
    bool cut = status != STATUS_OK;
    struct error problem;
    enum status end = output_finish(output, cut, &how, &problem);
    result->finish = cut ? CALLA_FINISH_CANCELLED : finishes[how];
    result->reasoning_tokens = output->reasoning_tokens;
    if (status == STATUS_OK && end == STATUS_OK && output->refused) {
        result->finish = CALLA_FINISH_CANCELLED;
        return error_set(error, STATUS_CANCELLED, "cancelled");
    }
    if (status == STATUS_OK && end != STATUS_OK)
        *error = problem;
    return status == STATUS_OK ? end : status;
}

static enum status run_request(struct calla_session *session, const struct calla_request *request,
                               calla_callback *callback, void *context, struct calla_result *result,
                               struct error *error)
{
    struct receiver receiver = {callback, context};
    const struct model *model = &session->owner->model;
    struct output output = {0};
    json_t *tools = NULL;
    struct prefix_cache_figures figures;
    empty_list(&session->prompt_ids);
    empty_list(&session->completion_ids);
    enum status status = prepare(model, request, &tools, &session->prompt_ids, error);
    const struct output_options options = {.raw = request->prompt != NULL,
                                           .thinking = request->thinking != CALLA_THINKING_OFF,
                                           .tools = tools,
                                           .stop = request->stop,
                                           .n_stop = request->n_stop};
    if (status == STATUS_OK)
        status = output_init(&output, model, &options, pass_event, &receiver, error);
    if (status == STATUS_OK) {
        result->prompt_tokens = (int32_t)session->prompt_ids.length;
        result->prompt_ids = session->prompt_ids.data;
        status = generate(session, request, context, &output, result, error);
        status = finish_request(&output, status, result, error);
        result->completion_tokens = (int32_t)session->completion_ids.length;
        result->completion_ids = session->completion_ids.data;
    }
    prefix_cache_read_figures(session->cache, &figures);
    result->cache_bytes = figures.used - figures.kv_bytes;
    output_clear(&output);
    json_decref(tools);
    return status;
}

enum calla_status calla_generate(struct calla_session *session, const struct calla_request *request,
                                 calla_callback *callback, void *context,
                                 struct calla_result *result, struct calla_error *error)
{
    struct error problem;
    struct calla_result unused;
    result = result ? result : &unused;
    *result = (struct calla_result){0};
    enum status status = run_request(session, request, callback, context, result, &problem);
    atomic_store(&session->cancel, false);
    return give_error(status, &problem, error);
}
