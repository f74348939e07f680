/* model/safetensors: headers that lie are refused with one line that names the tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/safetensors.h"

/* A header of exactly its own length before `data` bytes, of which none exist: memory ends where
 * the header does, so that reading on is seen. */
static enum status parse(const char *json, uint64_t data, struct safetensors *file,
                         struct error *error)
{
    size_t n = strlen(json);
    unsigned char *bytes = malloc(8 + n);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, json, n);
    enum status status = safetensors_parse(bytes, 8 + n, 8 + n + data, "f", file, error);
    free(bytes);
    return status;
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}"

static const struct {
    const char *json;
    uint64_t data;
    const char *wanted; /* in the message */
} refusals[] = {
    {"", 0, "not JSON"},
    {"{", 0, "not JSON"},
    {"[]", 0, "header: wanted a JSON object"},
    {"{\"a\": 1}", 0, "tensor a: wanted an object"},
    {"{\"a\": {}}", 0, "tensor a: dtype: wanted a string"},
    {"{\"a\": " T("5", "[1]", "[0, 2]") "}", 2, "tensor a: dtype: wanted a string"},
    {"{\"a\": " T("\"BF17\"", "[1]", "[0, 2]") "}", 2, "dtype: found BF17, which is unknown"},
    {"{\"a\": " T("\"BF16\"", "4", "[0, 2]") "}", 2, "shape: wanted an array"},
    {"{\"a\": " T("\"BF16\"", "[1,1,1,1,1,1,1,1,1]", "[0, 2]") "}", 2, "at most 8 integers"},
    {"{\"a\": " T("\"BF16\"", "[1.0]", "[0, 2]") "}", 2, "shape[0]: wanted an integer"},
    {"{\"a\": " T("\"BF16\"", "[1, -1]", "[0, 2]") "}", 2, "shape[1]: wanted an integer"},
    {"{\"a\": " T("\"BF16\"", "[4294967296, 2147483648]", "[0, 0]") "}", 0, "64 bits"},
    {"{\"a\": " T("\"U32\"", "[4611686018427387904]", "[0, 0]") "}", 0, "64 bits"},
    {"{\"a\": " T("\"U8\"", "[9223372036854775808]", "[0, 0]") "}", 0, "too big integer"},
    {"{\"a\": {\"dtype\": \"BF16\", \"shape\": [1]}}", 2, "data_offsets: wanted an array of two"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[0]") "}", 2, "data_offsets: wanted an array of two"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[0, 2, 4]") "}", 4, "data_offsets: wanted an array of two"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[0, 2.0]") "}", 2, "data_offsets: wanted an array of two"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[-2, 0]") "}", 2, "found [-2, 0]"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[2, 0]") "}", 2, "found [2, 0]"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[2, 4]") "}", 3, "3 data bytes (is the file complete?)"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[9223372036854775805, 9223372036854775807]") "}", 2,
     "tensor a: data_offsets"},
    {"{\"a\": " T("\"BF16\"", "[2, 3]", "[0, 10]") "}", 12,
     "found 10 bytes, wanted 12 for BF16 [2, 3]"},
    {"{\"a\": " T("\"BF16\"", "[1]", "[0, 2]") ", \"b\": " T("\"BF16\"", "[2]", "[1, 5]") "}", 6,
     "tensor b: shares bytes with tensor a"},
    {"{\"b\": " T("\"U8\"", "[1]", "[5, 6]") ", \"a\": " T("\"U8\"", "[9]", "[0, 9]") "}", 9,
     "tensor b: shares bytes with tensor a"},
    {"{\"a\": " T("\"U8\"", "[1]", "[0, 1]") ", \"a\": " T("\"U8\"", "[1]", "[1, 2]") "}", 2,
     "duplicate"},
    {"{\"a\\u0000b\": 1}", 2, "NUL byte"},
    {"{} x", 2, "not JSON"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct safetensors file;
        struct error error = {.message = "accepted"};
        enum status status = parse(refusals[i].json, refusals[i].data, &file, &error);
        if ((status != STATUS_INVALID && status != STATUS_UNSUPPORTED) ||
            strncmp(error.message, "f: ", 3) != 0 || !strstr(error.message, refusals[i].wanted))
            fail_msg("%s: %s", refusals[i].json, error.message);
    }
}

static void test_accepted(void **state)
{
    (void)state;
    struct safetensors file;
    struct error error;
    /* any order, a hole between two tensors, an empty tensor inside another, a scalar */
    const char *json =
        "{\"__metadata__\": {\"format\": \"mlx\"}, "
        "\"b\": " T("\"BF16\"", "[2, 3]",
                    "[8, 20]") ", "
                               "\"a\": " T("\"U32\"", "[1]",
                                           "[0, 4]") ", "
                                                     "\"none\": " T(
                                                         "\"F32\"", "[0, 9223372036854775807]",
                                                         "[9, 9]") ", "
                                                                   "\"one\": " T("\"F64\"", "[]",
                                                                                 "[20, 28]") "}  ";
    assert_int_equal(parse(json, 40, &file, &error), STATUS_OK);
    assert_int_equal(file.n_tensors, 4);
    assert_string_equal(file.tensors[0].name, "b");
    assert_string_equal(file.tensors[0].dtype, "BF16");
    assert_int_equal(file.tensors[0].n_dims, 2);
    assert_int_equal(file.tensors[0].dims[1], 3);
    assert_int_equal(file.tensors[0].begin, 8 + (int64_t)strlen(json) + 8);
    assert_int_equal(file.tensors[0].size, 12);
    assert_int_equal(file.tensors[3].n_dims, 0);
    assert_ptr_equal(file.tensors[3].file, &file);
    assert_null(file.tensors[0].data);
    safetensors_close(&file);
    assert_int_equal(parse("{}", 0, &file, &error), STATUS_OK);
    assert_int_equal(file.n_tensors, 0);
    safetensors_close(&file);
}

static void test_header_length(void **state)
{
    (void)state;
    struct safetensors file;
    struct error error;
    for (size_t n = 0; n < 8; n++) {
        unsigned char *bytes = calloc(1, n + 1);
        assert_int_equal(safetensors_parse(bytes, n, n, "f", &file, &error), STATUS_INVALID);
        assert_non_null(strstr(error.message, "wanted a safetensors file"));
        free(bytes);
    }
    const struct {
        unsigned char bytes[10];
        const char *wanted;
    } cases[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, "not JSON"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, "found 3, but only 2 bytes follow"},
        {{1, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, "not JSON"},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'}, "18446744073709551615"},
        {{'G', 'G', 'U', 'F', 3, 0, 0, 0, '{', '}'}, "no safetensors file"},
        {{0, 0, 0x40, 6, 0, 0, 0, 0, '{', '}'}, "but only 2 bytes follow"}, /* 100 MiB */
        {{1, 0, 0x40, 6, 0, 0, 0, 0, '{', '}'}, "wanted at most 104857600"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(safetensors_parse(cases[i].bytes, 10, 10, "f", &file, &error),
                         STATUS_INVALID);
        if (!strstr(error.message, cases[i].wanted))
            fail_msg("%zu: %s", i, error.message);
    }
}

/* Deep nesting and long names end in a line, not in a crash. */
static void test_extremes(void **state)
{
    (void)state;
    struct safetensors file;
    struct error error;
    char *text = malloc(100001);
    assert_non_null(text);
    memset(text, '[', 100000);
    text[100000] = '\0';
    assert_int_equal(parse(text, 0, &file, &error), STATUS_INVALID);
    snprintf(text, 100001, "{\"%0*d\": 1}", 90000, 0);
    assert_int_equal(parse(text, 0, &file, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "wanted an object"));
    free(text);
}

static void test_describe(void **state)
{
    (void)state;
    const int64_t dims[3] = {256, 512, 32};
    char text[40], small[6];
    tensor_describe_shape(dims, 3, text, sizeof text);
    assert_string_equal(text, "[256, 512, 32]");
    tensor_describe_shape(dims, 0, text, sizeof text);
    assert_string_equal(text, "[]");
    tensor_describe_shape(dims, 3, small, sizeof small);
    assert_string_equal(small, "[256,");
}

static void test_file(void **state)
{
    (void)state;
    struct safetensors file;
    struct error error;
    const char *path = "models/tiny/model-mtp.safetensors";
    assert_int_equal(safetensors_open(path, &file, &error), STATUS_OK);
    assert_int_equal(file.n_tensors, 46);
    for (size_t i = 0; i < file.n_tensors; i++) {
        const struct tensor *tensor = &file.tensors[i];
        assert_ptr_equal(tensor->data, file.map.data + tensor->begin);
        assert_true(tensor->begin + tensor->size <= (int64_t)file.map.size);
    }
    safetensors_close(&file);
    assert_int_equal(safetensors_open("models/tiny", &file, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "models/tiny: found a folder"));
    assert_int_equal(safetensors_open("models/none", &file, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "models/none"));
    assert_int_equal(safetensors_open("/dev/null", &file, &error), STATUS_INVALID);
    assert_int_equal(safetensors_open("models/tiny/README.md", &file, &error), STATUS_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_header_length), cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_describe),      cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
