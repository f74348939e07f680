/* What a tokenizer is made of: shared by the files tokenizer*.c alone. */
#pragma once

#include <jansson.h>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

#define N_ADDED_TOKENS 33

/* The added tokens in the order of their ids (spec 7.2). The ids are data of the file. */
struct added_token {
    const char *content;
    bool special;
};
extern const struct added_token added_tokens[N_ADDED_TOKENS];

struct tokenizer {
    struct vocabulary vocabulary;
    struct bpe bpe;
    int32_t added_ids[N_ADDED_TOKENS];    /* by index in added_tokens */
    int8_t added_by_id[N_ADDED_TOKENS];   /* by id - vocabulary.size: index in added_tokens */
    size_t added_lengths[N_ADDED_TOKENS]; /* of the contents */
    int8_t added_longest[N_ADDED_TOKENS]; /* indices, longest content first */
};

/* The small parts of a tokenizer.json against the spec. `parts` holds those members of the root
 * that are there, and under "model" the members of model without vocab and merges. */
enum status tokenizer_check_format(const json_t *parts, const char *name, struct error *error);
/* Checks the list "added_tokens" and sets the four added_ fields; vocabulary.size must be final.
 * Tokens that the list lacks get the next ids in the order of added_tokens. */
enum status tokenizer_check_added(struct tokenizer *tokenizer, const json_t *list, const char *name,
                                  struct error *error);
