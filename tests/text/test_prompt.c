/* Breakpoints on their way from a message's part to a number of tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/tokenizers.h"
#include "text/messages.h"
#include "text/template.h"

#define MARK ",\"prompt_cache_breakpoint\":{\"mode\":\"explicit\"}"
#define PART(text, mark) "{\"type\":\"text\",\"text\":\"" text "\"" mark "}"
#define MESSAGE(role, parts) "{\"role\":\"" role "\",\"content\":[" parts "]}"

static struct prompt render(const char *messages, enum template_flag preserve)
{
    json_t *given, *prepared;
    struct prompt prompt = {0};
    struct template_options options = {.add_generation_prompt = true,
                                       .preserve_thinking = preserve};
    assert_int_equal(json_parse(messages, strlen(messages), "test", &given, NULL), STATUS_OK);
    assert_int_equal(messages_prepare(given, &prepared, NULL), STATUS_OK);
    assert_int_equal(template_render(prepared, NULL, &options, &prompt, NULL), STATUS_OK);
    json_decref(prepared);
    json_decref(given);
    return prompt;
}

/* The text with a '|' at each breakpoint. */
static void check_places(const char *messages, enum template_flag preserve, const char *wanted)
{
    struct prompt prompt = render(messages, preserve);
    struct bytes shown = {0};
    size_t from = 0;
    for (size_t i = 0; i < prompt.n_breakpoints; i++) {
        assert_true(prompt.breakpoints[i] > from && prompt.breakpoints[i] <= prompt.text.length);
        bytes_append(&shown, prompt.text.data + from, prompt.breakpoints[i] - from);
        bytes_append_byte(&shown, '|');
        from = prompt.breakpoints[i];
    }
    bytes_append(&shown, prompt.text.data + from, prompt.text.length - from);
    assert_string_equal(bytes_terminate(&shown), wanted);
    bytes_clear(&shown);
    prompt_clear(&prompt);
}

#define END "<|im_end|>\n"
#define USER(parts) MESSAGE("user", parts)

static void places(void **state)
{
    (void)state;
    check_places("[" USER(PART("a", MARK) "," PART("b", "")) "]", 0,
                 "<|im_start|>user\na|b" END "<|im_start|>assistant\n<think>\n");
    check_places("[" USER(PART("a", "") "," PART("b", MARK)) "]", 0,
                 "<|im_start|>user\nab|" END "<|im_start|>assistant\n<think>\n");
    /* what is trimmed: a place in white space moves to the text's border, or vanishes at its front
     */
    check_places("[" USER(PART("  ", MARK) "," PART("a ", MARK) "," PART(" ", MARK)) "]", 0,
                 "<|im_start|>user\na|" END "<|im_start|>assistant\n<think>\n");
    check_places("[" USER(PART("", MARK) "," PART("\xc3\xa9", MARK) "," PART("", MARK)) "]", 0,
                 "<|im_start|>user\n\xc3\xa9|" END "<|im_start|>assistant\n<think>\n");
    /* system messages become one */
    check_places("[" MESSAGE("system", PART("s", MARK)) "," MESSAGE(
                     "developer", PART("t", MARK)) "," USER(PART("a", "")) "]",
                 0,
                 "<|im_start|>system\ns|\nt|" END "<|im_start|>user\na" END
                 "<|im_start|>assistant\n<think>\n");
    /* reasoning that is left out takes its places along */
#define THOUGHT                                                                                    \
    "[" USER(PART("a", "")) "," MESSAGE(                                                           \
        "assistant",                                                                               \
        PART("<think>x", MARK) "," PART("y</think>b", MARK)) "," USER(PART("c", "")) "]"
    check_places(THOUGHT, TEMPLATE_FALSE,
                 "<|im_start|>user\na" END "<|im_start|>assistant\nb|" END "<|im_start|>user\nc" END
                 "<|im_start|>assistant\n<think>\n");
    check_places(THOUGHT, TEMPLATE_TRUE,
                 "<|im_start|>user\na" END "<|im_start|>assistant\n<think>\nx|y\n</think>\n\nb|" END
                 "<|im_start|>user\nc" END "<|im_start|>assistant\n<think>\n");
}

static void changes_no_token(void **state)
{
    (void)state;
    struct prompt with = render("[" USER(PART("wo", MARK) "," PART("rd one", MARK)) "]", 0);
    struct prompt without = render("[" USER(PART("word one", "")) "]", 0);
    assert_int_equal(with.text.length, without.text.length);
    assert_memory_equal(with.text.data, without.text.data, with.text.length);
    assert_int_equal(with.n_stretches, without.n_stretches);
    assert_memory_equal(with.stretches, without.stretches,
                        with.n_stretches * sizeof *with.stretches);
    prompt_clear(&with);
    prompt_clear(&without);
}

static void token_numbers(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    struct prompt prompt = render("[" USER(PART("the first", MARK) "," PART(" word", MARK) "," PART(
                                      "s of a story", MARK)) "]",
                                  0);
    struct token_list ids = {0}, lengths = {0};
    assert_int_equal(prompt.n_breakpoints, 3);
    assert_int_equal(prompt_encode(&prompt, tokenizer, &ids, NULL), STATUS_OK);
    assert_int_equal(
        prompt_encode_breakpoints(&prompt, tokenizer, ids.data, ids.length, &lengths, NULL),
        STATUS_OK);
    assert_true(lengths.length >= 2);
    /* so many tokens are the text up to a breakpoint, or up to a word that goes on beyond it */
    size_t at = 0;
    int32_t n = 0;
    for (size_t i = 0; i < lengths.length; i++) {
        for (; n < lengths.data[i]; n++) {
            size_t length;
            tokenizer_bytes(tokenizer, ids.data[n], &length);
            at += length;
        }
        bool found = false;
        for (size_t k = 0; k < prompt.n_breakpoints; k++)
            found |= at <= prompt.breakpoints[k] && at + strlen(" word") >= prompt.breakpoints[k];
        assert_true(found);
        assert_true(lengths.data[i] < (int32_t)ids.length);
    }
    assert_int_equal(at, prompt.breakpoints[2]); /* a control token follows: exactly there */
    token_list_clear(&lengths);
    /* a prompt of other ids shares none */
    assert_int_equal(
        prompt_encode_breakpoints(&prompt, tokenizer, ids.data + 1, ids.length - 1, &lengths, NULL),
        STATUS_OK);
    assert_int_equal(lengths.length, 0);
    token_list_clear(&ids);
    prompt_clear(&prompt);
    tokenizer_close(tokenizer);
}

static void the_last_four_count(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    struct prompt prompt = {0};
    struct token_list ids = {0}, lengths = {0};
    for (int i = 0; i < 6; i++) {
        prompt_append(&prompt, "<|im_end|>", 10, true);
        prompt_break(&prompt);
        prompt_break(&prompt);
    }
    assert_int_equal(prompt.n_breakpoints, 6);
    assert_int_equal(prompt_encode(&prompt, tokenizer, &ids, NULL), STATUS_OK);
    assert_int_equal(
        prompt_encode_breakpoints(&prompt, tokenizer, ids.data, ids.length, &lengths, NULL),
        STATUS_OK);
    assert_int_equal(lengths.length, PROMPT_BREAKPOINTS_MAX);
    for (int i = 0; i < PROMPT_BREAKPOINTS_MAX; i++)
        assert_int_equal(lengths.data[i], 3 + i);
    token_list_clear(&lengths);
    token_list_clear(&ids);
    prompt_reset(&prompt);
    assert_int_equal(prompt.n_breakpoints, 0);
    prompt_clear(&prompt);
    tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(changes_no_token),
        cmocka_unit_test(token_numbers),
        cmocka_unit_test(the_last_four_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
