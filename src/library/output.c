#include "library/output.h"

#include <string.h>

static void emit(struct output *output, enum calla_event_kind kind, const char *text, size_t length,
                 int call)
{
    if (kind <= CALLA_CONTENT && length == 0)
        return;
    struct calla_event event = {.kind = kind, .text = text, .length = length, .call = call};
    if (!output->refused && output->callback && output->callback(output->context, &event) != 0)
        output->refused = true;
}

/* Content goes through the stop strings; once one is found nothing more comes out. */
static void emit_content(struct output *output, const char *text, size_t length)
{
    if (output->stop_found)
        return;
    bytes_reset(&output->content);
    output->stop_found = stop_matcher_push(&output->stop, text, length, &output->content);
    output->failed |= output->content.failed;
    emit(output, CALLA_CONTENT, output->content.data, output->content.length, -1);
}

/* What begins a stop string is none when something else than content follows. */
static void flush_content(struct output *output)
{
    if (output->stop_found)
        return;
    bytes_reset(&output->content);
    output->stop_found = stop_matcher_flush(&output->stop, &output->content);
    output->failed |= output->content.failed;
    emit(output, CALLA_CONTENT, output->content.data, output->content.length, -1);
}

static void on_reply(void *context, const struct reply_event *event)
{
    struct output *output = context;
    static const enum calla_event_kind kinds[] = {
        [REPLY_REASONING] = CALLA_REASONING,   [REPLY_CONTENT] = CALLA_CONTENT,
        [REPLY_CALL_BEGIN] = CALLA_CALL_BEGIN, [REPLY_ARGUMENTS] = CALLA_ARGUMENTS,
        [REPLY_CALL_END] = CALLA_CALL_END,
    };
    output->in_reasoning = event->kind == REPLY_REASONING;
    if (event->kind == REPLY_CONTENT) {
        emit_content(output, event->data, event->length);
        return;
    }
    flush_content(output);
    if (!output->stop_found)
        emit(output, kinds[event->kind], event->data, event->length, event->call);
}

enum status output_init(struct output *output, const struct model *model,
                        const struct output_options *options, calla_callback *callback,
                        void *context, struct error *error)
{
    *output = (struct output){.model = model, .callback = callback, .context = context};
    detokenizer_init(&output->detokenizer, model->tokenizer, true);
    stop_matcher_init(&output->stop, options->stop, options->n_stop);
    for (int tag = 0; tag < REPLY_N_TAGS; tag++)
        output->tag_ids[tag] = tokenizer_added_id(model->tokenizer, reply_tag_text[tag]);
    output->has_tools = json_array_size(options->tools) > 0;
    if (options->raw)
        return STATUS_OK;
    output->in_reasoning = options->thinking;
    output->parser = reply_new(options->thinking, options->tools, on_reply, output);
    return output->parser ? STATUS_OK : error_no_memory(error, "the reply parser");
}

/* Gives the text in `piece` to whoever reads it. */
static void pass_piece(struct output *output)
{
    output->failed |= output->piece.failed;
    if (output->parser)
        reply_push_text(output->parser, output->piece.data, output->piece.length);
    else
        emit_content(output, output->piece.data, output->piece.length);
    bytes_reset(&output->piece);
}

void output_push(struct output *output, int32_t token)
{
    for (int tag = 0; output->parser && tag < REPLY_N_TAGS; tag++)
        if (token == output->tag_ids[tag]) {
            detokenizer_finish(&output->detokenizer, &output->piece);
            pass_piece(output);
            reply_push_tag(output->parser, tag);
            if (tag == REPLY_THINK_CLOSE) /* last: the tag may bring out text that was held */
                output->in_reasoning = false;
            if (output->has_tools && (tag == REPLY_TOOL_CALL_OPEN || tag == REPLY_TOOL_CALL_CLOSE))
                output->in_call = tag == REPLY_TOOL_CALL_OPEN;
            return;
        }
    if (output->in_reasoning)
        output->reasoning_tokens++;
    detokenizer_push(&output->detokenizer, token, &output->piece);
    pass_piece(output);
}

enum status output_finish(struct output *output, enum status status, enum calla_finish *finish,
                          struct error *error)
{
    static const enum calla_finish finishes[] = {
        [REPLY_FINISH_STOP] = CALLA_FINISH_STOP,
        [REPLY_FINISH_LENGTH] = CALLA_FINISH_LENGTH,
        [REPLY_FINISH_TOOL_CALLS] = CALLA_FINISH_TOOL_CALLS,
    };
    bool cut = status != STATUS_OK || output->refused;
    enum reply_end end = cut ? REPLY_END_LENGTH : output->end;
    enum reply_finish how = end == REPLY_END_LENGTH ? REPLY_FINISH_LENGTH : REPLY_FINISH_STOP;
    enum status ended = STATUS_OK;
    detokenizer_finish(&output->detokenizer, &output->piece);
    pass_piece(output);
    if (output->parser)
        ended = reply_finish(output->parser, end, &how, error);
    flush_content(output);
    *finish = cut ? CALLA_FINISH_CANCELLED : output->stop_found ? CALLA_FINISH_STOP : finishes[how];
    if (output->failed)
        ended = error_no_memory(error, "the answer");
    if (ended == STATUS_OK && output->refused)
        ended = error_set(error, STATUS_CANCELLED, "cancelled");
    return ended;
}

void output_clear(struct output *output)
{
    reply_free(output->parser);
    stop_matcher_clear(&output->stop);
    bytes_clear(&output->piece);
    bytes_clear(&output->content);
}
