/* The names that options of some kinds choose among (cli/options.h): what is parsed, what --help
 * says and what the shells complete all come from here, and here from where the thing itself is. */
#pragma once

#include "cli/options.h"

/* The i-th name, counted from 0, or NULL after the last; always NULL for kinds without names. */
const char *choice_name(enum option_kind kind, int i);
bool choice_has(enum option_kind kind, const char *name);
/* Appends them with commas between; `last`, " or " for one, stands before the last. */
void choice_print(enum option_kind kind, const char *last, struct bytes *out);
