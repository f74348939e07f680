/* base/json against Python: doubles.txt holds hard doubles with Python's repr ("BITS REPR" lines,
 * the bits in hex); the other wanted texts are what json.dumps(json.loads(text),
 * ensure_ascii=False) gives. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

static double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void prints_doubles_like_python(void **state)
{
    (void)state;
    FILE *file = fopen("tests/base/doubles.txt", "r");
    assert_non_null(file);
    char wanted[64];
    unsigned long long bits;
    int n = 0;
    struct bytes out = {0};
    for (; fscanf(file, "%llx %63s", &bits, wanted) == 2; n++) {
        bytes_reset(&out);
        json_print_real(from_bits(bits), &out);
        if (strcmp(bytes_terminate(&out), wanted) != 0)
            fail_msg("%016llx: found %s, wanted %s", bits, out.data, wanted);
    }
    assert_true(feof(file));
    assert_int_equal(n, 192);
    fclose(file);
    bytes_clear(&out);
}

static void check_reads_back(double value)
{
    struct bytes out = {0};
    json_print_real(value, &out);
    assert_non_null(bytes_terminate(&out));
    double again = strtod(out.data, NULL);
    if (memcmp(&again, &value, sizeof value) != 0)
        fail_msg("%a: %s reads back as %a", value, out.data, again);
    int digits = 0;
    for (const char *c = out.data; *c && *c != 'e'; c++)
        digits += *c >= '0' && *c <= '9' && (digits > 0 || *c != '0');
    if (digits > 17)
        fail_msg("%a: %s has too many digits", value, out.data);
    if (!strpbrk(out.data, ".e"))
        fail_msg("%a: %s is no float", value, out.data);
    bytes_clear(&out);
}

static void powers_read_back(void **state)
{
    (void)state;
    for (int exponent = -1074; exponent < 1024 + 632; exponent++) {
        char ten[16];
        snprintf(ten, sizeof ten, "1e%d", exponent - 1024 - 323);
        double value = exponent < 1024 ? ldexp(1, exponent) : strtod(ten, NULL);
        check_reads_back(value);
        check_reads_back(-value);
        check_reads_back(nextafter(value, 0));
        if (value < 1e308)
            check_reads_back(nextafter(value, INFINITY));
    }
}

static enum status parse(const char *text, size_t length, json_t **value, struct error *error)
{
    return json_parse(text, length, "text", value, error);
}

static void check_print_bytes(const char *text, size_t length, const char *wanted)
{
    json_t *value;
    struct error error;
    if (parse(text, length, &value, &error) != STATUS_OK)
        fail_msg("%s: %s", text, error.message);
    struct bytes out = {0};
    json_print(value, &out);
    if (strcmp(bytes_terminate(&out), wanted) != 0)
        fail_msg("%s: found %s, wanted %s", text, out.data, wanted);
    bytes_clear(&out);
    json_decref(value);
}

static void check_print(const char *text, const char *wanted)
{
    check_print_bytes(text, strlen(text), wanted);
}

static void prints_numbers(void **state)
{
    (void)state;
    check_print("-0", "0");
    check_print("-0.0", "-0.0");
    check_print("0e0", "0.0");
    check_print("1E5", "100000.0");
    check_print("1e0", "1.0");
    check_print("1.0", "1.0");
    check_print("0.1e-6", "1e-07");
    check_print("1e16", "1e+16");
    check_print("9999999999999999.0", "1e+16");
    check_print("1e-400", "0.0"); /* underflow is a number, overflow is not */
    check_print("5e-324", "5e-324");
    check_print("9223372036854775807", "9223372036854775807");
    check_print("-9223372036854775808", "-9223372036854775808");
    check_print("9007199254740993", "9007199254740993"); /* no way through a double */
    check_print("[1,-2,3.50]", "[1, -2, 3.5]");
}

static void prints_strings(void **state)
{
    (void)state;
    check_print("\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\u007f\"",
                "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\x7f\"");
    check_print("\"\\\" \\\\ \\/ <b> & '\"", "\"\\\" \\\\ / <b> & '\"");
    check_print("\"\\u00e9 \\ud83d\\ude00 \\u2028 \\u0080\"",
                "\"\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8 \xc2\x80\"");
    check_print("\"\"", "\"\"");
    struct bytes out = {0};
    json_print_string("a\0\"b", 4, &out);
    json_print_escaped("\n", 1, &out);
    json_print_escaped(NULL, 0, &out);
    assert_string_equal(bytes_terminate(&out), "\"a\\u0000\\\"b\"\\n");
    bytes_clear(&out);
}

static void prints_structure(void **state)
{
    (void)state;
    check_print("{}", "{}");
    check_print("[ ]", "[]");
    check_print(" {\"z\":1,\"a\":[true,false,null,{}],\"\":\"e\"} ",
                "{\"z\": 1, \"a\": [true, false, null, {}], \"\": \"e\"}");
    /* many keys: the order is that of the text, not of a hash table */
    check_print("{\"k9\":9,\"k8\":8,\"k7\":7,\"k6\":6,\"k5\":5,\"k4\":4,\"k3\":3,\"k2\":2,\"k1\":1,"
                "\"k0\":0,\"ka\":10}",
                "{\"k9\": 9, \"k8\": 8, \"k7\": 7, \"k6\": 6, \"k5\": 5, \"k4\": 4, \"k3\": 3, "
                "\"k2\": 2, \"k1\": 1, \"k0\": 0, \"ka\": 10}");
    check_print("{\"a\":1,\"b\":2,\"a\":{\"x\":3},\"c\":4,\"b\":5}",
                "{\"a\": {\"x\": 3}, \"b\": 5, \"c\": 4}");
    check_print("{\"\\u0001\\n\\\"\":1}", "{\"\\u0001\\n\\\"\": 1}");
}

static void check_refused_bytes(const char *text, size_t length, enum status wanted,
                                const char *message)
{
    json_t *value = (json_t *)&wanted;
    struct error error;
    enum status status = parse(text, length, &value, &error);
    if (status != wanted || error.status != wanted)
        fail_msg("%s: found status %d, wanted %d", text, status, wanted);
    assert_null(value);
    if (!strstr(error.message, message))
        fail_msg("%s: found \"%s\", wanted \"%s\" in it", text, error.message, message);
}

static void check_refused(const char *text, enum status wanted, const char *message)
{
    check_refused_bytes(text, strlen(text), wanted, message);
}

static void names_the_place(void **state)
{
    (void)state;
    check_refused("", STATUS_INVALID, "text: not JSON at line 1 column 0: ");
    check_refused("{\"a\": 1,\n \"b\": tru}", STATUS_INVALID,
                  "text: not JSON at line 2 column 9: ");
    check_refused("[1 2]", STATUS_INVALID, "text: not JSON at line 1 column 4: ");
    check_refused("1 2", STATUS_INVALID, "line 1 column 3: end of file expected");
    check_refused("{a: 1}", STATUS_INVALID, "line 1 column 2");
    check_refused("[1,]", STATUS_INVALID, "line 1 column 4");
    check_refused("[01]", STATUS_INVALID, "line 1 column 2");
    check_refused("[.5]", STATUS_INVALID, "line 1 column 2");
    check_refused("NaN", STATUS_INVALID, "line 1 column 3");
    check_refused("\"\t\"", STATUS_INVALID, "line 1 column 1: control character 0x9");
    check_refused("\"\\ud800\"", STATUS_INVALID, "line 1 column 8: invalid Unicode");
    check_refused("[\"\xff\"]", STATUS_INVALID, "unable to decode byte 0xff");
    check_refused("\xef\xbb\xbf{}", STATUS_INVALID, "line 1 column 1");
    check_refused_bytes("[1]\0", 4, STATUS_INVALID, "line 1 column 4");
    check_refused_bytes("\"a\0b\"", 5, STATUS_INVALID, "line 1 column 2");
    char deep[5000];
    memset(deep, '[', sizeof deep);
    check_refused_bytes(deep, sizeof deep, STATUS_INVALID, "maximum parsing depth");
}

static void tells_unsupported_from_invalid(void **state)
{
    (void)state;
    check_refused("9223372036854775808", STATUS_UNSUPPORTED,
                  "text: JSON that is not supported at line 1 column 19: too big integer");
    check_refused("[\n-9223372036854775809]", STATUS_UNSUPPORTED, "line 2 column 20");
    check_refused("{\"a\": 1e400}", STATUS_UNSUPPORTED, "real number overflow");
    check_refused("{\"a\\u0000b\": 1}", STATUS_UNSUPPORTED, "line 1 column 11: NUL byte");
}

static void nul_in_values_is_kept(void **state)
{
    (void)state;
    json_t *value;
    static const char text[] = "[\"a\\u0000b\"]";
    assert_int_equal(parse(text, strlen(text), &value, NULL), STATUS_OK);
    const json_t *string = json_array_get(value, 0);
    assert_int_equal(json_string_length(string), 3);
    assert_memory_equal(json_string_value(string), "a\0b", 3);
    json_decref(value);
    check_print(text, "[\"a\\u0000b\"]");
}

static void strict_refuses_more(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"a\": 1, \"b\": {}, \"a\": 1}", "file: not JSON at line 1 column 21: duplicate"},
        {"{\"a\": \"\\u0000\"}", "\\u0000 is not allowed"},
        {"{\"a\\u0000\": 1}", "line 1 column 10: NUL byte"},
        {"{\"a\": 1", "line 1 column 7"},
        {"", "file: not JSON"}};
    json_t *value;
    struct error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(
            json_parse_strict(cases[i].text, strlen(cases[i].text), "file", &value, &error),
            STATUS_OK);
        assert_null(value);
        if (!strstr(error.message, cases[i].message))
            fail_msg("%s: found \"%s\", wanted \"%s\" in it", cases[i].text, error.message,
                     cases[i].message);
    }
    static const char text[] = "{\"a\": {\"a\": 1}, \"b\": [{\"a\": 2}]}";
    assert_int_equal(json_parse_strict(text, strlen(text), "file", &value, &error), STATUS_OK);
    json_decref(value);
}

static void names_types(void **state)
{
    (void)state;
    json_t *value;
    static const char text[] = "[{}, [], \"\", 1, 1.0, true, false, null]";
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    assert_int_equal(parse(text, strlen(text), &value, NULL), STATUS_OK);
    for (size_t i = 0; i < json_array_size(value); i++)
        assert_string_equal(json_type_name(json_array_get(value, i)), names[i]);
    assert_string_equal(json_type_name(NULL), "nothing");
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_doubles_like_python),
        cmocka_unit_test(powers_read_back),
        cmocka_unit_test(prints_numbers),
        cmocka_unit_test(prints_strings),
        cmocka_unit_test(prints_structure),
        cmocka_unit_test(names_the_place),
        cmocka_unit_test(tells_unsupported_from_invalid),
        cmocka_unit_test(nul_in_values_is_kept),
        cmocka_unit_test(strict_refuses_more),
        cmocka_unit_test(names_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
