/* The options that `calla run` and `calla chat` share: how a model is opened, how it reasons and
 * how tokens are drawn. What is not given comes from --preset, else from the checkpoint. */
#pragma once

#include "calla.h"
#include "cli/device.h"
#include "cli/options.h"

struct generation {
    struct calla_open_options open; /* complete after generation_check */
    const char *system, *preset;
    bool think, no_think;
    struct option_list stop;
    int64_t seed;
    /* the values of options, and which of them were given */
    struct calla_request values;
    int64_t top_k_value, max_tokens_value, context_value;
    struct device_options device;
    bool lock, warm_up;
    bool temperature, top_p, top_k, min_p, presence, frequency, repetition;
    bool flag; /* scratch: flags are told by whether they were given */
};

#define GENERATION_OPTIONS 21 /* rows that generation_add_options adds */

/* Sets the defaults: a seed from the clock, lines of calla_open to stderr. */
void generation_init(struct generation *generation);
/* Appends the rows to a table, whose end is `n` rows in, with a new end. */
void generation_add_options(struct generation *generation, struct option *table, int n);
/* After parsing. Returns -1, or the exit code after a line about a usage error. */
int generation_check(const struct command *command, struct generation *generation);
/* Fills the sampling and thinking of a request, and nothing else is left in it. */
enum calla_status generation_fill(const struct generation *generation,
                                  const struct calla_model *model, struct calla_request *request,
                                  struct calla_error *error);
