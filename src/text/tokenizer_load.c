/* tokenizer.json to a struct tokenizer. The file is read twice without building it in memory: the
 * first pass checks the syntax of all of it and notes where the parts are; then the small parts go
 * to jansson and tokenizer_check.c, and vocab and merges, 19 of its 20 MB, are read in place. */
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/json.h"
#include "base/json_reader.h"
#include "base/utf8.h"
#include "text/tokenizer_parts.h"

/* Tokens are written in an alphabet of one character for each byte: printable Latin-1 for itself,
 * the other 68 bytes from U+0100 on (spec 7.3 step 4). */
#define ALPHABET_END 0x144

struct part {
    const char *text;
    size_t length;
};

struct loader {
    struct tokenizer *tokenizer;
    struct json_reader reader;
    const char *name;
    struct error *error;
    json_t *parts; /* see tokenizer_check_format; "added_tokens" too */
    struct part vocab, merges;
    int32_t merge;                 /* the entry of merges that is being read, -1 while vocab is */
    int16_t byte_of[ALPHABET_END]; /* by code point; -1: not in the alphabet */
};

/* Where the second pass is, for messages. */
struct place {
    char text[40];
};
static struct place place(const struct loader *loader)
{
    struct place place = {"model.vocab"};
    if (loader->merge >= 0)
        snprintf(place.text, sizeof place.text, "model.merges[%d]", loader->merge);
    return place;
}

static void fill_alphabet(struct loader *loader)
{
    memset(loader->byte_of, 0xff, sizeof loader->byte_of);
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        bool itself =
            (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || (byte > 173 && byte < 256);
        loader->byte_of[itself ? byte : next++] = (int16_t)byte;
    }
}

static enum status refuse_token(struct loader *loader, const char *text, size_t length,
                                const char *problem)
{
    return error_set(loader->error, STATUS_INVALID, "%s: %s: token \"%.*s\" %s", loader->name,
                     place(loader).text, utf8_shown(text, length, 60), text, problem);
}

/* Turns a token's characters into the bytes that they stand for. */
static enum status to_bytes(struct loader *loader, const char *text, size_t length,
                            unsigned char bytes[TOKEN_LENGTH_MAX], size_t *n)
{
    *n = 0;
    for (size_t i = 0, size; i < length; i += size) {
        uint32_t c = utf8_decode((const unsigned char *)text + i, &size);
        int byte = c < ALPHABET_END ? loader->byte_of[c] : -1;
        if (byte < 0)
            return refuse_token(loader, text, length,
                                "has a character outside the byte-level alphabet");
        if (*n == TOKEN_LENGTH_MAX)
            return refuse_token(loader, text, length, "is longer than 1024 bytes");
        bytes[(*n)++] = (unsigned char)byte;
    }
    return *n > 0 ? STATUS_OK : refuse_token(loader, text, length, "is empty");
}

/* Reads one value with jansson into `object`. */
static enum status keep(struct loader *loader, json_t *object, const char *key)
{
    struct part part;
    if (!json_reader_skip(&loader->reader, &part.text, &part.length))
        return loader->reader.status;
    if (json_object_get(object, key))
        return error_set(loader->error, STATUS_INVALID, "%s: \"%s\" appears twice", loader->name,
                         key);
    char name[300];
    snprintf(name, sizeof name, "%s: %s", loader->name, key);
    json_t *value;
    enum status status = json_parse_strict(part.text, part.length, name, &value, loader->error);
    if (status != STATUS_OK)
        return status;
    if (json_object_set_new(object, key, value) != 0)
        return error_no_memory(loader->error, "tokenizer.json");
    return STATUS_OK;
}

/* Remembers where a large part is. */
static enum status note(struct loader *loader, struct part *part, char open, const char *key)
{
    if (part->text)
        return error_set(loader->error, STATUS_INVALID, "%s: \"%s\" appears twice", loader->name,
                         key);
    if (json_reader_kind(&loader->reader) != open)
        return error_set(loader->error, STATUS_INVALID, "%s: %s: found %s, wanted %s", loader->name,
                         key, json_reader_kind_name(&loader->reader),
                         open == '{' ? "an object" : "an array");
    json_reader_skip(&loader->reader, &part->text, &part->length);
    return loader->reader.status;
}

static bool key_is(const char *key, size_t length, const char *wanted)
{
    return strlen(wanted) == length && memcmp(key, wanted, length) == 0;
}

/* The name among `names` (ended by NULL) that a key is. */
static const char *key_among(const char *key, size_t length, const char *const *names)
{
    while (*names && !key_is(key, length, *names))
        names++;
    return *names;
}

static enum status read_model(struct loader *loader)
{
    static const char *const names[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        NULL};
    struct json_reader *reader = &loader->reader;
    json_t *model = json_object();
    if (json_object_get(loader->parts, "model")) {
        json_decref(model);
        return error_set(loader->error, STATUS_INVALID, "%s: \"model\" appears twice",
                         loader->name);
    }
    if (!model || json_object_set_new(loader->parts, "model", model) != 0)
        return error_no_memory(loader->error, "tokenizer.json");
    if (!json_reader_enter(reader, '{'))
        return reader->status;
    bool first = true;
    const char *key;
    size_t length;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && json_reader_member(reader, &first, &key, &length)) {
        const char *name = key_among(key, length, names);
        if (name)
            status = keep(loader, model, name);
        else if (key_is(key, length, "vocab"))
            status = note(loader, &loader->vocab, '{', "model.vocab");
        else if (key_is(key, length, "merges"))
            status = note(loader, &loader->merges, '[', "model.merges");
        else
            json_reader_skip(reader, NULL, NULL);
    }
    return status != STATUS_OK ? status : reader->status;
}

/* The first pass. */
static enum status read_root(struct loader *loader)
{
    static const char *const names[] = {"added_tokens",   "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",    NULL};
    struct json_reader *reader = &loader->reader;
    if (!json_reader_enter(reader, '{'))
        return reader->status;
    bool first = true;
    const char *key;
    size_t length;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && json_reader_member(reader, &first, &key, &length)) {
        const char *name = key_among(key, length, names);
        if (name)
            status = keep(loader, loader->parts, name);
        else if (key_is(key, length, "model"))
            status = read_model(loader);
        else
            json_reader_skip(reader, NULL, NULL);
    }
    if (status == STATUS_OK)
        json_reader_finish(reader);
    return status != STATUS_OK ? status : reader->status;
}

static enum status read_vocab(struct loader *loader)
{
    if (!loader->vocab.text)
        return error_set(loader->error, STATUS_INVALID,
                         "%s: model.vocab: found nothing, wanted an object", loader->name);
    struct json_reader *reader = &loader->reader;
    struct vocabulary *vocabulary = &loader->tokenizer->vocabulary;
    json_reader_seek(reader, loader->vocab.text, loader->vocab.length);
    json_reader_enter(reader, '{');
    bool first = true;
    const char *key;
    size_t length, n;
    while (json_reader_member(reader, &first, &key, &length)) {
        unsigned char bytes[TOKEN_LENGTH_MAX];
        enum status status = to_bytes(loader, key, length, bytes, &n);
        if (status != STATUS_OK)
            return status;
        int64_t id = -1;
        if (json_reader_kind(reader) != '0' || !json_reader_integer(reader, &id) || id < 0 ||
            id > TOKEN_ID_MAX - N_ADDED_TOKENS)
            return refuse_token(loader, key, length, "has no id from 0 to 1048541");
        if (vocabulary->size > TOKEN_ID_MAX - N_ADDED_TOKENS)
            return error_set(loader->error, STATUS_INVALID, "%s: model.vocab: too many tokens",
                             loader->name);
        if (!vocabulary_add(vocabulary, (int32_t)id, bytes, n))
            return error_no_memory(loader->error, "the vocabulary");
    }
    return reader->status != STATUS_OK ? reader->status
                                       : vocabulary_finish(vocabulary, loader->name, loader->error);
}

static enum status find_bytes(struct loader *loader)
{
    for (int byte = 0; byte < 256; byte++) {
        unsigned char data = (unsigned char)byte;
        int32_t id = vocabulary_find(&loader->tokenizer->vocabulary, &data, 1);
        if (id < 0)
            return error_set(loader->error, STATUS_INVALID,
                             "%s: model.vocab: no token for the single byte 0x%02x", loader->name,
                             byte);
        loader->tokenizer->bpe.byte_ids[byte] = id;
    }
    return STATUS_OK;
}

/* A merge being read: its parts' bytes, one after the other, and their ids. */
struct merge {
    unsigned char bytes[2 * TOKEN_LENGTH_MAX];
    size_t length;
    int32_t ids[2];
    int n;
};

static enum status merge_part(struct loader *loader, struct merge *merge, const char *text,
                              size_t length)
{
    size_t n;
    if (merge->n == 2)
        return error_set(loader->error, STATUS_INVALID, "%s: %s: found more than 2 parts, wanted 2",
                         loader->name, place(loader).text);
    enum status status = to_bytes(loader, text, length, merge->bytes + merge->length, &n);
    if (status != STATUS_OK)
        return status;
    int32_t id = vocabulary_find(&loader->tokenizer->vocabulary, merge->bytes + merge->length, n);
    if (id < 0)
        return refuse_token(loader, text, length, "is not in model.vocab");
    merge->ids[merge->n++] = id;
    merge->length += n;
    return STATUS_OK;
}

/* One entry of the list, in either spelling: ["a", "b"] or "a b". */
static enum status read_merge(struct loader *loader, struct merge *merge)
{
    struct json_reader *reader = &loader->reader;
    const char *text;
    size_t length;
    enum status status = STATUS_OK;
    char kind = json_reader_kind(reader);
    merge->n = 0;
    merge->length = 0;
    if (kind == '[') {
        bool first = true;
        json_reader_enter(reader, '[');
        while (status == STATUS_OK && json_reader_element(reader, &first))
            if (json_reader_kind(reader) != '"')
                return error_set(loader->error, STATUS_INVALID, "%s: %s: found %s, wanted a string",
                                 loader->name, place(loader).text, json_reader_kind_name(reader));
            else if (json_reader_string(reader, &text, &length))
                status = merge_part(loader, merge, text, length);
    } else if (kind == '"') {
        if (json_reader_string(reader, &text, &length)) {
            const char *space = memchr(text, ' ', length);
            size_t left = space ? (size_t)(space - text) : length;
            status = merge_part(loader, merge, text, left);
            if (status == STATUS_OK && space)
                status = merge_part(loader, merge, space + 1, length - left - 1);
        }
    } else {
        status =
            error_set(loader->error, STATUS_INVALID, "%s: %s: found %s, wanted a pair of tokens",
                      loader->name, place(loader).text, json_reader_kind_name(reader));
    }
    if (status == STATUS_OK && reader->status == STATUS_OK && merge->n != 2)
        status = error_set(loader->error, STATUS_INVALID, "%s: %s: found %d parts, wanted 2",
                           loader->name, place(loader).text, merge->n);
    return status != STATUS_OK ? status : reader->status;
}

static enum status read_merges(struct loader *loader)
{
    if (!loader->merges.text)
        return error_set(loader->error, STATUS_INVALID,
                         "%s: model.merges: found nothing, wanted an array", loader->name);
    struct json_reader *reader = &loader->reader;
    struct bpe *bpe = &loader->tokenizer->bpe;
    const struct vocabulary *vocabulary = &loader->tokenizer->vocabulary;
    struct merge merge;
    json_reader_seek(reader, loader->merges.text, loader->merges.length);
    json_reader_enter(reader, '[');
    for (bool first = true; json_reader_element(reader, &first);) {
        loader->merge = bpe->n_merges;
        enum status status = read_merge(loader, &merge);
        if (status != STATUS_OK)
            return status;
        int32_t result = vocabulary_find(vocabulary, merge.bytes, merge.length);
        if (result < 0)
            return error_set(loader->error, STATUS_INVALID,
                             "%s: %s: what it makes is not in model.vocab", loader->name,
                             place(loader).text);
        if (bpe->n_merges > BPE_RANK_MAX)
            return error_set(loader->error, STATUS_INVALID, "%s: model.merges: too many merges",
                             loader->name);
        if (!bpe_add(bpe, merge.ids[0], merge.ids[1], result))
            return error_no_memory(loader->error, "the merges");
    }
    return reader->status != STATUS_OK ? reader->status
                                       : bpe_finish(bpe, loader->name, loader->error);
}

static enum status load(struct loader *loader)
{
    enum status status = read_root(loader);
    if (status == STATUS_OK)
        status = tokenizer_check_format(loader->parts, loader->name, loader->error);
    if (status == STATUS_OK)
        status = read_vocab(loader);
    if (status == STATUS_OK)
        status = find_bytes(loader);
    if (status == STATUS_OK)
        status =
            tokenizer_check_added(loader->tokenizer, json_object_get(loader->parts, "added_tokens"),
                                  loader->name, loader->error);
    return status == STATUS_OK ? read_merges(loader) : status;
}

enum status tokenizer_parse(const char *data, size_t length, const char *name,
                            struct tokenizer **out, struct error *error)
{
    struct loader loader = {.name = name, .error = error, .merge = -1};
    *out = NULL;
    loader.tokenizer = calloc(1, sizeof *loader.tokenizer);
    loader.parts = json_object();
    enum status status;
    if (loader.tokenizer && loader.parts) {
        fill_alphabet(&loader);
        json_reader_init(&loader.reader, data, length, name, error);
        status = load(&loader);
        json_reader_clear(&loader.reader);
    } else {
        status = error_no_memory(error, "the tokenizer");
    }
    json_decref(loader.parts);
    if (status == STATUS_OK)
        *out = loader.tokenizer;
    else
        tokenizer_close(loader.tokenizer);
    return status;
}

enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *error)
{
    *out = NULL;
    struct file_map map;
    enum status status = file_map_open(path, &map, error);
    if (status != STATUS_OK)
        return status;
    status = tokenizer_parse((const char *)map.data, map.size, path, out, error);
    file_map_close(&map);
    return status;
}

enum status tokenizer_open_model(const char *folder, struct tokenizer **out, struct error *error)
{
    struct bytes path = {0};
    bytes_format(&path, "%s/tokenizer.json", folder);
    *out = NULL;
    enum status status = bytes_terminate(&path) ? tokenizer_open(path.data, out, error)
                                                : error_no_memory(error, "a path");
    bytes_clear(&path);
    return status;
}
