/* Ids and texts: the golden lines and the vectors of the spec with the target's tokenizer, the
 * reference data of models/tiny with its own, and who may write control tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "support/tokenizers.h"

static const char *text_of(const json_t *line, const char *field, size_t *length)
{
    const json_t *value = json_object_get(line, field);
    assert_true(json_is_string(value));
    *length = json_string_length(value);
    return json_string_value(value);
}

static void check_encode(const struct tokenizer *tokenizer, const json_t *line)
{
    size_t length;
    const char *text = text_of(line, "text", &length);
    bool special = json_is_true(json_object_get(line, "special"));
    struct token_list ids = encode_text(tokenizer, text, length, special);
    assert_ids(&ids, json_object_get(line, "ids"), text);
    token_list_clear(&ids);
}

static void assert_text(struct bytes *found, const json_t *wanted)
{
    assert_false(found->failed);
    assert_int_equal(found->length, json_string_length(wanted));
    if (found->length > 0)
        assert_memory_equal(found->data, json_string_value(wanted), found->length);
    bytes_reset(found);
}

/* "decode" and "stream" lines: with pieces each id is looked at, else the end. */
static void check_decode(const struct tokenizer *tokenizer, const json_t *line)
{
    const json_t *ids = json_object_get(line, "ids"), *pieces = json_object_get(line, "pieces");
    struct detokenizer detokenizer;
    struct bytes text = {0};
    size_t n = json_array_size(ids);
    detokenizer_init(&detokenizer, tokenizer, json_is_true(json_object_get(line, "skip_special")));
    for (size_t i = 0; i < n; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        detokenizer_push(&detokenizer, id >= 0 && id <= INT32_MAX ? (int32_t)id : -1, &text);
        if (pieces)
            assert_text(&text, json_array_get(pieces, i));
    }
    detokenizer_finish(&detokenizer, &text);
    assert_text(&text, pieces ? json_array_get(pieces, n) : json_object_get(line, "text"));
    bytes_clear(&text);
}

struct counts {
    const struct tokenizer *tokenizer;
    int encode, decode;
};

static void check_golden_line(void *context, const json_t *line)
{
    struct counts *counts = context;
    if (strcmp(json_string_value(json_object_get(line, "kind")), "encode") == 0) {
        check_encode(counts->tokenizer, line);
        counts->encode++;
    } else {
        check_decode(counts->tokenizer, line);
        counts->decode++;
    }
}

static void golden_lines(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_target();
    struct counts counts = {.tokenizer = tokenizer};
    for_each_line("tests/golden/tokenizer.jsonl", check_golden_line, &counts);
    assert_int_equal(counts.encode, 3805);
    assert_int_equal(counts.decode, 442 + 149);
    tokenizer_close(tokenizer);
}

/* Spec 7.4, with the correction of tests/golden/README.md part 1. */
static void spec_vectors(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_target();
    static const struct {
        const char *text, *ids;
    } plain[] = {
        {"Hello, world!", "9419 11 1814 0"},
        {"Caffè già, perché l'AI è utile.",
         "34 2562 4311 69028 11 58902 324 6 15015 11094 175523 13"},
        {"中文测试：こんにちは。", "99986 99449 4960 85951 1710"},
        {"  one\t two\n\nthree  \n", "220 799 197 1330 271 26952 2228"},
        {"I'm 1234, we're coding.", "40 2688 220 16 17 18 19 11 567 2224 10505 13"},
        {"def f(x: int) -> str:\n    return f\"{x=}\"\n",
         "727 281 2007 25 514 8 1411 592 25 198 262 460 281 13724 87 28 9571 198"},
        {"\U0001F469\u200D\U0001F4BB caf\u00E9 e\u0301",
         "9008 239 102 373 235 88995 119 50203 3825"},
        {"\U0001F469\U0001F4BB caf\u00E9 e\u0301", "9008 239 102 88995 119 50203 3825"},
        {"\u0301!I", "52033 87383"},
        {"人力资源", "99655"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        assert_encodes(tokenizer, plain[i].text, false, plain[i].ids);
    assert_encodes(tokenizer, "<|fim_prefix|>left<|fim_suffix|>right<|fim_middle|>", true,
                   "248060 2282 248062 1246 248061");
    assert_encodes(tokenizer, "<think>penso</think>", true, "248068 2664 684 248069");
    assert_encodes(tokenizer, "<tool_call>get_weather</tool_call>", true,
                   "248058 447 67017 248059");
    assert_encodes(tokenizer, "<|audio_start|>omesso<|audio_end|>", true, "248070 315 9531 248071");
    assert_encodes(tokenizer,
                   "<|im_start|>user\nQuanto fa 17 * 23?<|im_end|>\n<|im_start|>assistant\n"
                   "<think>\n",
                   true,
                   "248045 846 198 2114 13168 2148 220 16 22 348 220 17 18 30 248046 198 248045 "
                   "74455 198 248068 198");
    assert_int_equal(tokenizer_size(tokenizer), 248077);
    assert_int_equal(tokenizer_added_id(tokenizer, "<|endoftext|>"), 248044);
    tokenizer_close(tokenizer);
}

static void check_case(void *context, const json_t *line)
{
    if (!json_is_true(json_object_get(line, "encodes_back")))
        return;
    size_t length;
    const char *text = text_of(line, "text", &length);
    struct token_list ids = encode_text(context, text, length, true);
    assert_ids(&ids, json_object_get(line, "ids"), text);
    token_list_clear(&ids);
}

static void tiny_cases(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    assert_true(for_each_line("models/tiny/reference/cases.jsonl", check_case, tokenizer) > 5);
    tokenizer_close(tokenizer);
}

static void tiny_eval_texts(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    json_t *eval = json_load_file("models/tiny/reference/eval.json", 0, NULL);
    static const char *const names[] = {"eval.txt", "eval-chat.txt"};
    for (int i = 0; i < 2; i++) {
        char path[100];
        snprintf(path, sizeof path, "models/tiny/reference/%s", names[i]);
        struct file_map map;
        assert_int_equal(file_map_open(path, &map, NULL), STATUS_OK);
        struct token_list ids = encode_text(tokenizer, (const char *)map.data, map.size, true);
        const json_t *wanted = json_object_get(json_object_get(eval, names[i]), "ids");
        assert_true(json_array_size(wanted) > 1000);
        assert_ids(&ids, wanted, names[i]);
        token_list_clear(&ids);
        file_map_close(&map);
    }
    json_decref(eval);
    tokenizer_close(tokenizer);
}

static const char *const contents[33] = {"<|endoftext|>",
                                         "<|im_start|>",
                                         "<|im_end|>",
                                         "<|object_ref_start|>",
                                         "<|object_ref_end|>",
                                         "<|box_start|>",
                                         "<|box_end|>",
                                         "<|quad_start|>",
                                         "<|quad_end|>",
                                         "<|vision_start|>",
                                         "<|vision_end|>",
                                         "<|vision_pad|>",
                                         "<|image_pad|>",
                                         "<|video_pad|>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "<|fim_prefix|>",
                                         "<|fim_middle|>",
                                         "<|fim_suffix|>",
                                         "<|fim_pad|>",
                                         "<|repo_name|>",
                                         "<|file_sep|>",
                                         "<tool_response>",
                                         "</tool_response>",
                                         "<think>",
                                         "</think>",
                                         "<|audio_start|>",
                                         "<|audio_end|>",
                                         "<tts_pad>",
                                         "<tts_text_bos>",
                                         "<tts_text_eod>",
                                         "<tts_text_bos_single>",
                                         "<|audio_pad|>"};

static void added_tokens_by_content(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    assert_int_equal(tokenizer_size(tokenizer), 4083);
    for (int i = 0; i < 33; i++) {
        size_t length;
        assert_int_equal(tokenizer_added_id(tokenizer, contents[i]), 4050 + i);
        assert_int_equal(tokenizer_is_special(tokenizer, 4050 + i), i < 14 || i > 25);
        assert_string_equal(tokenizer_bytes(tokenizer, 4050 + i, &length), contents[i]);
        assert_int_equal(length, strlen(contents[i]));
    }
    static const int32_t outside[] = {-1, INT32_MIN, 4083, 4095, INT32_MAX};
    for (int i = 0; i < 5; i++) {
        size_t length = 1;
        assert_null(tokenizer_bytes(tokenizer, outside[i], &length));
        assert_int_equal(length, 0);
        assert_false(tokenizer_is_special(tokenizer, outside[i]));
    }
    assert_int_equal(tokenizer_added_id(tokenizer, "<|im_END|>"), -1);
    assert_int_equal(tokenizer_added_id(tokenizer, "<|im_"), -1);
    tokenizer_close(tokenizer);
}

/* Text that is not trusted never gives an added token, and reads back as it was. */
static void untrusted_text_has_no_control_tokens(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    for (int i = 0; i < 33; i++) {
        char text[200];
        snprintf(text, sizeof text, "a%s %s\n%s%s", contents[i], contents[i], contents[i],
                 contents[i]);
        struct token_list ids = encode_text(tokenizer, text, strlen(text), false);
        struct detokenizer detokenizer;
        struct bytes back = {0};
        detokenizer_init(&detokenizer, tokenizer, true);
        for (size_t k = 0; k < ids.length; k++) {
            assert_true(ids.data[k] < 4050);
            detokenizer_push(&detokenizer, ids.data[k], &back);
        }
        detokenizer_finish(&detokenizer, &back);
        assert_string_equal(bytes_terminate(&back), text);
        bytes_clear(&back);
        token_list_clear(&ids);
        ids = encode_text(tokenizer, text, strlen(text), true);
        int n = 0;
        for (size_t k = 0; k < ids.length; k++)
            n += ids.data[k] == 4050 + i;
        assert_int_equal(n, 4);
        token_list_clear(&ids);
    }
    tokenizer_close(tokenizer);
}

static struct token_list encode_spans(const struct tokenizer *tokenizer,
                                      const struct text_span *spans, size_t n)
{
    struct token_list ids = {0};
    struct error error;
    if (tokenizer_encode(tokenizer, spans, n, &ids, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return ids;
}

#define SPAN(text, is_trusted)                                                                     \
    {                                                                                              \
        .data = text, .length = sizeof text - 1, .trusted = is_trusted                             \
    }

static void assert_spans(const struct tokenizer *tokenizer, const struct text_span *spans, size_t n,
                         const struct token_list *wanted)
{
    struct token_list found = encode_spans(tokenizer, spans, n);
    assert_int_equal(found.length, wanted->length);
    assert_memory_equal(found.data, wanted->data, found.length * sizeof *found.data);
    token_list_clear(&found);
}

/* A border between spans splits no word, no character and no normal form, and no added token
 * reaches over it. */
static void span_borders(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    const char *text = "the river isn't caf\u00E9 \u4E2D";
    struct token_list whole = encode_text(tokenizer, text, strlen(text), false);
    for (size_t cut = 0; cut <= strlen(text); cut++)
        for (int trust = 0; trust < 4; trust++) {
            const struct text_span spans[] = {
                {text, cut, trust & 1}, {"", 0, true}, {text + cut, strlen(text) - cut, trust & 2}};
            assert_spans(tokenizer, spans, 3, &whole);
        }
    const struct text_span marks[] = {SPAN("the river isn't cafe", true),
                                      SPAN("\u0301 \u4E2D", false)};
    assert_spans(tokenizer, marks, 2, &whole);
    token_list_clear(&whole);

    const char *control = "x<|im_end|>y";
    whole = encode_text(tokenizer, control, 12, false);
    for (size_t cut = 2; cut < 11; cut++)
        for (int trust = 0; trust < 4; trust++) {
            const struct text_span spans[] = {{control, cut, trust & 1},
                                              {control + cut, 12 - cut, trust & 2}};
            assert_spans(tokenizer, spans, 2, &whole);
        }
    token_list_clear(&whole);

    /* the template's token stays one between hostile neighbours */
    const struct text_span neighbours[] = {SPAN("<|im_end|><|im_", false), SPAN("<|im_end|>", true),
                                           SPAN("end|><think>", false)};
    struct token_list ids = encode_spans(tokenizer, neighbours, 3);
    int n = 0;
    for (size_t i = 0; i < ids.length; i++)
        n += ids.data[i] >= 4050;
    assert_int_equal(n, 1);
    token_list_clear(&ids);
    ids = encode_spans(tokenizer, NULL, 0);
    assert_int_equal(ids.length, 0);
    tokenizer_close(tokenizer);
}

static void invalid_utf8_is_refused(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    static const struct {
        const char *text;
        const char *offset;
    } lines[] = {
        {"ab\xff", "byte 2"},           {"\xc3", "byte 0"},
        {"a\xed\xa0\x80", "byte 1"},    {"12345678\xc0\x80", "byte 8"},
        {"\xf4\x90\x80\x80", "byte 0"}, {"\u4E2D\x80", "byte 3"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct token_list ids = {0};
        struct text_span spans[] = {SPAN("", false), {lines[i].text, strlen(lines[i].text), true}};
        struct error error;
        token_list_append(&ids, 7);
        assert_int_equal(tokenizer_encode(tokenizer, spans, 2, &ids, &error), STATUS_INVALID);
        if (!strstr(error.message, lines[i].offset))
            fail_msg("no \"%s\" in: %s", lines[i].offset, error.message);
        assert_int_equal(ids.length, 1);
        token_list_clear(&ids);
    }
    tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_lines),
        cmocka_unit_test(spec_vectors),
        cmocka_unit_test(tiny_cases),
        cmocka_unit_test(tiny_eval_texts),
        cmocka_unit_test(added_tokens_by_content),
        cmocka_unit_test(untrusted_text_has_no_control_tokens),
        cmocka_unit_test(span_borders),
        cmocka_unit_test(invalid_utf8_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
