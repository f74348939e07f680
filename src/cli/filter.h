/* What the commands that filter lines through a model's tokenizer have in common. */
#pragma once

#include <stdint.h>

#include "cli/command.h"
#include "cli/jsonl.h"
#include "text/tokenizer.h"

/* Takes MODEL, and nothing else, from the command line and opens its tokenizer. Returns -1, or the
 * exit code to leave with. */
int filter_open(const struct command *command, int argc, char **argv, const char **model,
                struct tokenizer **tokenizer);
/* Runs the lines through `handler`, whose context is the tokenizer, and closes the tokenizer. */
int filter_run(struct tokenizer *tokenizer, jsonl_handler *handler);
/* Appends ids as a JSON array. */
void filter_print_ids(const int32_t *ids, size_t n, struct bytes *out);
