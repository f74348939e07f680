/* Log probabilities as the two APIs spell them. Entries are gathered in a buffer while tokens come
 * and put into an answer or a chunk as a whole; a stream resets the gatherer after each chunk.
 * Numbers are finite: -9999.0 is the floor. Memory failure shows in the buffers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* A token's bytes, which may be part of a character, and its natural logarithm. */
struct openai_logprob {
    const char *data;
    size_t length;
    double logprob;
};

/* Chat: entries of logprobs.content, with commas. `top` may be NULL when n_top is 0. */
void openai_chat_logprob(const struct openai_logprob *token, const struct openai_logprob *top,
                         int n_top, struct bytes *entries);

/* Completions: four arrays side by side. Starts as zeros; `offset` is the place, in characters,
 * of the next token in the choice's text. */
struct openai_text_logprobs {
    struct bytes tokens, token_logprobs, top_logprobs, offsets;
    int64_t offset;
};

/* `known`: false for the first token of an echoed prompt, which has no logprob: null. The token
 * itself is always one of the top ones. */
void openai_text_logprob(struct openai_text_logprobs *logprobs, const struct openai_logprob *token,
                         bool known, const struct openai_logprob *top, int n_top);
/* Empties the arrays and keeps offset and memory: for the next chunk. */
void openai_text_logprobs_reset(struct openai_text_logprobs *logprobs);
void openai_text_logprobs_clear(struct openai_text_logprobs *logprobs);
/* Appends the object. */
void openai_text_logprobs_print(const struct openai_text_logprobs *logprobs, struct bytes *out);
