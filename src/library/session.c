/* A session: one sequence, what it keeps of earlier prompts, and generations one after the other.
 */
#include <stdlib.h>

#include "library/handles.h"
#include "library/output.h"

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
    return library_error(status, &problem, error);
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
    const struct interrupt interrupt = {.cancel = &session->cancel};
    if (generation_read(generation, engine->backend->limits.max_chunk, &interrupt, &error) ==
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
    enum status status = request_prepare(model, request, &tools, &session->prompt_ids, error);
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
    return library_error(status, &problem, error);
}
