/* libFuzzer: a request's body. The first byte chooses what parses it; what is accepted must keep
 * what server/openai_request.h promises and render to a prompt, what is refused must have a whole
 * problem, whose object reads back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "server/openai_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct openai_limits limits = {.body_size = 1 << 20, .vocabulary = 600};

static void want(bool true_thing)
{
    if (!true_thing)
        abort();
}

static void check_problem(const struct openai_problem *problem)
{
    struct bytes out = {0};
    json_t *object = NULL;
    want(problem->status == 400 || problem->status == 413);
    want(strcmp(problem->type, "invalid_request_error") == 0);
    want(problem->message[0] != '\0' && strlen(problem->message) < sizeof problem->message);
    openai_problem_print(problem, &out);
    want(!out.failed && json_parse(out.data, out.length, "problem", &object, NULL) == STATUS_OK);
    const json_t *message = json_object_get(json_object_get(object, "error"), "message");
    want(strcmp(json_string_value(message), problem->message) == 0);
    json_decref(object);
    bytes_clear(&out);
}

static void check_number(struct openai_number number, double low, double high)
{
    want(!number.given || (number.value >= low && number.value <= high));
}

static void check_integer(struct openai_integer integer, int64_t low, int64_t high)
{
    want(!integer.given || (integer.value >= low && integer.value <= high));
}

static void check_ids(const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        want(ids[i] >= 0 && ids[i] < limits.vocabulary);
}

static void check_generation(const struct openai_generation *g)
{
    want(g->model && (!g->include_usage || g->stream));
    check_number(g->temperature, 0, 2);
    check_number(g->top_p, 1e-310, 1);
    check_number(g->min_p, 0, 1);
    check_number(g->presence_penalty, -2, 2);
    check_number(g->frequency_penalty, -2, 2);
    check_number(g->repetition_penalty, 1e-310, 1.7e308);
    check_integer(g->n, 1, OPENAI_N_MAX);
    check_integer(g->max_tokens, 0, INT64_MAX);
    check_integer(g->min_tokens, 0, g->max_tokens.given ? g->max_tokens.value : INT64_MAX);
    check_integer(g->top_k, INT32_MIN, INT32_MAX);
    want(g->n_stop >= 0 && g->n_stop <= OPENAI_STOP_MAX);
    for (int i = 0; i < g->n_stop; i++)
        want(g->stop[i][0] != '\0');
    want(g->n_stop_ids <= OPENAI_STOP_IDS_MAX);
    check_ids(g->stop_ids, (size_t)g->n_stop_ids);
    for (int i = 0; i < g->n_logit_bias; i++) {
        check_ids(&g->logit_bias[i].id, 1);
        want(g->logit_bias[i].bias >= -100 && g->logit_bias[i].bias <= 100);
        for (int k = 0; k < i && i < 50; k++)
            want(g->logit_bias[k].id != g->logit_bias[i].id);
    }
}

static void check_conversation(const struct openai_conversation *conversation)
{
    struct prompt prompt = {0};
    struct openai_problem problem;
    enum openai_tool_choice choice = conversation->tool_choice;
    want((choice == OPENAI_TOOLS_NONE) == (conversation->tools == NULL));
    want((choice == OPENAI_TOOLS_NAMED) == (conversation->tool_name != NULL));
    want(!conversation->tools || json_array_size(conversation->tools) > 0);
    if (openai_conversation_render(conversation, &prompt, &problem)) {
        want(!prompt.text.failed);
        size_t before = 0;
        for (size_t i = 0; i < prompt.n_breakpoints; i++) {
            size_t place = prompt.breakpoints[i];
            want(place > before && place <= prompt.text.length);
            want(utf8_valid_length(prompt.text.data, place) == place);
            before = place;
        }
    } else {
        check_problem(&problem);
    }
    prompt_clear(&prompt);
}

static void chat(const char *body, size_t length)
{
    struct openai_chat_request request;
    struct openai_problem problem;
    if (!openai_chat_parse(body, length, &limits, &request, &problem)) {
        check_problem(&problem);
        return;
    }
    check_generation(&request.generation);
    check_integer(request.top_logprobs, 0, request.logprobs ? OPENAI_TOP_LOGPROBS_MAX : -1);
    check_integer(request.thinking_budget, 0, INT64_MAX);
    check_conversation(&request.conversation);
    openai_chat_clear(&request);
}

static void completion(const char *body, size_t length)
{
    struct openai_completion_request request;
    struct openai_problem problem;
    if (!openai_completion_parse(body, length, &limits, &request, &problem)) {
        check_problem(&problem);
        return;
    }
    check_generation(&request.generation);
    check_integer(request.logprobs, 0, 5);
    want(request.n_prompts > 0 && request.n_prompts <= OPENAI_CHOICES_MAX);
    want(request.generation.max_tokens.given && !(request.suffix && request.echo));
    for (size_t i = 0; i < request.n_prompts; i++) {
        want(!request.prompts[i].text || request.prompts[i].n_ids == 0);
        check_ids(request.prompts[i].ids, request.prompts[i].n_ids);
    }
    openai_completion_clear(&request);
}

static void tokens(const char *body, size_t length, bool template)
{
    struct openai_tokenize_request request;
    struct openai_problem problem;
    if (!(template ? openai_template_parse : openai_tokenize_parse)(body, length, &limits, &request,
                                                                    &problem)) {
        check_problem(&problem);
        return;
    }
    if (request.prompt)
        want(!template && utf8_valid_length(request.prompt, request.length) == request.length);
    else
        check_conversation(&request.conversation);
    openai_tokenize_clear(&request);
}

static void detokenize(const char *body, size_t length)
{
    struct openai_detokenize_request request;
    struct openai_problem problem;
    if (openai_detokenize_parse(body, length, &limits, &request, &problem))
        check_ids(request.ids, request.n_ids);
    else
        check_problem(&problem);
    openai_detokenize_clear(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *body = (const char *)data + 1;
    switch (data[0]) {
    case 'c':
        completion(body, size - 1);
        break;
    case 't':
    case 'a':
        tokens(body, size - 1, data[0] == 'a');
        break;
    case 'd':
        detokenize(body, size - 1);
        break;
    default:
        chat(body, size - 1);
    }
    return 0;
}
