/* Our table against its source for every code point, and NFC against utf8proc where the two must
 * agree and against the reference where they must not (tests/golden/README.md part 2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/unicode.h"

#define N_POINTS 0x110000

static bool is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static void classes_are_those_of_the_list(void **state)
{
    (void)state;
    unsigned char *wanted = calloc(N_POINTS, 1);
    FILE *file = fopen("tests/golden/unicode_classes.tsv", "r");
    assert_non_null(file);
    char line[200];
    int n = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned first, last;
        char name;
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line, "%x %x %c", &first, &last, &name), 3);
        assert_true(first <= last && last < N_POINTS && strchr("LMN", name));
        for (unsigned c = first; c <= last; c++)
            wanted[c] = name == 'L' ? UNICODE_LETTER : name == 'M' ? UNICODE_MARK : UNICODE_NUMBER;
        n++;
    }
    fclose(file);
    assert_int_equal(n, 1142);
    for (uint32_t c = 0; c < N_POINTS; c++) {
        unsigned class = c == '\r' || c == '\n' ? UNICODE_NEWLINE
                         : is_white_space(c)    ? UNICODE_SPACE
                                                : wanted[c];
        if ((unicode_property(c) & UNICODE_CLASS) != class)
            fail_msg("U+%04X: class %u, wanted %u", c, unicode_property(c) & UNICODE_CLASS, class);
    }
    free(wanted);
}

static struct bytes nfc(const char *text, size_t length)
{
    struct bytes out = {0};
    struct error error;
    if (unicode_nfc(text, length, &out, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    assert_non_null(bytes_terminate(&out));
    return out;
}

static void assert_nfc(const char *text, const char *wanted)
{
    struct bytes found = nfc(text, strlen(text));
    assert_string_equal(found.data, wanted);
    if (strcmp(text, wanted) != 0)
        assert_false(unicode_is_nfc(text, strlen(text)));
    bytes_clear(&found);
}

static void normal_forms(void **state)
{
    (void)state;
    assert_nfc("", "");
    assert_nfc("plain", "plain");
    assert_nfc("cafe\u0301", "caf\u00E9");
    assert_nfc("\u0301e", "\u0301e");
    assert_nfc("e\u0302\u0301x", "\u1EBFx");
    assert_nfc("a\u0323\u0302", "\u1EAD");
    assert_nfc("a\u0302\u0323", "\u1EAD");
    assert_nfc("\u212B\u2126", "\u00C5\u03A9");
    assert_nfc("\u1100\u1161\u11A8", "\uAC01");
    assert_nfc("\uAC00\u11A8\u11A8", "\uAC01\u11A8");
    assert_nfc("\uAC00\u11A7", "\uAC00\u11A7"); /* utf8proc 2.8 drops it */
    assert_nfc("\u0958\uFB2C", "\u0915\u093C\u05E9\u05BC\u05C1");
    assert_nfc("\U0001D160", "\U0001D158\U0001D165\U0001D16E");
    assert_nfc("\u0344", "\u0308\u0301");
    assert_nfc(">\u0338", "\u226F");
    /* newer than Unicode 9.0: they neither move, join nor stop being a border */
    assert_nfc("a\u08D3\u0301", "a\u08D3\u0301");
    assert_nfc("a\u0301\u08D3\u0316", "\u00E1\u08D3\u0316");
    assert_nfc("\U00011935\U00011930", "\U00011935\U00011930");
    assert_nfc("\U000105D2\u0307", "\U000105D2\u0307");
}

/* Whether utf8proc and the reference may differ on text with this code point. */
static bool is_newer(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } newer[] = {
        {0x07fd, 0x07fd},   {0x0897, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
        {0x0c3c, 0x0c3c},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x11a7, 0x11a7},
        {0x1715, 0x1715},   {0x1abf, 0x1aff},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
        {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
        {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
        {0x11380, 0x113d3}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11943},
        {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
        {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16100, 0x1612f},
        {0x16d40, 0x16d6c}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
        {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
        {0x105c0, 0x105ff},
    };
    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++)
        if (c >= newer[i].first && c <= newer[i].last)
            return true;
    return false;
}

/* Appends a code point that is likely to take part in normalising. */
static void append_point(struct bytes *text, uint32_t *random, bool changes)
{
    for (;;) {
        *random = *random * 1664525 + 1013904223;
        uint32_t c = (*random >> 8) % (*random & 0x80 ? 0x2100 : 0x1f000);
        if ((c >= 0xd800 && c < 0xe000) || c == 0 || is_newer(c))
            continue;
        bool takes_part = unicode_property(c) & (UNICODE_NFC_CHANGES | UNICODE_NFC_BASE);
        if (changes && !takes_part)
            continue;
        char utf8[4];
        bytes_append(text, utf8, utf8_write(c, utf8));
        return;
    }
}

static void agrees_with_utf8proc(void **state)
{
    (void)state;
    uint32_t random = 3;
    struct bytes text = {0};
    int changed = 0;
    for (int i = 0; i < 20000; i++) {
        bytes_reset(&text);
        for (int k = 0; k < 12; k++)
            append_point(&text, &random, k % 4 != 0);
        struct bytes found = nfc(text.data, text.length);
        utf8proc_uint8_t *wanted = NULL;
        utf8proc_ssize_t n =
            utf8proc_map((const utf8proc_uint8_t *)text.data, (utf8proc_ssize_t)text.length,
                         &wanted, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        assert_true(n > 0);
        if (found.length != (size_t)n || memcmp(found.data, wanted, (size_t)n) != 0)
            fail_msg("\"%.*s\": found \"%.*s\", wanted \"%.*s\"", (int)text.length, text.data,
                     (int)found.length, found.data, (int)n, (const char *)wanted);
        bool same = found.length == text.length && memcmp(found.data, text.data, text.length) == 0;
        changed += !same;
        if (!same)
            assert_false(unicode_is_nfc(text.data, text.length));
        struct bytes again = nfc(found.data, found.length);
        assert_string_equal(again.data, found.data);
        bytes_clear(&again);
        bytes_clear(&found);
        free(wanted);
    }
    assert_true(changed > 5000);
    bytes_clear(&text);
}

/* Whatever utf8proc knows of a code point, the table must know, or the code point is newer. */
static void table_covers_utf8proc(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < N_POINTS; c++) {
        if ((c >= 0xd800 && c < 0xe000) || is_newer(c))
            continue;
        const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)c);
        if (property->combining_class != 0 && !(unicode_property(c) & UNICODE_NFC_CHANGES))
            fail_msg("U+%04X has a combining class, and the table says nothing changes", c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_those_of_the_list),
        cmocka_unit_test(normal_forms),
        cmocka_unit_test(agrees_with_utf8proc),
        cmocka_unit_test(table_covers_utf8proc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
