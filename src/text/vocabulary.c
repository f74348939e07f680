#include "text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* Tokens are short, so the hash takes eight bytes at a time and mixes by one product each. */
static uint32_t hash_bytes(const unsigned char *data, size_t length)
{
    uint64_t hash = length * UINT64_C(0x9e3779b97f4a7c15), word;
    for (; length >= 8; data += 8, length -= 8) {
        memcpy(&word, data, 8);
        hash = (hash ^ word) * UINT64_C(0xd6e8feb86659fd93);
        hash ^= hash >> 32;
    }
    word = 0;
    for (size_t i = 0; i < length; i++)
        word |= (uint64_t)data[i] << 8 * i;
    hash = (hash ^ word) * UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(hash >> 32);
}

bool vocabulary_add(struct vocabulary *vocabulary, int32_t id, const void *data, size_t length)
{
    if (vocabulary->size == vocabulary->capacity) {
        int32_t capacity = vocabulary->capacity ? vocabulary->capacity * 2 : 4096;
        struct vocabulary_token *tokens =
            realloc(vocabulary->tokens, (size_t)capacity * sizeof *tokens);
        if (!tokens)
            return false;
        vocabulary->tokens = tokens;
        vocabulary->capacity = capacity;
    }
    vocabulary->tokens[vocabulary->size++] = (struct vocabulary_token){
        .start = (uint32_t)vocabulary->text.length, .length = (uint16_t)length, .id = id};
    bytes_append(&vocabulary->text, data, length);
    return !vocabulary->text.failed;
}

/* Puts every token in the place of its id. Files are in order nearly always: then nothing moves. */
static enum status sort(struct vocabulary *vocabulary, const char *name, struct error *error)
{
    for (int32_t i = 0; i < vocabulary->size; i++)
        if (vocabulary->tokens[i].id < 0 || vocabulary->tokens[i].id >= vocabulary->size)
            return error_set(error, STATUS_INVALID,
                             "%s: model.vocab: found id %d among %d tokens, wanted the ids 0 to %d "
                             "without holes",
                             name, vocabulary->tokens[i].id, vocabulary->size,
                             vocabulary->size - 1);
    for (int32_t i = 0; i < vocabulary->size; i++) {
        while (vocabulary->tokens[i].id != i) { /* each exchange brings one token home */
            struct vocabulary_token token = vocabulary->tokens[i];
            if (vocabulary->tokens[token.id].id == token.id)
                return error_set(error, STATUS_INVALID, "%s: model.vocab: two tokens have id %d",
                                 name, token.id);
            vocabulary->tokens[i] = vocabulary->tokens[token.id];
            vocabulary->tokens[token.id] = token;
        }
    }
    return STATUS_OK;
}

/* The slot that holds these bytes, or the free one where they would go. */
static struct vocabulary_slot *find_slot(const struct vocabulary *vocabulary, const void *data,
                                         size_t length, uint32_t hash)
{
    size_t mask = ((size_t)1 << vocabulary->bits) - 1;
    for (size_t at = hash >> (32 - vocabulary->bits);; at = (at + 1) & mask) {
        struct vocabulary_slot *slot = &vocabulary->slots[at];
        if (slot->id < 0)
            return slot;
        if (slot->hash != hash)
            continue;
        const struct vocabulary_token *token = &vocabulary->tokens[slot->id];
        if (token->length == length &&
            memcmp(vocabulary->text.data + token->start, data, length) == 0)
            return slot;
    }
}

enum status vocabulary_finish(struct vocabulary *vocabulary, const char *name, struct error *error)
{
    enum status status = sort(vocabulary, name, error);
    if (status != STATUS_OK)
        return status;
    vocabulary->bits = 4;
    while ((INT64_C(1) << vocabulary->bits) < (int64_t)vocabulary->size * 2)
        vocabulary->bits++;
    size_t size = sizeof *vocabulary->slots << vocabulary->bits;
    vocabulary->slots = malloc(size);
    if (!vocabulary->slots)
        return error_no_memory(error, "the vocabulary");
    memset(vocabulary->slots, 0xff, size);
    for (int32_t id = 0; id < vocabulary->size; id++) {
        const struct vocabulary_token *token = &vocabulary->tokens[id];
        const char *data = vocabulary->text.data + token->start;
        uint32_t hash = hash_bytes((const unsigned char *)data, token->length);
        struct vocabulary_slot *slot = find_slot(vocabulary, data, token->length, hash);
        if (slot->id >= 0)
            return error_set(error, STATUS_INVALID,
                             "%s: model.vocab: ids %d and %d are the same token", name, slot->id,
                             id);
        *slot = (struct vocabulary_slot){.hash = hash, .id = id};
    }
    return STATUS_OK;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const void *data, size_t length)
{
    return find_slot(vocabulary, data, length, hash_bytes(data, length))->id;
}

void vocabulary_clear(struct vocabulary *vocabulary)
{
    bytes_clear(&vocabulary->text);
    free(vocabulary->tokens);
    free(vocabulary->slots);
    *vocabulary = (struct vocabulary){0};
}
