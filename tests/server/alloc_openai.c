/* Allocations fail one by one while requests are parsed and answers are built. A request that meets
 * it is answered with 500. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "server/openai_answer.h"
#include "server/openai_request.h"
#include "server/sse.h"
#include "support/alloc.h"

static const struct openai_limits limits = {.body_size = 1 << 20, .vocabulary = 248077};

static enum status no_memory(const struct openai_problem *problem, struct error *error)
{
    return problem->status == 500 && !problem->code
               ? error_set(error, STATUS_NO_MEMORY, "%s", problem->message)
               : error_set(error, STATUS_INVALID, "status %d: %s", problem->status,
                           problem->message);
}

static enum status read_chat(void *context, struct error *error)
{
    const char *body = context;
    struct openai_chat_request request;
    struct openai_problem problem;
    struct prompt prompt = {0};
    enum status status = STATUS_OK;
    if (!openai_chat_parse(body, strlen(body), &limits, &request, &problem) ||
        !openai_conversation_render(&request.conversation, &prompt, &problem))
        status = no_memory(&problem, error);
    prompt_clear(&prompt);
    openai_chat_clear(&request);
    return status;
}

static enum status read_completion(void *context, struct error *error)
{
    const char *body = context;
    struct openai_completion_request request;
    struct openai_problem problem;
    if (!openai_completion_parse(body, strlen(body), &limits, &request, &problem))
        return no_memory(&problem, error);
    openai_completion_clear(&request);
    return STATUS_OK;
}

static enum status read_tokens(void *context, struct error *error)
{
    const char *body = context;
    struct openai_tokenize_request request;
    struct openai_detokenize_request ids;
    struct openai_problem problem;
    static const char tokens[] = "{\"tokens\": [1, 2, 3]}";
    if (!openai_tokenize_parse(body, strlen(body), &limits, &request, &problem))
        return no_memory(&problem, error);
    openai_tokenize_clear(&request);
    if (!openai_detokenize_parse(tokens, strlen(tokens), &limits, &ids, &problem))
        return no_memory(&problem, error);
    openai_detokenize_clear(&ids);
    return STATUS_OK;
}

#define TOOL(name) "{\"type\": \"function\", \"function\": {\"name\": \"" name "\"}}"

static void requests(void **state)
{
    (void)state;
    size_t n = alloc_sweep(
        read_chat,
        "{\"model\": \"m\", \"stop\": [\"a\"], \"stop_token_ids\": [1, 2], \"logit_bias\": {\"5\": "
        "1}, \"tools\": [" TOOL("f") "," TOOL(
            "g") "], \"tool_choice\": {\"type\": "
                 "\"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\", \"tools\": [" TOOL(
                     "g") "]}}, "
                          "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                          "\"text\": \"a\", "
                          "\"prompt_cache_breakpoint\": {\"mode\": \"explicit\"}}]}]}",
        0);
    assert_true(n > 20);
    n = alloc_sweep(read_completion,
                    "{\"model\": \"m\", \"prompt\": [\"a\", [1, 2], [3]], \"stop_token_ids\": [1]}",
                    0);
    assert_true(n >= 4);
    n = alloc_sweep(
        read_tokens,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [" TOOL("f") "]}",
        0);
    assert_true(n > 5);
}

static enum status build(void *context, struct error *error)
{
    (void)context;
    static const struct openai_usage usage = {1, 2, 0, 0};
    static const struct openai_timings timings = {1, 2, 0, 5, 6};
    static const struct openai_logprob token = {"a", 1, -1};
    struct openai_answer answer;
    struct openai_text_logprobs logprobs = {0};
    struct bytes entries = {0}, out = {0};
    struct reply_result reply = {0};
    struct openai_chat_choice choice = {&reply, REPLY_FINISH_STOP, &entries};
    struct openai_text_choice text = {"a", 1, REPLY_FINISH_STOP, &logprobs};
    bytes_append_text(&reply.content, "answer");
    openai_answer_init(&answer, OPENAI_CHAT_CHUNK, 1, 2, "model", "fingerprint");
    openai_chat_logprob(&token, &token, 1, &entries);
    for (int i = 0; i < 3; i++)
        openai_text_logprob(&logprobs, &token, true, &token, 1);
    openai_chat_print(&answer, &choice, 1, &usage, &timings, &out);
    openai_text_print(&answer, &text, 1, &usage, &timings, &out);
    sse_begin(&out);
    openai_chunk_content(&answer, 0, "a", 1, &entries, &out);
    sse_end(&out);
    /* whatever ran out of memory shows in what is sent */
    enum status status = out.failed ? error_no_memory(error, "the answer") : STATUS_OK;
    openai_answer_clear(&answer);
    openai_text_logprobs_clear(&logprobs);
    bytes_clear(&entries);
    bytes_clear(&out);
    reply_result_clear(&reply);
    return status;
}

static void answers(void **state)
{
    (void)state;
    assert_true(alloc_sweep(build, NULL, 0) > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests), cmocka_unit_test(answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
