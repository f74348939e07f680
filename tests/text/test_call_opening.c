/* What may come where a tool call has to: each text is offered byte by byte, as tokens of one byte
 * each, up to the first that is not allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "text/call_opening.h"

static struct tokenizer *tokenizer;
static int32_t byte_ids[256];

static int setup(void **state)
{
    (void)state;
    if (tokenizer_open_model("models/tiny", &tokenizer, NULL) != STATUS_OK)
        return -1;
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
        size_t length;
        const char *data = tokenizer_bytes(tokenizer, id, &length);
        if (length == 1)
            byte_ids[(unsigned char)data[0]] = id;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    return 0;
}

/* Offers the text; gives how many of its bytes were allowed before the opening was complete, as a
 * negative number when it was not at the end. */
static int offer(const char *text)
{
    static const char *const names[] = {"add", "add_all"};
    struct call_opening opening;
    int n = 0;
    call_opening_init(&opening, tokenizer, names, 2);
    while (text[n] && !call_opening_is_complete(&opening) &&
           call_opening_allows(&opening, byte_ids[(unsigned char)text[n]]))
        call_opening_add(&opening, byte_ids[(unsigned char)text[n++]]);
    bool complete = call_opening_is_complete(&opening);
    call_opening_clear(&opening);
    return complete ? n : -n;
}

static void check_whole(const char *text)
{
    assert_int_equal(offer(text), strlen(text));
}

/* The last byte of the text must not come. */
static void check_refused(const char *text)
{
    assert_int_equal(offer(text), -(int)strlen(text) + 1);
}

static void test_openings(void **state)
{
    (void)state;
    check_whole("\n<function=add>\n</function>");
    check_whole("\n<function=add_all>\n</function>");
    check_whole("\n<function=add>\n<parameter=a>");
    check_whole("\n<function=add>\n<parameter= long key \xc3\xa9 >");
    assert_int_equal(offer("\n<function=add>\n<parameter=a>\nvalue"), 29);
}

static void test_what_is_no_opening(void **state)
{
    (void)state;
    check_refused(" ");
    check_refused("\n<function=b");
    check_refused("\n<function=adds");
    check_refused("\n<function=add> ");
    check_refused("\n<function=add>\n\n");
    check_refused("\n<function=add>\n</p");
    check_refused("\n<function=add>\n<f");
    check_refused("\n<function=add>\n<parameter=>");
    check_refused("\n<function=add>\n<parameter= >");
    check_refused("\n<function=add>\n<parameter=a\n");
    check_refused("\n<function=add>\n<parameter=a<");
}

static void test_key_has_to_end(void **state)
{
    (void)state;
    char text[200] = "\n<function=add>\n<parameter=";
    size_t start = strlen(text);
    memset(text + start, 'k', 65);
    check_refused(text);
    strcpy(text + start + 64, ">");
    check_whole(text);
}

static void test_tokens_that_end_it_or_stop_never_come(void **state)
{
    (void)state;
    static const char *const names[] = {"f"};
    static const char *const tokens[] = {"<|im_end|>", "<|endoftext|>", "</tool_call>", "<think>"};
    const char *text = "\n<function=f>\n<parameter=k";
    struct call_opening opening;
    call_opening_init(&opening, tokenizer, names, 1);
    for (; *text; text++) {
        for (int i = 0; i < 4; i++)
            assert_false(call_opening_allows(&opening, tokenizer_added_id(tokenizer, tokens[i])));
        call_opening_add(&opening, byte_ids[(unsigned char)*text]);
    }
    call_opening_clear(&opening);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openings),
        cmocka_unit_test(test_what_is_no_opening),
        cmocka_unit_test(test_key_has_to_end),
        cmocka_unit_test(test_tokens_that_end_it_or_stop_never_come),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
