/* The base tokens of the vocabulary as byte strings: id to bytes and bytes to id. Filled once by
 * the loader, read-only afterwards. Ids are 0 .. size-1 without holes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define TOKEN_ID_MAX ((1 << 20) - 2) /* ids fit 20 bits: text/bpe.c packs two of them */
#define TOKEN_LENGTH_MAX 1024        /* bytes; the longest of the target has 128 */

struct vocabulary {
    struct bytes text; /* all tokens, one after the other */
    struct vocabulary_token {
        uint32_t start;
        uint16_t length;
        int32_t id; /* until vocabulary_finish: order of the file; then of ids */
    } * tokens;
    int32_t size, capacity;
    struct vocabulary_slot {
        uint32_t hash;
        int32_t id; /* -1: free */
    } * slots;      /* open addressing, 1 << bits of them */
    int bits;
};

/* Appends a token; ids may come in any order. */
bool vocabulary_add(struct vocabulary *vocabulary, int32_t id, const void *data, size_t length);
/* Sorts by id and indexes. Refuses holes and duplicates; `name` begins the message. */
enum status vocabulary_finish(struct vocabulary *vocabulary, const char *name, struct error *error);
/* -1 when no token has exactly these bytes. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, const void *data, size_t length);
void vocabulary_clear(struct vocabulary *vocabulary);
