/* The text of a prompt, each stretch of it marked as trusted (the template's own text, where
 * control tokens are recognised) or not (anything that came from users, tools, documents or the
 * model, where they are not: spec 7.3). The template builds it; servers and commands encode it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"
#include "text/tokenizer.h"

/* Zeroed = empty. The stretches cover the text without gaps; none is empty and no two neighbours
 * have the same mark. As with struct bytes, text.failed remembers that memory ran out. */
struct prompt {
    struct bytes text;
    struct prompt_stretch {
        size_t length;
        bool trusted;
    } * stretches;
    size_t n_stretches, capacity;
    /* Lengths in bytes up to which somebody said that the text will be used again, ascending.
     * Places for snapshots, nothing more: they change no token. */
    size_t *breakpoints;
    size_t n_breakpoints, breakpoint_capacity;
};

#define PROMPT_BREAKPOINTS_MAX 4 /* of a prompt's breakpoints only the last so many count */

void prompt_append(struct prompt *prompt, const char *text, size_t length, bool trusted);
/* Marks the last `length` bytes, which the caller appended to prompt->text directly. */
void prompt_mark(struct prompt *prompt, size_t length, bool trusted);
/* Notes a breakpoint at the text's end as it is now. */
void prompt_break(struct prompt *prompt);
/* Appends the bytes [from, to) of another prompt with their marks, and its breakpoints in (from,
 * to]. */
void prompt_append_range(struct prompt *prompt, const struct prompt *source, size_t from,
                         size_t to);
/* Empties the prompt and keeps its memory. */
void prompt_reset(struct prompt *prompt);
void prompt_clear(struct prompt *prompt);

/* Appends the prompt's ids. */
enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer,
                          struct token_list *ids, struct error *error);
/* Appends for each of the last PROMPT_BREAKPOINTS_MAX breakpoints the number of tokens that stand
 * before it, ascending and without repeats: so many of the prompt's `ids` as the text up to there
 * begins with on its own. `ids` are those of prompt_encode. Encodes the text once more for each. */
enum status prompt_encode_breakpoints(const struct prompt *prompt,
                                      const struct tokenizer *tokenizer, const int32_t *ids,
                                      size_t n_ids, struct token_list *lengths,
                                      struct error *error);
