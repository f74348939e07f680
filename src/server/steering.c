#include "server/steering.h"

#include <math.h>

#include "text/reply.h"

bool steering_is_needed(const struct steering_options *options)
{
    return (options->thinking && options->thinking_budget >= 0) || options->call;
}

/* Whether the thought has no more room than its last line break needs. */
static bool is_spent(const struct steering *s)
{
    int32_t last = s->newline >= 0 ? 1 : 0; /* after a first token, too */
    return s->options.thinking_budget >= 0 && s->thought + last >= s->options.thinking_budget;
}

/* Ends the thought as the template writes it. */
static void close_thought(struct steering *s)
{
    if (s->thought > 0 && s->newline >= 0)
        s->queue[s->n_queue++] = s->newline;
    s->queue[s->n_queue++] = s->think_close;
    if (s->blank_line >= 0)
        s->queue[s->n_queue++] = s->blank_line;
}

static int32_t next(void *context)
{
    struct steering *s = context;
    if (s->n_queue == 0 && s->in_thought && s->think_close >= 0 && is_spent(s))
        close_thought(s);
    if (s->n_queue > 0)
        return s->queue[0];
    if (!s->options.call)
        return GUIDE_FREE;
    if (s->in_thought) /* it may think, and call, but not end */
        return s->called ? GUIDE_FREE : GUIDE_MASK;
    if (!s->called)
        return s->tool_call;
    return call_opening_is_complete(&s->opening) ? GUIDE_FREE : GUIDE_MASK;
}

static void mask(void *context, float *logits, int32_t n)
{
    const struct steering *s = context;
    if (s->in_thought) {
        for (int i = 0; i < s->model->n_stop_ids; i++)
            logits[s->model->stop_ids[i]] = -INFINITY;
        return;
    }
    for (int32_t id = 0; id < n; id++)
        if (!call_opening_allows(&s->opening, id))
            logits[id] = -INFINITY;
}

static void add(void *context, int32_t token)
{
    struct steering *s = context;
    if (s->n_queue > 0) {
        s->n_queue--;
        for (int i = 0; i < s->n_queue; i++)
            s->queue[i] = s->queue[i + 1];
    } else if (s->called && !call_opening_is_complete(&s->opening)) {
        call_opening_add(&s->opening, token);
    }
    s->thought += s->in_thought;
    if (token == s->think_close && s->in_thought) {
        s->in_thought = false;
        if (s->options.call && s->n_queue == 0 && s->blank_line >= 0)
            s->queue[s->n_queue++] = s->blank_line;
    } else if (token == s->tool_call) {
        s->in_thought = false; /* as the reply parser reads it */
        s->called = true;
    }
}

enum status steering_init(struct steering *steering, const struct model *model,
                          const struct steering_options *options, struct error *error)
{
    const struct tokenizer *tokenizer = model->tokenizer;
    *steering = (struct steering){.model = model,
                                  .options = *options,
                                  .in_thought = options->thinking,
                                  .newline = model->turns.newline};
    steering->think_close = tokenizer_added_id(tokenizer, reply_tag_text[REPLY_THINK_CLOSE]);
    steering->tool_call = tokenizer_added_id(tokenizer, reply_tag_text[REPLY_TOOL_CALL_OPEN]);
    if (options->call && steering->tool_call < 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "tool_choice: this model's tokenizer has no token %s",
                         reply_tag_text[REPLY_TOOL_CALL_OPEN]);
    enum status status = model_find_token(model, "\n\n", &steering->blank_line, error);
    if (status != STATUS_OK || !options->call)
        return status;
    return call_opening_init(&steering->opening, tokenizer, options->names, options->n_names,
                             error);
}

void steering_clear(struct steering *steering)
{
    call_opening_clear(&steering->opening);
}

struct guide steering_guide(struct steering *steering)
{
    return (struct guide){next, mask, add, steering};
}
