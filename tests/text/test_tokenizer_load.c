/* tokenizer.json in every spelling that must be read, and damaged in ways that must be refused with
 * one line that names the place. All variants are made from models/tiny's file. */
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

#define SAMPLE "The river isn't 42 <think>\u4E2D\u6587 caf\u00E9\n\n  <|im_end|> \U0001F600"

static json_t *tiny_json(void)
{
    json_t *root = json_load_file("models/tiny/tokenizer.json", 0, NULL);
    assert_non_null(root);
    return root;
}

/* The value at a path of members and indices, with dots; the last step is left to the caller. */
static json_t *parent_of(json_t *root, const char *path, const char **last)
{
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        char step[40];
        snprintf(step, sizeof step, "%.*s", (int)(dot - path), path);
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(step))
                                   : json_object_get(root, step);
        assert_non_null(root);
        path = dot + 1;
    }
    *last = path;
    return root;
}

/* Sets (value NULL: removes) what a path names; at an array's end it appends. */
static void set(json_t *root, const char *path, const char *value)
{
    const char *last;
    json_t *parent = parent_of(root, path, &last);
    json_t *made = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || made);
    if (json_is_object(parent)) {
        assert_int_equal(
            value ? json_object_set_new(parent, last, made) : json_object_del(parent, last), 0);
        return;
    }
    size_t at = (size_t)atoi(last), size = json_array_size(parent);
    assert_int_equal(!value       ? json_array_remove(parent, at)
                     : at == size ? json_array_append_new(parent, made)
                                  : json_array_set_new(parent, at, made),
                     0);
}

static enum status parse(const char *text, size_t length, struct tokenizer **tokenizer,
                         struct error *error)
{
    enum status status = tokenizer_parse(text, length, "FILE", tokenizer, error);
    if (status == STATUS_OK) {
        assert_non_null(*tokenizer);
        return status;
    }
    assert_null(*tokenizer);
    assert_true(status == STATUS_INVALID || status == STATUS_UNSUPPORTED);
    assert_null(strchr(error->message, '\n'));
    if (strncmp(error->message, "FILE: ", 6) != 0)
        fail_msg("no file's name in: %s", error->message);
    return status;
}

static void assert_refused_text(const char *text, size_t length, const char *wanted)
{
    struct tokenizer *tokenizer;
    struct error error;
    if (parse(text, length, &tokenizer, &error) == STATUS_OK) {
        tokenizer_close(tokenizer);
        fail_msg("taken; wanted a message with \"%s\"", wanted);
    }
    if (!strstr(error.message, wanted))
        fail_msg("no \"%s\" in: %s", wanted, error.message);
}

static void assert_refused(json_t *root, const char *wanted)
{
    char *text = json_dumps(root, 0);
    assert_refused_text(text, strlen(text), wanted);
    free(text);
    json_decref(root);
}

/* Loads a variant and requires the ids that the unchanged file gives. */
static struct tokenizer *load_same(json_t *root, size_t flags)
{
    char *text = json_dumps(root, flags);
    struct tokenizer *tokenizer, *original = tokenizer_tiny();
    struct error error;
    if (parse(text, strlen(text), &tokenizer, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    struct token_list found = encode_text(tokenizer, SAMPLE, strlen(SAMPLE), true);
    struct token_list wanted = encode_text(original, SAMPLE, strlen(SAMPLE), true);
    assert_int_equal(found.length, wanted.length);
    assert_memory_equal(found.data, wanted.data, wanted.length * sizeof *wanted.data);
    assert_int_equal(tokenizer_size(tokenizer), 4083);
    token_list_clear(&found);
    token_list_clear(&wanted);
    tokenizer_close(original);
    free(text);
    json_decref(root);
    return tokenizer;
}

static json_t *with_merges_as_text(void)
{
    json_t *root = tiny_json(), *model = json_object_get(root, "model"), *merges = json_array();
    size_t i;
    json_t *merge;
    json_array_foreach(json_object_get(model, "merges"), i, merge)
    {
        char text[300];
        snprintf(text, sizeof text, "%s %s", json_string_value(json_array_get(merge, 0)),
                 json_string_value(json_array_get(merge, 1)));
        json_array_append_new(merges, json_string(text));
    }
    assert_true(i > 3000);
    json_object_set_new(model, "merges", merges);
    return root;
}

static void both_spellings_of_merges(void **state)
{
    (void)state;
    tokenizer_close(load_same(tiny_json(), 0));
    tokenizer_close(load_same(with_merges_as_text(), 0));
}

static void spacing_escapes_and_order(void **state)
{
    (void)state;
    tokenizer_close(load_same(tiny_json(), JSON_INDENT(4)));
    tokenizer_close(load_same(tiny_json(), JSON_COMPACT));
    tokenizer_close(load_same(with_merges_as_text(), JSON_ENSURE_ASCII));
    tokenizer_close(load_same(tiny_json(), JSON_SORT_KEYS)); /* merges before vocab */
}

static void unknown_and_optional_members(void **state)
{
    (void)state;
    json_t *root = tiny_json();
    set(root, "truncation", "{\"max_length\": 5}");
    set(root, "zzz", "[[[{\"a\": [1e5, -0.5, \"\\ud83d\\ude00\", null, true]}]]]");
    set(root, "model.zzz", "{\"vocab\": {\"a\": -1}}");
    set(root, "model.ignore_merges", NULL);
    set(root, "model.dropout", NULL);
    set(root, "model.continuing_subword_prefix", "null");
    set(root, "post_processor", "null");
    set(root, "added_tokens.0.zzz", "5");
    tokenizer_close(load_same(root, 0));
}

/* The original repository's file has 26 added tokens; the others follow. */
static void missing_added_tokens_follow(void **state)
{
    (void)state;
    json_t *root = tiny_json();
    for (int i = 32; i >= 26; i--) {
        char path[40];
        snprintf(path, sizeof path, "added_tokens.%d", i);
        set(root, path, NULL);
    }
    struct tokenizer *tokenizer = load_same(root, 0);
    assert_int_equal(tokenizer_added_id(tokenizer, "</think>"), 4075);
    assert_int_equal(tokenizer_added_id(tokenizer, "<|audio_start|>"), 4076);
    assert_int_equal(tokenizer_added_id(tokenizer, "<|audio_pad|>"), 4082);
    assert_true(tokenizer_is_special(tokenizer, 4082));
    assert_encodes(tokenizer, "<tts_text_bos_single><tts_text_bos>", true, "4081 4079");
    tokenizer_close(tokenizer);
    root = tiny_json();
    set(root, "added_tokens.2", NULL); /* a gap is where the table says */
    tokenizer = load_same(root, 0);
    assert_int_equal(tokenizer_added_id(tokenizer, "<|im_end|>"), 4052);
    tokenizer_close(tokenizer);
}

static void format_is_checked(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *message;
    } changes[] = {
        {"normalizer", "null", "normalizer.type: found nothing, wanted \"NFC\""},
        {"normalizer.type", "\"NFKC\"", "normalizer.type: found \"NFKC\", wanted \"NFC\""},
        {"pre_tokenizer", NULL, "pre_tokenizer.type: found nothing"},
        {"pre_tokenizer.pretokenizers", "[]", "pretokenizers.0.type: found nothing"},
        {"pre_tokenizer.pretokenizers", "{\"0\": 1}", "pretokenizers.0.type: found nothing"},
        {"pre_tokenizer.pretokenizers.2", "{}", "pretokenizers: found 3, wanted 2"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\p{N}{1,3}\"",
         "pattern.Regex: found \"\\\\p{N}{1,3}\", wanted (?i:"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \"a\"}",
         "pattern.Regex: found nothing"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "behavior: found \"Removed\""},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "invert: found true, wanted false"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "add_prefix_space: found true"},
        {"pre_tokenizer.pretokenizers.1.use_regex", NULL, "use_regex: found nothing"},
        {"post_processor.type", "\"TemplateProcessing\"", "post_processor.type: found \"Template"},
        {"decoder.type", "\"Metaspace\"", "decoder.type: found \"Metaspace\""},
        {"decoder", NULL, "decoder.type: found nothing"},
        {"model", "[]", "wanted an object"},
        {"model", NULL, "model.type: found nothing"},
        {"model.type", "\"Unigram\"", "model.type: found \"Unigram\", wanted \"BPE\""},
        {"model.ignore_merges", "true", "model.ignore_merges: found true, wanted false"},
        {"model.ignore_merges", "{}", "model.ignore_merges: found an object, wanted false"},
        {"model.byte_fallback", "true", "model.byte_fallback: found true"},
        {"model.fuse_unk", "true", "model.fuse_unk: found true"},
        {"model.dropout", "0.1", "model.dropout: found 0.1, wanted null"},
        {"model.unk_token", "\"<unk>\"", "model.unk_token: found \"<unk>\""},
        {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix: found \"</w>\""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        json_t *root = tiny_json();
        set(root, changes[i].path, changes[i].value);
        assert_refused(root, changes[i].message);
    }
}

static void added_tokens_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *message;
    } changes[] = {
        {"added_tokens", NULL, "added_tokens: found nothing, wanted an array"},
        {"added_tokens", "{}", "added_tokens: found an object, wanted an array"},
        {"added_tokens.3.content", "\"<s>\"", "added_tokens[3].content: found \"<s>\", wanted one"},
        {"added_tokens.3.content", "null", "added_tokens[3].content: found null"},
        {"added_tokens.3", "17", "added_tokens[3].content: found nothing"},
        {"added_tokens.3.content", "\"<|im_end|>\"",
         "added_tokens[3]: \"<|im_end|>\" appears twice"},
        {"added_tokens.2.special", "false", "added_tokens[2].special: found false, wanted true"},
        {"added_tokens.24.special", "true", "added_tokens[24].special: found true, wanted false"},
        {"added_tokens.2.special", NULL, "added_tokens[2].special: found nothing, wanted true"},
        {"added_tokens.2.normalized", "true", "added_tokens[2].normalized: found true"},
        {"added_tokens.2.lstrip", "true", "added_tokens[2].lstrip: found true"},
        {"added_tokens.2.rstrip", "true", "added_tokens[2].rstrip: found true"},
        {"added_tokens.2.single_word", "true", "added_tokens[2].single_word: found true"},
        {"added_tokens.2.id", "4051", "added_tokens[2]: id 4051 appears twice"},
        {"added_tokens.2.id", "5", "added_tokens[2].id: found 5, wanted an id from 4050 to 4082"},
        {"added_tokens.2.id", "-1", "added_tokens[2].id: found -1"},
        {"added_tokens.2.id", "4083", "added_tokens[2].id: found 4083"},
        {"added_tokens.2.id", "9223372036854775807",
         "added_tokens[2].id: found 9223372036854775807"},
        {"added_tokens.2.id", "\"4052\"", "added_tokens[2].id: found \"4052\""},
        {"added_tokens.2.id", "4052.0", "added_tokens[2].id: found 4052.0"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        json_t *root = tiny_json();
        set(root, changes[i].path, changes[i].value);
        assert_refused(root, changes[i].message);
    }
}

static void vocabulary_and_merges_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *message;
    } changes[] = {
        {"model.vocab", NULL, "model.vocab: found nothing, wanted an object"},
        {"model.vocab", "[[\"a\", 1]]", "model.vocab: found an array, wanted an object"},
        {"model.vocab", "{}", "no token for the single byte 0x00"},
        {"model.vocab.a", "4049", "two tokens have id 4049"},
        {"model.vocab.a", NULL, "model.vocab: found id 4049 among 4049 tokens"},
        {"model.vocab.a", "4050", "model.vocab: found id 4050 among 4050 tokens"},
        {"model.vocab.a", "-1", "token \"a\" has no id from 0"},
        {"model.vocab.a", "1.5", "token \"a\" has no id from 0"},
        {"model.vocab.a", "1e3", "token \"a\" has no id from 0"},
        {"model.vocab.a", "\"64\"", "token \"a\" has no id from 0"},
        {"model.vocab.a", "9223372036854775807", "token \"a\" has no id from 0"},
        {"model.vocab.zz zz", "4050", "token \"zz zz\" has a character outside the byte-level"},
        {"model.vocab.\u2581the", "4050", "has a character outside the byte-level alphabet"},
        {"model.vocab.", "4050", "model.vocab: token \"\" is empty"},
        {"model.merges", NULL, "model.merges: found nothing, wanted an array"},
        {"model.merges", "{}", "model.merges: found an object, wanted an array"},
        {"model.merges.5", "\"ab\"", "model.merges[5]: found 1 parts, wanted 2"},
        {"model.merges.5", "\" b\"", "model.merges[5]: token \"\" is empty"},
        {"model.merges.5", "\"a b c\"", "model.merges[5]: token \"b c\" has a character outside"},
        {"model.merges.5", "[\"a\"]", "model.merges[5]: found 1 parts, wanted 2"},
        {"model.merges.5", "[\"a\", \"b\", \"c\"]", "model.merges[5]: found more than 2 parts"},
        {"model.merges.5", "[1, 2]", "model.merges[5]: found a number, wanted a string"},
        {"model.merges.5", "7", "model.merges[5]: found a number, wanted a pair of tokens"},
        {"model.merges.5", "[\"zqzq\", \"a\"]", "model.merges[5]: token \"zqzq\" is not in"},
        {"model.merges.5", "[\"z\", \"\u0120\"]", "model.merges[5]: what it makes is not in"},
        {"model.merges.5", "[\"e\", \"r\"]", "model.merges[5]: the same pair as model.merges[0]"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        json_t *root = tiny_json();
        set(root, changes[i].path, changes[i].value);
        assert_refused(root, changes[i].message);
    }
    json_t *root = tiny_json();
    char key[1100], value[10] = "4050";
    memset(key, 'a', sizeof key);
    key[1025] = '\0';
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), key,
                        json_integer(atoi(value)));
    assert_refused(root, "aaa\" is longer than 1024 bytes");
}

static void syntax_is_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } lines[] = {
        {"", "line 1 column 1: found the end, wanted an object"},
        {"[]", "found '[', wanted an object"},
        {"{}", "normalizer.type: found nothing"},
        {"{} x", "line 1 column 4: found 'x', wanted the end"},
        {"\xef\xbb\xbf{}", "found byte 0xef, wanted an object"},
        {"{\"a\": 1,}", "found '}', wanted a value"},
        {"{\"a\" 1}", "found '1', wanted ':'"},
        {"{\"a\": 1 \"b\": 2}", "wanted ',' or '}'"},
        {"{\"a\":\n\n  [1 2]}", "line 3 column 6: found '2', wanted ',' or ']'"},
        {"{\"a\": [1,]}", "found ']', wanted a value"},
        {"{\"a\": tru}", "found 't', wanted true"},
        {"{\"a\": 01}", "wanted ',' or '}'"},
        {"{\"a\": -}", "wanted a digit"},
        {"{\"a\": 1.}", "wanted a digit"},
        {"{\"a\": 1e}", "wanted a digit"},
        {"{\"a\": +1}", "found '+', wanted a value"},
        {"{\"a\": NaN}", "found 'N', wanted a value"},
        {"{\"a\": \"\\x\"}", "found 'x', wanted an escape"},
        {"{\"a\": \"\\u12g4\"}", "found 'g', wanted four hexadecimal digits"},
        {"{\"a\": \"\\ud800\"}", "half of a surrogate pair"},
        {"{\"a\": \"\\ud800\\u0041\"}", "half of a surrogate pair"},
        {"{\"a\": \"\\udc00\"}", "half of a surrogate pair"},
        {"{\"a\": \"\xff\"}", "invalid UTF-8"},
        {"{\"a\": \"\xed\xa0\x80\"}", "invalid UTF-8"},
        {"{\"a\": \"\t\"}", "a control character inside a string"},
        {"{\"a\": \"", "the end inside a string"},
        {"{\"added_tokens\": [99999999999999999999]}", "added_tokens: JSON that is not supported"},
        {"{\"added_tokens\": [1e999]}", "added_tokens: JSON that is not supported"},
        {"{\"model\": {}, \"model\": {}}", "\"model\" appears twice"},
        {"{\"decoder\": {}, \"decoder\": {}}", "\"decoder\" appears twice"},
        {"{\"decoder\": {\"type\": 1, \"type\": 2}}", "decoder: not JSON"},
        {"{\"model\": {\"vocab\": {}, \"vocab\": {}}}", "\"model.vocab\" appears twice"},
        {"{\"model\": {\"type\": 1, \"type\": 1}}", "\"type\" appears twice"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_refused_text(lines[i].text, strlen(lines[i].text), lines[i].message);
    assert_refused_text("{}\0", 3, "found byte 0x00, wanted the end");
    assert_refused_text(NULL, 0, "found the end, wanted an object");
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    size_t n = 1000000;
    char *text = malloc(n + 20);
    static const char *const starts[] = {
        "{\"a\":", "{\"decoder\":", "{\"model\":{\"vocab\":{\"a\":", "{\"model\":{\"merges\":["};
    for (int i = 0; i < 4; i++) {
        size_t length = strlen(starts[i]);
        memcpy(text, starts[i], length);
        memset(text + length, '[', n - length);
        assert_refused_text(text, n, "nested too deep");
    }
    free(text);
}

/* The same token twice: JSON cannot be built with jansson for this one. */
static void duplicates_are_refused(void **state)
{
    (void)state;
    struct file_map map;
    assert_int_equal(file_map_open("models/tiny/tokenizer.json", &map, NULL), STATUS_OK);
    char *text = malloc(map.size + 1);
    memcpy(text, map.data, map.size);
    text[map.size] = '\0';
    char *at = strstr(text, "\"b\": 65");
    assert_non_null(at);
    at[1] = 'a';
    assert_refused_text(text, map.size, "model.vocab: ids 64 and 65 are the same token");
    free(text);
    file_map_close(&map);
}

/* Every kind of cut, and single damaged bytes all over the file: a clear refusal or a whole
 * tokenizer, nothing else. */
static void damaged_files(void **state)
{
    (void)state;
    struct file_map map;
    assert_int_equal(file_map_open("models/tiny/tokenizer.json", &map, NULL), STATUS_OK);
    char *text = malloc(map.size);
    uint32_t random = 7;
    for (int i = 0; i < 150; i++) {
        struct tokenizer *tokenizer;
        struct error error;
        random = random * 1664525 + 1013904223;
        size_t at = (size_t)(random >> 4) % map.size;
        assert_int_equal(parse((const char *)map.data, at, &tokenizer, &error), STATUS_INVALID);
        memcpy(text, map.data, map.size);
        text[at] = (char)(random >> 8);
        if (parse(text, map.size, &tokenizer, &error) == STATUS_OK)
            tokenizer_close(tokenizer);
    }
    free(text);
    file_map_close(&map);
}

static void paths(void **state)
{
    (void)state;
    struct tokenizer *tokenizer;
    struct error error;
    assert_int_equal(tokenizer_open_model("models/tiny", &tokenizer, &error), STATUS_OK);
    tokenizer_close(tokenizer);
    assert_int_equal(tokenizer_open_model("models/none", &tokenizer, &error), STATUS_IO);
    assert_string_equal(error.message, "models/none/tokenizer.json: No such file or directory");
    assert_null(tokenizer);
    assert_int_equal(tokenizer_open("models", &tokenizer, &error), STATUS_INVALID);
    tokenizer_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_of_merges),
        cmocka_unit_test(spacing_escapes_and_order),
        cmocka_unit_test(unknown_and_optional_members),
        cmocka_unit_test(missing_added_tokens_follow),
        cmocka_unit_test(format_is_checked),
        cmocka_unit_test(added_tokens_are_checked),
        cmocka_unit_test(vocabulary_and_merges_are_checked),
        cmocka_unit_test(syntax_is_checked),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
