/* A tokenizer.json may only say what our code does (spec 7.1, 7.2): everything that would change
 * the ids is compared with that, and refused by name when it differs. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/scanner.h"
#include "text/tokenizer_parts.h"

const struct added_token added_tokens[N_ADDED_TOKENS] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};

/* One rule: the value at a path must be `wanted`, which is JSON. */
struct rule {
    const char *path; /* members and indices, with dots */
    const char *wanted;
    bool optional;     /* whether it may be absent */
    const char *other; /* a second spelling of the same; may be NULL */
};

static const struct rule rules[] = {
    {"normalizer.type", "\"NFC\"", false, NULL},
    {"pre_tokenizer.type", "\"Sequence\"", false, NULL},
    {"pre_tokenizer.pretokenizers.0.type", "\"Split\"", false, NULL},
    {"pre_tokenizer.pretokenizers.0.behavior", "\"Isolated\"", false, NULL},
    {"pre_tokenizer.pretokenizers.0.invert", "false", false, NULL},
    {"pre_tokenizer.pretokenizers.1.type", "\"ByteLevel\"", false, NULL},
    {"pre_tokenizer.pretokenizers.1.add_prefix_space", "false", false, NULL},
    {"pre_tokenizer.pretokenizers.1.use_regex", "false", false, NULL},
    {"post_processor.type", "\"ByteLevel\"", true, NULL},
    {"decoder.type", "\"ByteLevel\"", false, NULL},
    {"model.type", "\"BPE\"", false, NULL},
    {"model.dropout", "null", true, NULL},
    {"model.unk_token", "null", true, NULL},
    {"model.continuing_subword_prefix", "\"\"", true, "null"},
    {"model.end_of_word_suffix", "\"\"", true, "null"},
    {"model.fuse_unk", "false", true, NULL},
    {"model.byte_fallback", "false", true, NULL},
    {"model.ignore_merges", "false", true, NULL},
};

static const json_t *find(const json_t *value, const char *path)
{
    char step[40];
    while (value && *path) {
        size_t length = strcspn(path, ".");
        memcpy(step, path, length);
        step[length] = '\0';
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(step))
                                     : json_object_get(value, step);
        path += length + (path[length] == '.');
    }
    return value;
}

/* A value for a message: its JSON when that is short. */
static enum status wrong(const char *name, const char *path, const json_t *found,
                         const char *wanted, struct error *error)
{
    struct bytes text = {0};
    const char *what = "nothing";
    if (json_is_object(found))
        what = "an object";
    else if (json_is_array(found))
        what = "an array";
    else if (found) {
        json_print(found, &text);
        what = bytes_terminate(&text) ? text.data : "another value";
    }
    size_t length = strlen(what);
    int shown = utf8_shown(what, length, 150);
    enum status status = error_set(error, STATUS_INVALID, "%s: %s: found %.*s%s, wanted %s", name,
                                   path, shown, what, (size_t)shown < length ? "…" : "", wanted);
    bytes_clear(&text);
    return status;
}

/* Whether a scalar is what `json` spells: one of true, false, null, "letters". */
static bool is(const json_t *value, const char *json)
{
    if (json[0] == '"') {
        size_t length = strlen(json) - 2;
        return json_is_string(value) && json_string_length(value) == length &&
               memcmp(json_string_value(value), json + 1, length) == 0;
    }
    return json[0] == 'n'   ? json_is_null(value)
           : json[0] == 't' ? json_is_true(value)
                            : json_is_false(value);
}

enum status tokenizer_check_format(const json_t *parts, const char *name, struct error *error)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct rule *rule = &rules[i];
        const json_t *found = find(parts, rule->path);
        if (!found && rule->optional) /* also a member of a "post_processor" that is null */
            continue;
        if (!is(found, rule->wanted) && !(rule->other && is(found, rule->other)))
            return wrong(name, rule->path, found, rule->wanted, error);
    }
    const json_t *list = find(parts, "pre_tokenizer.pretokenizers");
    if (!json_is_array(list) || json_array_size(list) != 2)
        return error_set(error, STATUS_INVALID,
                         "%s: pre_tokenizer.pretokenizers: found %zu, wanted 2", name,
                         json_array_size(list));
    const json_t *regex = find(parts, "pre_tokenizer.pretokenizers.0.pattern.Regex");
    if (!json_is_string(regex) || json_string_length(regex) != strlen(scanner_regex) ||
        strcmp(json_string_value(regex), scanner_regex) != 0)
        return wrong(name, "pre_tokenizer.pretokenizers.0.pattern.Regex", regex, scanner_regex,
                     error);
    return STATUS_OK;
}

static int added_index(const json_t *content)
{
    for (int i = 0; json_is_string(content) && i < N_ADDED_TOKENS; i++)
        if (json_string_length(content) == strlen(added_tokens[i].content) &&
            strcmp(json_string_value(content), added_tokens[i].content) == 0)
            return i;
    return -1;
}

/* One entry of the list: sets the id of the token that it describes. */
static enum status check_entry(struct tokenizer *tokenizer, const json_t *entry, const char *name,
                               const char *path, struct error *error)
{
    char at[80];
    const json_t *content = json_object_get(entry, "content");
    int index = added_index(content);
    if (index < 0) {
        snprintf(at, sizeof at, "%s.content", path);
        return wrong(name, at, content, "one of the model's 33 added tokens", error);
    }
    if (tokenizer->added_ids[index] >= 0)
        return error_set(error, STATUS_INVALID, "%s: %s: \"%s\" appears twice", name, path,
                         added_tokens[index].content);
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    for (int i = 0; i < 5; i++) {
        const char *wanted = i == 4 && added_tokens[index].special ? "true" : "false";
        const json_t *flag = json_object_get(entry, flags[i]);
        snprintf(at, sizeof at, "%s.%s", path, flags[i]);
        if (!is(flag, wanted))
            return wrong(name, at, flag, wanted, error);
    }
    const json_t *id = json_object_get(entry, "id");
    int32_t first = tokenizer->vocabulary.size;
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < first || value >= first + N_ADDED_TOKENS) {
        char wanted[60];
        snprintf(at, sizeof at, "%s.id", path);
        snprintf(wanted, sizeof wanted, "an id from %d to %d", first, first + N_ADDED_TOKENS - 1);
        return wrong(name, at, id, wanted, error);
    }
    int offset = (int)(value - first);
    if (tokenizer->added_by_id[offset] >= 0)
        return error_set(error, STATUS_INVALID, "%s: %s: id %d appears twice", name, path,
                         (int)value);
    tokenizer->added_ids[index] = (int32_t)value;
    tokenizer->added_by_id[offset] = (int8_t)index;
    return STATUS_OK;
}

static void sort_by_length(struct tokenizer *tokenizer)
{
    for (int i = 0; i < N_ADDED_TOKENS; i++) {
        tokenizer->added_lengths[i] = strlen(added_tokens[i].content);
        int at = i;
        for (; at > 0; at--) {
            int8_t before = tokenizer->added_longest[at - 1];
            if (tokenizer->added_lengths[before] >= tokenizer->added_lengths[i])
                break;
            tokenizer->added_longest[at] = before;
        }
        tokenizer->added_longest[at] = (int8_t)i;
    }
}

enum status tokenizer_check_added(struct tokenizer *tokenizer, const json_t *list, const char *name,
                                  struct error *error)
{
    if (!json_is_array(list))
        return wrong(name, "added_tokens", list, "an array", error);
    memset(tokenizer->added_ids, 0xff, sizeof tokenizer->added_ids);
    memset(tokenizer->added_by_id, 0xff, sizeof tokenizer->added_by_id);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[40];
        snprintf(path, sizeof path, "added_tokens[%zu]", i);
        enum status status = check_entry(tokenizer, json_array_get(list, i), name, path, error);
        if (status != STATUS_OK)
            return status;
    }
    /* The original repository's file lacks the last seven. A file whose own ids leave a gap is
     * filled in the same way: the order of the table is the order of the ids. */
    int offset = 0;
    for (int index = 0; index < N_ADDED_TOKENS; index++) {
        if (tokenizer->added_ids[index] >= 0)
            continue;
        while (tokenizer->added_by_id[offset] >= 0)
            offset++;
        tokenizer->added_ids[index] = tokenizer->vocabulary.size + offset;
        tokenizer->added_by_id[offset] = (int8_t)index;
    }
    sort_by_length(tokenizer);
    return STATUS_OK;
}
