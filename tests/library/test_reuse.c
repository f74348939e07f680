/* A session that is used again answers as a fresh one does, seeded sampling and penalties included,
 * and reads no more than it must. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "calla.h"
#include "support/sanitized.h"

#define MAX_TOKENS 6

static struct calla_model *model, *plain_model; /* with a cache and without */
static struct calla_session *session, *plain;

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct calla_error error_;                                                                 \
        struct calla_error *e = &error_;                                                           \
        if ((call) != CALLA_OK)                                                                    \
            fail_msg("%s", e->message);                                                            \
    } while (0)

static int setup(void **state)
{
    (void)state;
    /* ref is the same bit for bit; the sanitizers look at memory, with the fastest one */
    struct calla_open_options options = {.backend = SANITIZED ? NULL : "ref", .max_context = 400};
    OK(calla_open("models/tiny", &options, &model, e));
    options.cache_bytes = -1;
    OK(calla_open("models/tiny", &options, &plain_model, e));
    OK(calla_session_new(model, &session, e));
    OK(calla_session_new(plain_model, &plain, e));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    calla_session_free(session);
    calla_session_free(plain);
    calla_close(model);
    calla_close(plain_model);
    return 0;
}

static struct calla_request new_request(const char *messages)
{
    struct calla_request request;
    calla_request_init(model, &request);
    request.messages = messages;
    request.max_tokens = MAX_TOKENS;
    request.temperature = 1;
    request.seed = 7;
    request.presence_penalty = 0.5;
    request.repetition_penalty = 1.1;
    return request;
}

/* Asks both and compares; gives the result of the session with a cache. */
static struct calla_result ask(const struct calla_request *request)
{
    struct calla_result found, wanted;
    int32_t counted;
    OK(calla_generate(session, request, NULL, NULL, &found, e));
    OK(calla_generate(plain, request, NULL, NULL, &wanted, e));
    OK(calla_count_tokens(model, request, &counted, e));
    assert_int_equal(found.prompt_tokens, counted);
    assert_int_equal(found.prompt_tokens, wanted.prompt_tokens);
    if (!SANITIZED) {
        assert_int_equal(found.finish, wanted.finish);
        assert_int_equal(found.completion_tokens, wanted.completion_tokens);
        assert_memory_equal(found.completion_ids, wanted.completion_ids,
                            (size_t)found.completion_tokens * sizeof *found.completion_ids);
    }
    assert_int_equal(wanted.cached_tokens, 0);
    assert_int_equal(wanted.cache_bytes, 0);
    assert_true(found.cache_bytes > 0);
    return found;
}

#define SYSTEM "{\"role\": \"system\", \"content\": \"Be brief.\"}"
#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text)                                                                            \
    "{\"role\": \"assistant\", \"content\": \"" text "\", \"reasoning_content\": \"Well.\"}"

static void test_conversation(void **state)
{
    (void)state;
    struct calla_request request = new_request("[" SYSTEM ", " USER("Define hot.") "]");
    struct calla_result first = ask(&request);
    assert_int_equal(first.cached_tokens, 0);
    struct calla_result again = ask(&request); /* but for `<think>\n` */
    assert_int_equal(again.cached_tokens, first.prompt_tokens - 2);
    request.seed = 8; /* another answer to the same prompt */
    again = ask(&request);
    assert_int_equal(again.cached_tokens, first.prompt_tokens - 2);
    request.messages =
        "[" SYSTEM ", " USER("Define hot.") ", " ASSISTANT("Warm.") ", " USER("And cold?") "]";
    struct calla_result second = ask(&request); /* reads the answer without its reasoning */
    assert_int_equal(second.cached_tokens, first.prompt_tokens - 2);
    request.thinking = CALLA_THINKING_OFF; /* the prompt ends in an empty thought */
    again = ask(&request);
    assert_int_equal(again.cached_tokens, second.prompt_tokens - 2);
    request.messages =
        "[" SYSTEM ", " USER("Define hot.") ", " ASSISTANT("Warm.") ", " USER("And ice?") "]";
    struct calla_result edited = ask(&request);
    int32_t last_turn;
    struct calla_request alone = request;
    alone.messages = "[" USER("And ice?") "]";
    OK(calla_count_tokens(model, &alone, &last_turn, e));
    assert_int_equal(edited.prompt_tokens - edited.cached_tokens, last_turn);
    request.tools = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
    again = ask(&request);
    assert_int_equal(again.cached_tokens, 0); /* tools stand at the beginning */
}

/* Raw prompts have no turns: they are kept but for their last token. */
static void test_raw_prompts(void **state)
{
    (void)state;
    struct calla_request request = new_request(NULL);
    request.prompt = "The opposite of good is";
    request.prompt_length = strlen(request.prompt);
    request.temperature = 0;
    struct calla_result first = ask(&request);
    assert_int_equal(first.cached_tokens, 0); /* other than any conversation from the first token */
    int32_t tokens = first.prompt_tokens;
    request.prompt = "The opposite of good is what";
    request.prompt_length = strlen(request.prompt);
    struct calla_result second = ask(&request);
    assert_int_equal(second.cached_tokens, tokens - 1);
    assert_true(second.prompt_tokens > tokens);
}

static int stop_at_once(void *context, const struct calla_event *event)
{
    (void)context, (void)event;
    return 1;
}

static void cancel_session(void *context, int32_t read, int32_t total)
{
    (void)context, (void)read, (void)total;
    calla_cancel(session);
}

static void test_cancelled(void **state)
{
    (void)state;
    struct calla_request request = new_request("[" USER("Define hot.") "]");
    struct calla_result result, first = ask(&request);
    assert_int_equal(calla_generate(session, &request, stop_at_once, NULL, &result, NULL),
                     CALLA_CANCELLED);
    ask(&request);
    request.messages = "[" USER("Define hot.") ", " ASSISTANT("Warm.") ", " USER("And cold?") "]";
    struct calla_request cancelled = request;
    cancelled.progress = cancel_session;
    assert_int_equal(calla_generate(session, &cancelled, NULL, NULL, &result, NULL),
                     CALLA_CANCELLED);
    assert_int_equal(result.cached_tokens, first.prompt_tokens - 2);
    assert_int_equal(result.completion_tokens, 0);
    result = ask(&request);
    assert_int_equal(result.cached_tokens, first.prompt_tokens - 2);
}

static void test_context_full(void **state)
{
    (void)state;
    struct calla_request request = new_request("[" USER("Define hot.") "]");
    struct calla_result result, first = ask(&request);
    char text[6000];
    memset(text, 'x', sizeof text);
    request.messages = NULL;
    request.prompt = text;
    request.prompt_length = sizeof text;
    assert_int_equal(calla_generate(session, &request, NULL, NULL, &result, NULL), CALLA_CONTEXT);
    assert_int_equal(result.cached_tokens, 0);
    request = new_request("[" USER("Define hot.") "]");
    result = ask(&request);
    assert_int_equal(result.cached_tokens, first.prompt_tokens - 2);
    assert_int_equal(calla_context(model), 400);
}

static void test_count_refuses(void **state)
{
    (void)state;
    struct calla_error error;
    int32_t tokens = 5;
    struct calla_request request = new_request("[]");
    assert_int_equal(calla_count_tokens(model, &request, &tokens, &error), CALLA_INVALID);
    assert_string_equal(error.message, "No messages provided.");
    assert_int_equal(tokens, 0);
    request = new_request("[" USER("Hi") "]");
    request.tools = "{}";
    assert_int_equal(calla_count_tokens(model, &request, &tokens, &error), CALLA_INVALID);
    assert_non_null(strstr(error.message, "tools"));
    request.tools = NULL;
    request.temperature = -1;
    assert_int_equal(calla_count_tokens(model, &request, &tokens, &error), CALLA_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation),  cmocka_unit_test(test_raw_prompts),
        cmocka_unit_test(test_cancelled),     cmocka_unit_test(test_context_full),
        cmocka_unit_test(test_count_refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
