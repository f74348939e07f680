/* The pull reader of JSON and the UTF-8 functions under it. What it refuses is tested in
 * tests/text/test_tokenizer_load.c through its largest user. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_reader.h"
#include "base/utf8.h"

static struct json_reader reader_of(const char *text, struct error *error)
{
    struct json_reader reader;
    json_reader_init(&reader, text, strlen(text), "text", error);
    return reader;
}

static void values_in_order(void **state)
{
    (void)state;
    struct error error;
    struct json_reader reader = reader_of(
        " {\"a\": [1, -2 ,\n 3], \"b\\n\\u00e9\\ud83d\\ude00\\u0000\": \"x\\/y\", \"\": {}} ",
        &error);
    const char *text;
    size_t length;
    bool first = true, inner = true;
    int64_t value, sum = 0, n = 0;
    assert_int_equal(json_reader_kind(&reader), '{');
    assert_true(json_reader_enter(&reader, '{'));
    assert_true(json_reader_member(&reader, &first, &text, &length));
    assert_int_equal(length, 1);
    assert_true(json_reader_enter(&reader, '['));
    for (; json_reader_element(&reader, &inner); n++) {
        assert_true(json_reader_integer(&reader, &value));
        sum = sum * 10 + value;
    }
    assert_int_equal(n, 3);
    assert_int_equal(sum, 100 - 20 + 3);
    assert_true(json_reader_member(&reader, &first, &text, &length));
    assert_int_equal(length, 9);
    assert_memory_equal(text, "b\n\u00e9\U0001F600\0", 9);
    assert_true(json_reader_string(&reader, &text, &length));
    assert_int_equal(length, 3);
    assert_memory_equal(text, "x/y", 3);
    assert_true(json_reader_member(&reader, &first, &text, &length));
    assert_true(json_reader_skip(&reader, &text, &length));
    assert_int_equal(length, 2);
    assert_memory_equal(text, "{}", 2);
    assert_false(json_reader_member(&reader, &first, &text, &length));
    assert_true(json_reader_finish(&reader));
    json_reader_clear(&reader);
}

static void integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
        const char *problem;
    } lines[] = {
        {"0", 0, NULL},
        {"-0", 0, NULL},
        {"9223372036854775807", INT64_MAX, NULL},
        {"-9223372036854775808", INT64_MIN, NULL},
        {"9223372036854775808", 0, "beyond 64 bits"},
        {"-9223372036854775809", 0, "beyond 64 bits"},
        {"100000000000000000000000000000", 0, "beyond 64 bits"},
        {"1.0", 0, "fraction or exponent"},
        {"1e2", 0, "fraction or exponent"},
        {"\"1\"", 0, "wanted an integer"},
        {"", 0, "found the end"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct error error;
        struct json_reader reader = reader_of(lines[i].text, &error);
        int64_t value = 77;
        assert_int_equal(json_reader_integer(&reader, &value), !lines[i].problem);
        if (lines[i].problem && !strstr(error.message, lines[i].problem))
            fail_msg("no \"%s\" in: %s", lines[i].problem, error.message);
        if (!lines[i].problem)
            assert_int_equal(value, lines[i].value);
        json_reader_clear(&reader);
    }
}

static void first_error_stays(void **state)
{
    (void)state;
    struct error error;
    struct json_reader reader = reader_of("[1, x, 2]", &error);
    bool first = true;
    int64_t value;
    const char *text;
    size_t length;
    json_reader_enter(&reader, '[');
    while (json_reader_element(&reader, &first))
        json_reader_integer(&reader, &value);
    assert_int_equal(reader.status, STATUS_INVALID);
    assert_string_equal(error.message,
                        "text: not JSON at line 1 column 5: found 'x', wanted an integer");
    assert_false(json_reader_string(&reader, &text, &length));
    assert_false(json_reader_skip(&reader, NULL, NULL));
    assert_false(json_reader_finish(&reader));
    assert_int_equal(json_reader_kind(&reader), 0);
    assert_non_null(strstr(error.message, "column 5"));
    json_reader_clear(&reader);
}

/* Every code point there and back, and all sequences that are none. */
static void utf8_round_trip(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        char utf8[4];
        size_t n = utf8_write(c, utf8), size, decoded;
        assert_int_equal(utf8_decode((const unsigned char *)utf8, &decoded), c);
        assert_int_equal(decoded, n);
        assert_int_equal(utf8_examine(utf8, n, &size), UTF8_WHOLE);
        assert_int_equal(size, n);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(utf8_examine(utf8, cut, &size), UTF8_OPEN);
    }
    static const struct {
        const char *text;
        size_t part;
    } broken[] = {
        {"\x80", 1},
        {"\xbf", 1},
        {"\xc0\x80", 1},
        {"\xc1\xbf", 1},
        {"\xe0\x9f\xbf", 1},
        {"\xed\xa0", 1},
        {"\xf0\x8f", 1},
        {"\xf4\x90", 1},
        {"\xf5\x80", 1},
        {"\xff", 1},
        {"\xc2\x41", 1},
        {"\xe1\x80\x41", 2},
        {"\xf1\x80\x80\xc2", 3},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        size_t size;
        assert_int_equal(utf8_examine(broken[i].text, strlen(broken[i].text), &size), UTF8_BROKEN);
        assert_int_equal(size, broken[i].part);
        assert_int_equal(utf8_valid_length(broken[i].text, strlen(broken[i].text)), 0);
    }
    const char *text = "eight by\u00e9\u4e2dtes, then \U0001F600 more\xff";
    assert_int_equal(utf8_valid_length(text, strlen(text)), strlen(text) - 1);
    assert_int_equal(utf8_shown("a\u00e9b", 4, 2), 1);
    assert_int_equal(utf8_shown("a\u00e9b", 4, 3), 3);
    assert_int_equal(utf8_shown("a\u00e9b", 4, 4), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_in_order),
        cmocka_unit_test(integers),
        cmocka_unit_test(first_error_stays),
        cmocka_unit_test(utf8_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
