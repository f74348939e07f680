/* Text to ids: added tokens in trusted spans, NFC of what is between them, pre-tokens, BPE. Words
 * repeat, so each call keeps the ids of short pre-tokens in a cache of its own: the tokenizer
 * itself is never written to and serves all threads. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/scanner.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

/* Far beyond the longest context (262,144 tokens of 128 bytes at most); keeps all counts in 31
 * bits, also after NFC, which makes three bytes of one at most. */
#define TEXT_MAX TOKENIZER_TEXT_MAX

#define KEY_WORDS 4
#define KEY_BYTES (KEY_WORDS * 8 - 1) /* the last byte holds the length */
#define CACHE_IDS 7
#define CACHE_BITS_MAX 14 /* 1 MiB: stays in a second-level cache */

/* One cache line: a pre-token, padded with zeros, and its ids. */
struct cache_slot {
    uint64_t key[KEY_WORDS];
    int32_t ids[CACHE_IDS];
    int32_t n; /* 0: free */
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct token_list *ids;
    struct cache_slot *cache;
    int cache_bits;
    struct bytes normal; /* the NFC of a piece */
    struct bpe_scratch scratch;
    bool all_nfc; /* no piece needs normalising */
    struct error *error;
};

static bool token_list_reserve(struct token_list *list, size_t more)
{
    if (list->failed)
        return false;
    if (list->capacity - list->length >= more)
        return true;
    size_t capacity = list->capacity < 64 ? 64 : list->capacity;
    while (capacity - list->length < more)
        capacity *= 2;
    int32_t *data =
        capacity > SIZE_MAX / sizeof *data ? NULL : realloc(list->data, capacity * sizeof *data);
    if (!data) {
        list->failed = true;
        return false;
    }
    list->data = data;
    list->capacity = capacity;
    return true;
}

void token_list_append(struct token_list *list, int32_t id)
{
    if (token_list_reserve(list, 1))
        list->data[list->length++] = id;
}

void token_list_clear(struct token_list *list)
{
    free(list->data);
    *list = (struct token_list){0};
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    vocabulary_clear(&tokenizer->vocabulary);
    bpe_clear(&tokenizer->bpe);
    free(tokenizer);
}

/* The first `length` bytes at `at` as a key; reads on to a full key where `end` allows it. */
static inline void make_key(uint64_t key[KEY_WORDS], const unsigned char *at, size_t length,
                            const unsigned char *end)
{
    if ((size_t)(end - at) >= KEY_WORDS * 8) {
        memcpy(key, at, KEY_WORDS * 8);
    } else {
        memset(key, 0, KEY_WORDS * 8);
        memcpy(key, at, length);
    }
    static const uint64_t ends[9] = {0,
                                     UINT64_C(0xff),
                                     UINT64_C(0xffff),
                                     UINT64_C(0xffffff),
                                     UINT64_C(0xffffffff),
                                     UINT64_C(0xffffffffff),
                                     UINT64_C(0xffffffffffff),
                                     UINT64_C(0xffffffffffffff),
                                     UINT64_MAX};
    for (size_t i = 0; i < KEY_WORDS; i++) {
        size_t left = length > i * 8 ? length - i * 8 : 0;
        key[i] &= ends[left > 8 ? 8 : left];
    }
    key[KEY_WORDS - 1] |= (uint64_t)length << 56;
}

static inline size_t key_place(const uint64_t key[KEY_WORDS], int bits)
{
    uint64_t mixed = (key[0] ^ key[1] * UINT64_C(0x9e3779b97f4a7c15)) +
                     (key[2] ^ key[3] * UINT64_C(0xc2b2ae3d27d4eb4f)) * 5;
    mixed = (mixed ^ mixed >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return (size_t)(mixed >> (64 - bits));
}

/* Appends the ids of one pre-token; the list has room. `end`: where readable text ends. */
static bool encode_pretoken(struct encoder *encoder, const unsigned char *at, size_t length,
                            const unsigned char *end)
{
    const struct bpe *bpe = &encoder->tokenizer->bpe;
    struct token_list *ids = encoder->ids;
    int32_t *out = ids->data + ids->length;
    if (length == 1) {
        *out = bpe->byte_ids[*at];
        ids->length++;
        return true;
    }
    struct cache_slot *slot = NULL;
    uint64_t key[KEY_WORDS];
    if (length <= KEY_BYTES) {
        make_key(key, at, length, end);
        slot = &encoder->cache[key_place(key, encoder->cache_bits)];
        if (((slot->key[0] ^ key[0]) | (slot->key[1] ^ key[1]) | (slot->key[2] ^ key[2]) |
             (slot->key[3] ^ key[3])) == 0) {
            for (int i = 0; i < slot->n; i++)
                out[i] = slot->ids[i];
            ids->length += (size_t)slot->n;
            return true;
        }
    }
    int64_t n = bpe_encode(bpe, at, length, out, &encoder->scratch);
    if (n < 0)
        return false;
    ids->length += (size_t)n;
    if (slot && n <= CACHE_IDS) {
        memcpy(slot->key, key, sizeof key);
        memcpy(slot->ids, out, (size_t)n * sizeof *out);
        slot->n = (int32_t)n;
    }
    return true;
}

/* A piece of ordinary text: no added token in it or across its ends. */
static enum status encode_piece(struct encoder *encoder, const char *text, size_t length)
{
    if (length == 0)
        return STATUS_OK;
    if (!encoder->all_nfc && !unicode_is_nfc(text, length)) {
        bytes_reset(&encoder->normal);
        enum status status = unicode_nfc(text, length, &encoder->normal, encoder->error);
        if (status != STATUS_OK)
            return status;
        text = encoder->normal.data;
        length = encoder->normal.length;
    }
    const unsigned char *at = (const unsigned char *)text, *end = at + length;
    while (at < end) {
        const unsigned char *next = scanner_next(at, end);
        if (!token_list_reserve(encoder->ids, (size_t)(next - at)) ||
            !encode_pretoken(encoder, at, (size_t)(next - at), end))
            return error_no_memory(encoder->error, "the text's tokens");
        at = next;
    }
    return STATUS_OK;
}

/* The added token that begins at `at`, as an index; -1 when there is none. */
static int added_at(const struct tokenizer *tokenizer, const char *at, size_t left)
{
    for (int i = 0; i < N_ADDED_TOKENS; i++) {
        int index = tokenizer->added_longest[i];
        if (tokenizer->added_lengths[index] <= left &&
            memcmp(at, added_tokens[index].content, tokenizer->added_lengths[index]) == 0)
            return index;
    }
    return -1;
}

/* Encodes the spans, whose joined bytes are `text`. */
static enum status encode_spans(struct encoder *encoder, const char *text,
                                const struct text_span *spans, size_t n_spans)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    const char *piece = text, *at = text; /* ordinary text since `piece` */
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n_spans && status == STATUS_OK; i++) {
        const char *end = at + spans[i].length;
        if (!spans[i].trusted) {
            at = end;
            continue;
        }
        /* every added token begins with '<' */
        while (at < end && (at = memchr(at, '<', (size_t)(end - at))) != NULL) {
            int index = added_at(tokenizer, at, (size_t)(end - at));
            if (index < 0) {
                at++;
                continue;
            }
            status = encode_piece(encoder, piece, (size_t)(at - piece));
            if (status != STATUS_OK)
                return status;
            token_list_append(encoder->ids, tokenizer->added_ids[index]);
            if (encoder->ids->failed)
                return error_no_memory(encoder->error, "the text's tokens");
            at += tokenizer->added_lengths[index];
            piece = at;
        }
        at = end;
    }
    return encode_piece(encoder, piece, (size_t)(at - piece));
}

/* The spans' bytes in one run: the span itself when there is one, else a copy in `copy`. */
static enum status join_spans(const struct text_span *spans, size_t n_spans, struct bytes *copy,
                              const char **text, size_t *length, struct error *error)
{
    *length = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].length > TEXT_MAX - *length)
            return error_set(error, STATUS_INVALID, "text: longer than %zu bytes", TEXT_MAX);
        *length += spans[i].length;
    }
    *text = n_spans ? spans[0].data : NULL;
    for (size_t i = 0; n_spans > 1 && i < n_spans; i++)
        bytes_append(copy, spans[i].data, spans[i].length);
    if (n_spans > 1)
        *text = copy->data;
    return copy->failed ? error_no_memory(error, "the text") : STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans,
                             size_t n_spans, struct token_list *ids, struct error *error)
{
    struct encoder encoder = {.tokenizer = tokenizer, .ids = ids, .cache_bits = 4, .error = error};
    struct bytes copy = {0};
    const char *text = NULL;
    size_t length = 0, before = ids->length;
    enum status status = join_spans(spans, n_spans, &copy, &text, &length, error);
    if (status == STATUS_OK && length > 0) {
        size_t valid = utf8_valid_length(text, length);
        if (valid < length)
            status = error_set(error, STATUS_INVALID, "text: invalid UTF-8 at byte %zu", valid);
    }
    if (status == STATUS_OK && length > 0) {
        while (encoder.cache_bits < CACHE_BITS_MAX && length >> encoder.cache_bits > 8)
            encoder.cache_bits++;
        encoder.cache = calloc((size_t)1 << encoder.cache_bits, sizeof *encoder.cache);
        encoder.all_nfc = unicode_is_nfc(text, length);
        status = encoder.cache && token_list_reserve(ids, length / 4)
                     ? encode_spans(&encoder, text, spans, n_spans)
                     : error_no_memory(error, "the text's tokens");
    }
    free(encoder.cache);
    bytes_clear(&encoder.normal);
    bpe_scratch_clear(&encoder.scratch);
    bytes_clear(&copy);
    if (status != STATUS_OK)
        ids->length = before;
    return status;
}

int32_t tokenizer_added_id(const struct tokenizer *tokenizer, const char *content)
{
    for (int i = 0; i < N_ADDED_TOKENS; i++)
        if (strcmp(added_tokens[i].content, content) == 0)
            return tokenizer->added_ids[i];
    return -1;
}

/* The index in added_tokens, -1 for all other ids. */
static int added_index(const struct tokenizer *tokenizer, int32_t id)
{
    int32_t first = tokenizer->vocabulary.size;
    return id >= first && id < first + N_ADDED_TOKENS ? tokenizer->added_by_id[id - first] : -1;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    int index = added_index(tokenizer, id);
    return index >= 0 && added_tokens[index].special;
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length)
{
    int index = added_index(tokenizer, id);
    *length = 0;
    if (index >= 0) {
        *length = tokenizer->added_lengths[index];
        return added_tokens[index].content;
    }
    if (id < 0 || id >= tokenizer->vocabulary.size)
        return NULL;
    const struct vocabulary_token *token = &tokenizer->vocabulary.tokens[id];
    *length = token->length;
    return tokenizer->vocabulary.text.data + token->start;
}

int32_t tokenizer_size(const struct tokenizer *tokenizer)
{
    return tokenizer->vocabulary.size + N_ADDED_TOKENS;
}
