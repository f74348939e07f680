/* An engine and one sequence, opened to look at logits: what `score`, `perplexity` and `compare`
 * share. Stands below the library, on the backend itself: no user of calla.h needs logits. Several
 * scorers may be open on one model. */
#pragma once

#include "cli/device.h"
#include "engine/engine.h"
#include "library/model.h"

struct scorer {
    struct engine engine;
    struct sequence *sequence;
    int max_step;          /* tokens of one step, at most */
    struct ranked *ranked; /* [max_step], of the last step */
    float *row;            /* [vocab_size], of the last scorer_logits */
};

/* `model` is borrowed. context: tokens that the sequence holds, 0 for the default. Also after a
 * failure scorer_close may, and must, be called. */
enum status scorer_open(const struct model *model, const struct device_options *device,
                        int32_t context, struct scorer *scorer, struct error *error);
void scorer_close(struct scorer *scorer);
/* Back to an empty sequence. */
void scorer_reset(struct scorer *scorer);
/* Reads n tokens, 1..max_step; ranked[i] then belongs to the token after ids[i]. */
enum status scorer_step(struct scorer *scorer, const int32_t *ids, int n, struct error *error);
/* Fills `row` with the raw logits behind ranked[i]. */
enum status scorer_logits(struct scorer *scorer, int i, struct error *error);
/* -ln p(id) by ranked[i]; asks for the full row only where `id` is no candidate. */
enum status scorer_nll(struct scorer *scorer, int i, int32_t id, double *nll, struct error *error);
