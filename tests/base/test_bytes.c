/* base/bytes: growing, NUL bytes, formatting, and a failure that is remembered until reset; the
 * error line made clean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/utf8.h"

static void grows_and_keeps_nul(void **state)
{
    (void)state;
    struct bytes bytes = {0};
    bytes_append(&bytes, NULL, 0);
    assert_null(bytes.data);
    for (int i = 0; i < 1000; i++)
        bytes_append(&bytes, "a\0b", 3);
    assert_int_equal(bytes.length, 3000);
    for (size_t i = 0; i < 3000; i += 3)
        assert_memory_equal(bytes.data + i, "a\0b", 3);
    assert_false(bytes.failed);
    bytes_clear(&bytes);
    assert_null(bytes.data);
    assert_int_equal(bytes.length, 0);
}

static void formats_and_terminates(void **state)
{
    (void)state;
    struct bytes bytes = {0};
    assert_string_equal(bytes_terminate(&bytes), "");
    bytes_append_text(&bytes, "n");
    bytes_append_byte(&bytes, '=');
    bytes_format(&bytes, "%d%%%200s", 7, "x");
    assert_int_equal(bytes.length, 2 + 2 + 200);
    const char *text = bytes_terminate(&bytes);
    assert_int_equal(strlen(text), bytes.length); /* the NUL is not counted */
    assert_memory_equal(text, "n=7% ", 5);
    assert_int_equal(text[203], 'x');
    bytes_format(&bytes, "%s", "");
    assert_int_equal(bytes.length, 204);
    bytes_clear(&bytes);
}

static void remembers_a_failure(void **state)
{
    (void)state;
    struct bytes bytes = {0};
    bytes_append_text(&bytes, "kept");
    static const char byte = 'x';
    bytes_append(&bytes, &byte, SIZE_MAX / 2 + 2); /* no such size: nothing is read */
    assert_true(bytes.failed);
    bytes_append_text(&bytes, "dropped");
    assert_int_equal(bytes.length, 4);
    assert_null(bytes_terminate(&bytes));
    bytes_reset(&bytes);
    assert_false(bytes.failed);
    bytes_append_text(&bytes, "new");
    assert_string_equal(bytes_terminate(&bytes), "new");
    bytes_clear(&bytes);
}

static void error_is_one_clean_line(void **state)
{
    (void)state;
    struct error error;
    assert_int_equal(error_set(&error, STATUS_IO, "a\nb\x7f%s", "\xff\xc3\xa9\xe2\x82"), STATUS_IO);
    assert_int_equal(error.status, STATUS_IO);
    assert_string_equal(error.message, "a?b??\xc3\xa9??");
    assert_int_equal(error_set(NULL, STATUS_DEVICE, "%d", 1), STATUS_DEVICE);
}

/* What does not fit loses its middle, and no character is cut: the reason at the end stays. */
static void long_error_keeps_both_ends(void **state)
{
    (void)state;
    struct error error;
    char text[5000];
    for (int before = 0; before < 5; before++)
        for (size_t n = 95; n < 1000; n += n < 330 ? 1 : 99) {
            text[0] = '\0';
            for (size_t i = 0; i < n; i++)
                strcat(text, "\xe2\x82\xac"); /* € */
            error_set(&error, STATUS_IO, "%.*s%s: no such file", before, "path/", text);
            size_t length = strlen(error.message), whole = (size_t)before + 3 * n + 14;
            if (whole < sizeof error.message)
                assert_int_equal(length, whole);
            assert_true(length < sizeof error.message);
            assert_true(whole < sizeof error.message || length > sizeof error.message - 8);
            assert_string_equal(error.message + length - 17, "\xe2\x82\xac: no such file");
            assert_null(strchr(error.message, '?'));
            assert_int_equal(utf8_valid_length(error.message, length), length);
            assert_int_equal(strstr(error.message, "…") != NULL, whole >= sizeof error.message);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_keeps_nul),        cmocka_unit_test(formats_and_terminates),
        cmocka_unit_test(remembers_a_failure),        cmocka_unit_test(error_is_one_clean_line),
        cmocka_unit_test(long_error_keeps_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
