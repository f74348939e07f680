/* What steering makes of a model that wants something else: thoughts end within their budget as the
 * template ends them, a call comes where one is required, and then the model is free. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/steering.h"

static struct model model;
static int32_t think_close, tool_call, im_end, word;

static int setup(void **state)
{
    (void)state;
    struct error error;
    if (model_open("models/tiny", &model, &error) != STATUS_OK) {
        print_error("%s\n", error.message);
        return -1;
    }
    think_close = tokenizer_added_id(model.tokenizer, "</think>");
    tool_call = tokenizer_added_id(model.tokenizer, "<tool_call>");
    im_end = tokenizer_added_id(model.tokenizer, "<|im_end|>");
    if (model_find_token(&model, "a", &word, &error) != STATUS_OK)
        return -1;
    return think_close < 0 || tool_call < 0 || im_end < 0 || word < 0 ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(&model);
    return 0;
}

/* A model that wants the ids of `wants` [n], then `then` for ever, as far as it is let; of a mask
 * it takes the lowest id that is left. */
struct stubborn {
    const int32_t *wants;
    int n;
    int32_t then;
};

struct run {
    int32_t ids[100];
    int n;
    struct bytes text;
};

static int32_t draw(const struct guide *guide, int32_t wanted)
{
    int32_t n = tokenizer_size(model.tokenizer), next = guide->next(guide->context);
    if (next >= 0)
        return next;
    if (next == GUIDE_FREE)
        return wanted;
    assert_int_equal(next, GUIDE_MASK);
    float *logits = calloc((size_t)n, sizeof *logits);
    assert_non_null(logits);
    logits[wanted] = 1;
    guide->mask(guide->context, logits, n);
    int32_t best = 0;
    for (int32_t id = 0; id < n; id++)
        if (logits[id] > logits[best])
            best = id;
    assert_false(isinf(logits[best])); /* something is left */
    free(logits);
    return best;
}

/* Runs until the model ends the turn, or `most` tokens have come. */
static struct run run(const struct steering_options *options, struct stubborn of, int most)
{
    struct steering steering;
    struct run result = {.n = 0};
    struct error error;
    if (steering_init(&steering, &model, options, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    struct guide guide = steering_guide(&steering);
    while (result.n < most) {
        int32_t id = draw(&guide, result.n < of.n ? of.wants[result.n] : of.then);
        size_t length;
        const char *data = tokenizer_bytes(model.tokenizer, id, &length);
        guide.add(guide.context, id);
        result.ids[result.n++] = id;
        bytes_append(&result.text, data, length);
        if (id == im_end)
            break;
    }
    assert_non_null(bytes_terminate(&result.text));
    steering_clear(&steering);
    return result;
}

static void assert_run(struct run *result, const char *text)
{
    assert_string_equal(result->text.data, text);
    bytes_clear(&result->text);
}

static int thought_tokens(const struct run *result)
{
    int n = 0;
    while (n < result->n && result->ids[n] != think_close)
        n++;
    return n;
}

static void test_needed(void **state)
{
    (void)state;
    struct steering_options options = {.thinking = true, .thinking_budget = -1};
    assert_false(steering_is_needed(&options));
    options.thinking_budget = 0;
    assert_true(steering_is_needed(&options));
    options.thinking = false;
    assert_false(steering_is_needed(&options));
    options.call = true;
    assert_true(steering_is_needed(&options));
}

/* The model never stops thinking: it is stopped within the budget, and free afterwards. */
static void test_budget(void **state)
{
    (void)state;
    const int32_t budgets[] = {0, 1, 2, 3, 32};
    const struct stubborn thinker = {NULL, 0, word};
    for (int i = 0; i < 5; i++) {
        struct steering_options options = {.thinking = true, .thinking_budget = budgets[i]};
        struct run result = run(&options, thinker, 60);
        int n = thought_tokens(&result);
        assert_true(n <= budgets[i] && n >= budgets[i] - 1);
        const char *close = strstr(result.text.data, "</think>\n\n");
        assert_non_null(close);
        assert_true(n == 0 || close[-1] == '\n');
        assert_string_equal(close + strlen("</think>\n\n") + strspn(close + 10, "a"), "");
        assert_int_equal(result.ids[59], word);
        bytes_clear(&result.text);
    }
}

/* One that ends its thought by itself in time is let alone. */
static void test_within_budget(void **state)
{
    (void)state;
    const int32_t wants[] = {word, word, think_close, word, word};
    struct steering_options options = {.thinking = true, .thinking_budget = 32};
    struct run result = run(&options, (struct stubborn){wants, 5, im_end}, 60);
    assert_run(&result, "aa</think>aa<|im_end|>");
    options.thinking_budget = 4; /* also at the last moment */
    result = run(&options, (struct stubborn){wants, 5, im_end}, 60);
    assert_run(&result, "aa</think>aa<|im_end|>");
    /* without a thought there is nothing to count */
    options = (struct steering_options){.thinking = false, .thinking_budget = 0};
    result = run(&options, (struct stubborn){wants, 2, im_end}, 60);
    assert_run(&result, "aa<|im_end|>");
}

static void test_call(void **state)
{
    (void)state;
    const char *const names[] = {"get_time", "get"};
    struct steering_options options = {
        .call = true, .names = names, .n_names = 1, .thinking_budget = -1};
    struct run result = run(&options, (struct stubborn){NULL, 0, im_end}, 60);
    assert_run(&result, "<tool_call>\n<function=get_time>\n</function><|im_end|>");
    options.n_names = 2;
    result = run(&options, (struct stubborn){NULL, 0, im_end}, 60);
    assert_true(
        strcmp(result.text.data, "<tool_call>\n<function=get_time>\n</function><|im_end|>") == 0 ||
        strcmp(result.text.data, "<tool_call>\n<function=get>\n</function><|im_end|>") == 0);
    bytes_clear(&result.text);
}

/* It may think before, but neither end there nor leave the thought for anything but the call. */
static void test_call_while_thinking(void **state)
{
    (void)state;
    const char *const names[] = {"get_time"};
    struct steering_options options = {
        .thinking = true, .thinking_budget = -1, .call = true, .names = names, .n_names = 1};
    const int32_t thinks[] = {word, word, think_close};
    struct run result = run(&options, (struct stubborn){thinks, 3, im_end}, 60);
    assert_run(&result, "aa</think>\n\n<tool_call>\n<function=get_time>\n</function><|im_end|>");
    const int32_t calls[] = {word, tool_call}; /* inside of the thought, as some models do */
    result = run(&options, (struct stubborn){calls, 2, im_end}, 60);
    assert_run(&result, "a<tool_call>\n<function=get_time>\n</function><|im_end|>");
    const int32_t ends[] = {word, im_end, im_end, think_close}; /* wants to stop, and may not */
    result = run(&options, (struct stubborn){ends, 4, im_end}, 60);
    assert_int_equal(result.ids[result.n - 1], im_end);
    assert_true(thought_tokens(&result) == 3 && result.ids[1] != im_end);
    assert_non_null(strstr(result.text.data,
                           "</think>\n\n<tool_call>\n<function=get_time>\n</function><|im_end|>"));
    bytes_clear(&result.text);
    options.thinking_budget = 5;
    result = run(&options, (struct stubborn){NULL, 0, word}, 60);
    const char *start = "aaaa\n</think>\n\n<tool_call>\n<function=get_time>\n</function>aa";
    assert_int_equal(strncmp(result.text.data, start, strlen(start)), 0);
    bytes_clear(&result.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needed),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_within_budget),
        cmocka_unit_test(test_call),
        cmocka_unit_test(test_call_while_thinking),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
