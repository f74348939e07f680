/* The opening of a tool call that has to come, after the tag `<tool_call>`: which tokens may come
 * next. It is `\n<function=NAME>\n` for one of some names, then `</function>` or `<parameter=KEY>`
 * with any key, as without one of these it would be no call (reply rule 3). No fixed tokens spell
 * it (spec 7.4), so it is held to its bytes. */
#pragma once

#include "text/tokenizer.h"

struct call_opening {
    const struct tokenizer *tokenizer;
    const char *const *names; /* borrowed */
    int n_names;
    struct bytes text; /* so far */
    size_t tail;       /* where `</function>` or `<parameter=` begins in it; 0: not yet known */
};

/* What follows allocates nothing. */
enum status call_opening_init(struct call_opening *opening, const struct tokenizer *tokenizer,
                              const char *const *names, int n_names, struct error *error);
void call_opening_clear(struct call_opening *opening);
bool call_opening_is_complete(const struct call_opening *opening);
/* Whether a token's bytes continue the opening; they may go on behind its end. */
bool call_opening_allows(const struct call_opening *opening, int32_t id);
void call_opening_add(struct call_opening *opening, int32_t id);
