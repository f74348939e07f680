/* A text on which models are measured (models/tiny/reference/README.md, "perplexity"): cut into
 * chunks that do not overlap, each read from an empty sequence; the first token of a chunk is not
 * predicted. `perplexity` reads it with one scorer, `compare` with two side by side. */
#pragma once

#include "cli/options.h"
#include "cli/scorer.h"

struct evaluation_options {
    int64_t chunk, max_chunks; /* max_chunks 0: all */
    bool special;
};

#define EVALUATION_CHUNK 512
/* The rows of a command's option table. */
#define EVALUATION_OPTIONS(options)                                                                \
    {"chunk",                                                                                      \
     OPTION_SIZE,                                                                                  \
     &(options)->chunk,                                                                            \
     2,                                                                                            \
     INT32_MAX,                                                                                    \
     NULL,                                                                                         \
     "N",                                                                                          \
     "tokens that are read from an empty state (512)"},                                            \
        {"max-chunks",                                                                             \
         OPTION_INTEGER,                                                                           \
         &(options)->max_chunks,                                                                   \
         1,                                                                                        \
         INT32_MAX,                                                                                \
         NULL,                                                                                     \
         "N",                                                                                      \
         "only the first N chunks of FILE"},                                                       \
        {"special",                                                                                \
         OPTION_FLAG,                                                                              \
         &(options)->special,                                                                      \
         0,                                                                                        \
         0,                                                                                        \
         NULL,                                                                                     \
         NULL,                                                                                     \
         "<|im_start|> and other added tokens in FILE are control tokens"},

struct evaluation {
    struct token_list ids; /* those that are read */
    int32_t chunk;
};

/* Reads FILE ("-" is stdin) and encodes it. Errors name the file. */
enum status evaluation_open(const char *path, const struct model *model,
                            const struct evaluation_options *options, struct evaluation *evaluation,
                            struct error *error);
void evaluation_clear(struct evaluation *evaluation);
/* The context that a scorer of this text needs. */
int32_t evaluation_context(const struct evaluation *evaluation);

/* Called for each token in order; ranked[i] of every scorer holds its prediction, i is -1 for the
 * first token of a chunk. */
typedef enum status evaluation_visit(void *context, int64_t index, int i, struct error *error);
/* Shows its progress under the name `what`. */
enum status evaluation_run(const struct evaluation *evaluation, const char *what,
                           struct scorer *const *scorers, int n_scorers, evaluation_visit *visit,
                           void *context, struct error *error);

/* What one model made of the tokens. */
struct tally {
    int64_t predicted, hits; /* hits: the token was the argmax */
    double nll;              /* sum, nats */
};

void tally_add(struct tally *tally, double nll, bool hit);
double tally_mean_nll(const struct tally *tally);
/* Its figures as every command shows them to people. */
struct tally_text {
    char mean_nll[32], perplexity[32], top1[64];
};
void tally_format(const struct tally *tally, struct tally_text *text);
/* Appends "mean_nll": …, "perplexity": …, "top1": …, as fields of a JSON object. */
void tally_print_json(const struct tally *tally, struct bytes *out);
/* A number in full precision; null where JSON has none for it. */
void evaluation_print_real(double value, struct bytes *out);
/* The token's text as a JSON string; bytes that are no whole character become U+FFFD. */
void evaluation_print_token(const struct tokenizer *tokenizer, int32_t id, struct bytes *out);
