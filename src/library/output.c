#include "library/output.h"

#include <string.h>

static void emit(struct output *output, const struct reply_event *event)
{
    if (output->refused || (event->kind <= REPLY_CONTENT && event->length == 0))
        return;
    output->refused = output->sink && !output->sink(output->context, event);
}

static void emit_text(struct output *output)
{
    output->failed |= output->content.failed;
    emit(output, &(struct reply_event){.kind = REPLY_CONTENT,
                                       .data = output->content.data,
                                       .length = output->content.length,
                                       .call = -1});
}

/* Content goes through the stop strings; once one is found nothing more comes out. */
static void emit_content(struct output *output, const char *text, size_t length)
{
    if (output->complete)
        return;
    bytes_reset(&output->content);
    output->complete = stop_matcher_push(&output->stop, text, length, &output->content);
    emit_text(output);
}

/* What begins a stop string is none when something else than content follows. */
static void flush_content(struct output *output)
{
    if (output->complete)
        return;
    bytes_reset(&output->content);
    output->complete = stop_matcher_flush(&output->stop, &output->content);
    emit_text(output);
}

static void on_reply(void *context, const struct reply_event *event)
{
    struct output *output = context;
    output->in_reasoning = event->kind == REPLY_REASONING;
    if (event->kind == REPLY_CONTENT) {
        emit_content(output, event->data, event->length);
        return;
    }
    flush_content(output);
    if (output->complete)
        return;
    emit(output, event);
    output->n_calls += event->kind == REPLY_CALL_END;
    output->complete = output->n_calls > 0 && output->options.one_call;
}

enum status output_init(struct output *output, const struct model *model,
                        const struct output_options *options, output_sink *sink, void *context,
                        struct error *error)
{
    *output =
        (struct output){.model = model, .options = *options, .sink = sink, .context = context};
    detokenizer_init(&output->detokenizer, model->tokenizer, true);
    stop_matcher_init(&output->stop, options->stop, options->n_stop);
    for (int tag = 0; tag < REPLY_N_TAGS; tag++)
        output->tag_ids[tag] = tokenizer_added_id(model->tokenizer, reply_tag_text[tag]);
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

static void push_tag(struct output *output, enum reply_tag tag)
{
    detokenizer_finish(&output->detokenizer, &output->piece);
    pass_piece(output);
    reply_push_tag(output->parser, tag);
    if (tag == REPLY_THINK_CLOSE) /* last: the tag may bring out text that was held */
        output->in_reasoning = false;
    else if (json_array_size(output->options.tools) > 0 && tag != REPLY_THINK_OPEN)
        output->in_call = tag == REPLY_TOOL_CALL_OPEN;
}

void output_push(struct output *output, int32_t token)
{
    for (int tag = 0; output->parser && tag < REPLY_N_TAGS; tag++)
        if (token == output->tag_ids[tag]) {
            push_tag(output, tag);
            return;
        }
    if (output->in_reasoning)
        output->reasoning_tokens++;
    detokenizer_push(&output->detokenizer, token, &output->piece);
    pass_piece(output);
}

enum status output_finish(struct output *output, bool cut, enum reply_finish *finish,
                          struct error *error)
{
    enum reply_end end = cut ? REPLY_END_LENGTH : output->end;
    enum status status = STATUS_OK;
    *finish = end == REPLY_END_LENGTH ? REPLY_FINISH_LENGTH : REPLY_FINISH_STOP;
    detokenizer_finish(&output->detokenizer, &output->piece);
    pass_piece(output);
    if (output->parser)
        status = reply_finish(output->parser, end, finish, error);
    flush_content(output);
    if (output->complete) /* whatever the model wrote behind it */
        *finish = output->n_calls > 0 ? REPLY_FINISH_TOOL_CALLS : REPLY_FINISH_STOP;
    return output->failed ? error_no_memory(error, "the answer") : status;
}

void output_clear(struct output *output)
{
    reply_free(output->parser);
    stop_matcher_clear(&output->stop);
    bytes_clear(&output->piece);
    bytes_clear(&output->content);
}
