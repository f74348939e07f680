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
#include "engine/prefix_cache.h"
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
    struct cached_sequence *cached; /* the sequence, as the cache knows it */
    float *row;                     /* [vocab_size], scratch of the sampler */
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
    session->row = malloc((size_t)model->engine.shape->vocab_size * sizeof *session->row);
    if (!session->row)
        return error_no_memory(error, "the session");
    enum status status = backend->ops->sequence_new(backend, &session->sequence, error);
    struct prefix_cache_options options = {.budget = model->cache_bytes};
    if (status == STATUS_OK)
        status = prefix_cache_new(&model->engine, &options, &session->cache, error);
    if (status == STATUS_OK)
        status = prefix_cache_add(session->cache, session->sequence, &session->cached, error);
    return status;
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
    prefix_cache_remove(session->cache, session->cached);
    prefix_cache_free(session->cache);
    if (session->sequence)
        backend->ops->sequence_free(backend, session->sequence);
    free(session->row);
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
    const struct config *config = checkpoint_config(model->model.checkpoint);
    *request = (struct calla_request){
        .temperature = config->do_sample ? config->temperature : 0,
        .top_k = config->top_k,
        .top_p = config->top_p,
        .repetition_penalty = 1,
    };
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

/* Draws and reads tokens until something ends the answer. */
static enum status generate_tokens(struct calla_session *session,
                                   const struct calla_request *request, struct sampler *sampler,
                                   struct ranked *ranked, struct output *output,
                                   struct error *error)
{
    struct engine *engine = &session->owner->engine;
    int32_t room = session->sequence->capacity - session->sequence->position;
    int32_t limit =
        request->max_tokens > 0 && request->max_tokens < room ? request->max_tokens : room;
    for (int32_t n = 0; n < limit; n++) {
        if (atomic_load(&session->cancel))
            return error_set(error, STATUS_CANCELLED, "cancelled");
        int32_t token;
        enum status status = engine_sample(engine, sampler, session->sequence, ranked, 0,
                                           session->row, &token, error);
        if (status != STATUS_OK)
            return status;
        token_list_append(&session->completion_ids, token);
        if (session->completion_ids.failed)
            return error_no_memory(error, "the answer");
        if (model_is_stop(&session->owner->model, token)) {
            output->end = REPLY_END_STOP;
            return STATUS_OK;
        }
        output_push(output, token);
        if (output->stop_found || output->refused)
            return STATUS_OK;
        if (n + 1 == limit)
            break; /* nothing will be drawn after this token: it need not be read */
        status = prefix_cache_decode(session->cache, session->cached, token, ranked, error);
        if (status != STATUS_OK)
            return status;
    }
    output->end = REPLY_END_LENGTH;
    return STATUS_OK;
}

static enum status generate(struct calla_session *session, const struct calla_request *request,
                            void *context, struct output *output, struct calla_result *result,
                            struct error *error)
{
    struct calla_model *owner = session->owner;
    const struct token_list *prompt = &session->prompt_ids;
    struct sampling sampling = {
        .temperature = request->temperature,
        .top_k = request->top_k,
        .top_p = request->top_p,
        .min_p = request->min_p,
        .presence_penalty = request->presence_penalty,
        .frequency_penalty = request->frequency_penalty,
        .repetition_penalty = request->repetition_penalty,
        .seed = request->seed,
    };
    struct sampler *sampler = NULL;
    struct ranked ranked;
    struct prefill_watch watch = {
        .cancel = &session->cancel, .progress = request->progress, .context = context};
    double start = clock_seconds();
    enum status status = sampler_new(&sampling, owner->engine.n_valid_ids, &sampler, error);
    if (status != STATUS_OK)
        return status;
    sampler_add_prompt(sampler, prompt->data, (int64_t)prompt->length);
    struct prefix_place places[PREFIX_PLACES];
    int n_places =
        prefix_places_find(&owner->model.turns, prompt->data, (int32_t)prompt->length, places);
    status =
        prefix_cache_prefill(session->cache, session->cached, prompt->data, (int32_t)prompt->length,
                             places, n_places, &ranked, &watch, &result->cached_tokens, error);
    double read = clock_seconds();
    result->prompt_seconds = read - start;
    if (status == STATUS_OK)
        status = generate_tokens(session, request, sampler, &ranked, output, error);
    result->completion_seconds = clock_seconds() - read;
    sampler_free(sampler);
    return status;
}

static enum status run_request(struct calla_session *session, const struct calla_request *request,
                               calla_callback *callback, void *context, struct calla_result *result,
                               struct error *error)
{
    const struct model *model = &session->owner->model;
    struct output output = {0};
    json_t *tools = NULL;
    struct prefix_cache_figures figures;
    empty_list(&session->prompt_ids);
    empty_list(&session->completion_ids);
    enum status status = prepare(model, request, &tools, &session->prompt_ids, error);
    if (status == STATUS_OK)
        status = output_init(&output, model, request, tools, callback, context, error);
    if (status == STATUS_OK) {
        result->prompt_tokens = (int32_t)session->prompt_ids.length;
        result->prompt_ids = session->prompt_ids.data;
        status = generate(session, request, context, &output, result, error);
        enum status end = output_finish(&output, status, &result->finish, error);
        status = status == STATUS_OK ? end : status;
        result->completion_tokens = (int32_t)session->completion_ids.length;
        result->completion_ids = session->completion_ids.data;
        result->reasoning_tokens = output.reasoning_tokens;
    }
    prefix_cache_read_figures(session->cache, &figures);
    result->cache_bytes = figures.used;
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
