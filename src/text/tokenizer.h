/* The byte-level BPE tokenizer of the model (spec 7): text to ids and ids to bytes. Built from a
 * checkpoint's tokenizer.json; immutable afterwards, so one tokenizer serves all threads.
 *
 * Added tokens (`<|im_end|>`, `<think>` …) are recognised only inside text that the caller marks
 * `trusted`. Text that comes from users, tools or documents is not trusted: the same letters there
 * stay ordinary text and can never become a control token (spec 7.3 step 1). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

/* Bytes of a text that is encoded at once, at most. */
#define TOKENIZER_TEXT_MAX ((size_t)1 << 28)

struct tokenizer;

/* A growable list of token ids; same failure rule as struct bytes. */
struct token_list {
    int32_t *data;
    size_t length, capacity;
    bool failed;
};

void token_list_append(struct token_list *list, int32_t id);
void token_list_clear(struct token_list *list);

/* A stretch of UTF-8 text. */
struct text_span {
    const char *data;
    size_t length;
    bool trusted; /* added tokens that lie wholly inside this span are recognised */
};

/* Reads a tokenizer.json (both spellings of merges) and checks regex, normaliser and added tokens
 * against the spec. Errors name the file, the field, what was found and what was wanted. */
enum status tokenizer_open(const char *path, struct tokenizer **out, struct error *error);
/* The tokenizer.json of a model's folder. */
enum status tokenizer_open_model(const char *folder, struct tokenizer **out, struct error *error);
/* The same from memory; `name` stands for the path in messages. `data` is not kept. */
enum status tokenizer_parse(const char *data, size_t length, const char *name,
                            struct tokenizer **out, struct error *error);
void tokenizer_close(struct tokenizer *tokenizer);

/* Appends the ids of the spans' text, read as one text: a border between spans does not split a
 * word. Errors: STATUS_INVALID with the byte offset in the joined text when that is not UTF-8, or
 * when it is longer than TOKENIZER_TEXT_MAX; nothing is appended then. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans,
                             size_t n_spans, struct token_list *ids, struct error *error);

/* The id of the added token with exactly this content, -1 when there is none. */
int32_t tokenizer_added_id(const struct tokenizer *tokenizer, const char *content);
/* Whether `id` is an added token that is marked special (spec 7.2). */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* The bytes that `id` stands for (an added token: its content); NULL and 0 for an id that no token
 * has. They may be part of a character. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length);
/* 1 + the highest id: the first padding row of the model's head. */
int32_t tokenizer_size(const struct tokenizer *tokenizer);

/* Ids to text, one id at a time (tests/golden/README.md part 1): each push appends all characters
 * that are complete; only a tail that may still become valid UTF-8 is held back (at most 3 bytes),
 * and bytes that can no longer become valid give one U+FFFD per maximal invalid part (half a
 * surrogate, ED A0..BF, only with the byte after it). */
struct detokenizer {
    const struct tokenizer *tokenizer;
    bool skip_special; /* special ids vanish before their neighbours' bytes are joined */
    unsigned char tail[4];
    int tail_length;
};

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer,
                      bool skip_special);
void detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct bytes *out);
/* The end of generation: a held tail becomes U+FFFD. */
void detokenizer_finish(struct detokenizer *detokenizer, struct bytes *out);
