/* A megabyte without a border for BPE, or hostile to normalising, takes no longer than other text.
 * The bound is five times the wanted second, because test machines are shared; with sanitizers or
 * without optimisation it is wider still. Also the time to load the target's file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "support/tokenizers.h"
#include "text/unicode.h"

#define SIZE 1000000
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
#define SECONDS_MAX 30.0
#else
#define SECONDS_MAX 5.0
#endif

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Fills with code points that `next` gives until the size is reached. */
static void fill(struct bytes *text, uint32_t (*next)(uint32_t *random))
{
    uint32_t random = 1;
    bytes_reset(text);
    while (text->length < SIZE) {
        char utf8[4];
        bytes_append(text, utf8, utf8_write(next(&random), utf8));
    }
}

static uint32_t draw(uint32_t *random)
{
    *random = *random * 1664525 + 1013904223;
    return *random >> 8;
}

static uint32_t any_point(uint32_t *random)
{
    uint32_t c = draw(random) % 0x10f800;
    return c < 0xd800 ? c : c + 0x800;
}

static uint32_t ascii_letter(uint32_t *random)
{
    return 'a' + draw(random) % 26;
}

static uint32_t cjk(uint32_t *random)
{
    return 0x4e00 + draw(random) % 0x5000;
}

static uint32_t letters_and_marks(uint32_t *random)
{
    return draw(random) % 2 ? 'e' : 0x300 + draw(random) % 0x60;
}

/* Marks in falling order of combining class: sorting by exchange would be quadratic. */
static uint32_t falling_marks(uint32_t *random)
{
    return ++*random % 2 ? 0x301 : 0x316;
}

static uint32_t same_a(uint32_t *random)
{
    return *random ? 'a' : 0;
}
static uint32_t same_space(uint32_t *random)
{
    return *random ? ' ' : 0;
}
static uint32_t same_emoji(uint32_t *random)
{
    return *random ? 0x1f600 : 0;
}
static uint32_t same_apostrophe(uint32_t *random)
{
    return *random ? '\'' : 0;
}
static uint32_t same_digit(uint32_t *random)
{
    return *random ? '7' : 0;
}
static uint32_t same_newline(uint32_t *random)
{
    return *random ? '\n' : 0;
}
static uint32_t same_less(uint32_t *random)
{
    return *random ? '<' : 0;
}

static void encode_each(const struct tokenizer *tokenizer)
{
    static const struct {
        const char *name;
        uint32_t (*next)(uint32_t *random);
    } inputs[] = {
        {"a", same_a},
        {"spaces", same_space},
        {"one emoji", same_emoji},
        {"apostrophes", same_apostrophe},
        {"digits", same_digit},
        {"newlines", same_newline},
        {"<", same_less},
        {"random code points", any_point},
        {"random letters", ascii_letter},
        {"random CJK", cjk},
        {"letters and marks", letters_and_marks},
        {"falling marks", falling_marks},
    };
    struct bytes text = {0};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        fill(&text, inputs[i].next);
        assert_false(text.failed);
        double from = seconds();
        struct token_list ids = encode_text(tokenizer, text.data, text.length, true);
        double took = seconds() - from;
        print_message("%-20s %7zu ids %.3f s\n", inputs[i].name, ids.length, took);
        assert_true(took < SECONDS_MAX);

        struct bytes back = {0}, normal = {0};
        struct detokenizer detokenizer;
        detokenizer_init(&detokenizer, tokenizer, false);
        for (size_t k = 0; k < ids.length; k++)
            detokenizer_push(&detokenizer, ids.data[k], &back);
        detokenizer_finish(&detokenizer, &back);
        assert_int_equal(unicode_nfc(text.data, text.length, &normal, NULL), STATUS_OK);
        assert_int_equal(back.length, normal.length);
        assert_memory_equal(back.data, normal.data, back.length);
        bytes_clear(&back);
        bytes_clear(&normal);
        token_list_clear(&ids);
    }
    bytes_clear(&text);
}

static void hostile_megabytes_tiny(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    encode_each(tokenizer);
    tokenizer_close(tokenizer);
}

static void hostile_megabytes_target(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_target();
    encode_each(tokenizer);
    tokenizer_close(tokenizer);
}

static void target_loads_fast(void **state)
{
    (void)state;
    double from = seconds();
    struct tokenizer *tokenizer = tokenizer_target();
    double took = seconds() - from;
    print_message("loaded in %.3f s\n", took);
    assert_true(took < 0.4 * SECONDS_MAX);
    tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_megabytes_tiny),
        cmocka_unit_test(hostile_megabytes_target),
        cmocka_unit_test(target_loads_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
