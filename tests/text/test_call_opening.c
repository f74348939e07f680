/* The opening of a call that has to come: whatever allowed tokens are chosen, their bytes are
 * `\n<function=NAME>\n` with one of the names and `</function>` or `<parameter=KEY>`, and there is
 * always one to choose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/tokenizers.h"
#include "text/call_opening.h"

static struct tokenizer *tokenizer;

static int setup(void **state)
{
    (void)state;
    tokenizer = tokenizer_tiny();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    return 0;
}

static uint32_t random_state = 1;

static uint32_t next_random(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* The longest allowed token, the shortest one, or any. */
enum taste { LONGEST, SHORTEST, ANY };

static int32_t choose(const struct call_opening *opening, enum taste taste)
{
    int32_t chosen = -1;
    size_t best = 0;
    uint32_t seen = 0;
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
        size_t length;
        if (!call_opening_allows(opening, id))
            continue;
        tokenizer_bytes(tokenizer, id, &length);
        assert_true(length > 0);
        seen++;
        if (chosen < 0 || (taste == LONGEST && length > best) ||
            (taste == SHORTEST && length < best) || (taste == ANY && next_random() % seen == 0)) {
            chosen = id;
            best = length;
        }
    }
    assert_true(chosen >= 0);
    return chosen;
}

/* Chooses to the end; gives which of the names came. */
static int spell(const char *const *names, int n_names, enum taste taste)
{
    struct call_opening opening;
    struct bytes text = {0};
    int found = -1, steps = 0;
    assert_int_equal(call_opening_init(&opening, tokenizer, names, n_names, NULL), STATUS_OK);
    while (!call_opening_is_complete(&opening)) {
        int32_t id = choose(&opening, taste);
        size_t length;
        const char *data = tokenizer_bytes(tokenizer, id, &length);
        bytes_append(&text, data, length);
        call_opening_add(&opening, id);
        assert_true(++steps < 200);
    }
    const char *spelt = bytes_terminate(&text);
    for (int i = 0; i < n_names; i++) {
        char wanted[200];
        snprintf(wanted, sizeof wanted, "\n<function=%s>\n", names[i]);
        const char *tail = spelt + strlen(wanted);
        if (strncmp(spelt, wanted, strlen(wanted)) == 0 &&
            (strncmp(tail, "</function>", 11) == 0 ||
             (strncmp(tail, "<parameter=", 11) == 0 && strchr(tail, '>') > tail + 11)))
            found = i;
    }
    if (found < 0)
        fail_msg("found '%s'", text.data);
    bytes_clear(&text);
    call_opening_clear(&opening);
    return found;
}

static void test_one_name(void **state)
{
    (void)state;
    const char *const names[] = {"get_weather", "a", "x-Y_9", "caf\xc3\xa9",
                                 "a_very_long_name_of_a_function_that_somebody_thought_of_once"};
    for (int i = 0; i < 5; i++)
        for (enum taste taste = LONGEST; taste <= ANY; taste++)
            assert_int_equal(spell(&names[i], 1, taste), 0);
}

/* Any of several can come, also one that another one begins with. */
static void test_names(void **state)
{
    (void)state;
    const char *const names[] = {"get", "get_time", "get_times", "set", "g"};
    int came[5] = {0};
    for (int i = 0; i < 200; i++)
        came[spell(names, 5, ANY)]++;
    for (int i = 0; i < 5; i++)
        assert_true(came[i] > 0);
    spell(names, 5, LONGEST);
    spell(names, 5, SHORTEST);
}

/* The bytes count, not the way they are cut; nothing else is allowed at any point. */
static void test_allowed(void **state)
{
    (void)state;
    const char *const names[] = {"get", "get_time"};
    struct call_opening opening;
    assert_int_equal(call_opening_init(&opening, tokenizer, names, 2, NULL), STATUS_OK);
    const char *wanted = "\n<function=get";
    for (const char *at = wanted; *at; at++) {
        int32_t next = -1;
        assert_false(call_opening_is_complete(&opening));
        for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
            size_t length;
            const char *data = tokenizer_bytes(tokenizer, id, &length);
            bool allowed = call_opening_allows(&opening, id);
            if (length == 1 && !tokenizer_is_special(tokenizer, id)) {
                assert_int_equal(allowed, data[0] == *at);
                next = data[0] == *at ? id : next;
            }
        }
        assert_true(next >= 0);
        call_opening_add(&opening, next);
    }
    assert_false(call_opening_is_complete(&opening)); /* `>` or `_time>` */
    int singles = 0;
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
        size_t length;
        tokenizer_bytes(tokenizer, id, &length);
        singles += length == 1 && call_opening_allows(&opening, id);
    }
    assert_int_equal(singles, 2);
    assert_false(call_opening_allows(&opening, tokenizer_added_id(tokenizer, "<|im_end|>")));
    assert_false(call_opening_allows(&opening, tokenizer_size(tokenizer) + 5));
    call_opening_clear(&opening);
}

/* Offers the text byte by byte; gives how many bytes were allowed until the opening was complete,
 * as a negative number when it was not at the end. */
static int offer(const char *text)
{
    static const char *const names[] = {"add", "add_all"};
    struct call_opening opening;
    int n = 0;
    assert_int_equal(call_opening_init(&opening, tokenizer, names, 2, NULL), STATUS_OK);
    for (; text[n] && !call_opening_is_complete(&opening); n++) {
        int32_t byte = -1;
        for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
            size_t length;
            const char *data = tokenizer_bytes(tokenizer, id, &length);
            byte = length == 1 && data[0] == text[n] ? id : byte;
        }
        if (!call_opening_allows(&opening, byte))
            break;
        call_opening_add(&opening, byte);
    }
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

static void test_head_is_whole(void **state)
{
    (void)state;
    check_whole("\n<function=add>\n</function>");
    check_whole("\n<function=add_all>\n<parameter=a>");
    check_whole("\n<function=add>\n<parameter= long key \xc3\xa9 >");
    assert_int_equal(offer("\n<function=add>\n<parameter=a>\nvalue"), 29);
    check_refused(" ");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_name),       cmocka_unit_test(test_names),
        cmocka_unit_test(test_allowed),        cmocka_unit_test(test_head_is_whole),
        cmocka_unit_test(test_key_has_to_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
