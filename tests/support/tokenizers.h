/* Tokenizers for tests, and lines of JSON. All failures fail the cmocka test. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "text/tokenizer.h"

/* models/tiny's; the caller closes it. */
struct tokenizer *tokenizer_tiny(void);
/* The target's, from the file that CALLA_TOKENIZER names; the test is skipped when it names none
 * (tests/golden/make_tokenizer.py writes that file). */
struct tokenizer *tokenizer_target(void);

/* The ids of one span; cleared by the caller. */
struct token_list encode_text(const struct tokenizer *tokenizer, const char *text, size_t length,
                              bool trusted);
/* Fails with both lists when they differ; `wanted` is an array of integers. */
void assert_ids(const struct token_list *found, const json_t *wanted, const char *what);
/* The same with the ids in words: "1 2 3". */
void assert_encodes(const struct tokenizer *tokenizer, const char *text, bool trusted,
                    const char *ids);

/* Calls `each` with every line of a JSONL file; gives the number of lines. */
int for_each_line(const char *path, void (*each)(void *context, const json_t *line), void *context);
