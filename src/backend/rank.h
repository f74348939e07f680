/* What every backend's step does on the host side of the seam: checking a step before it starts and
 * ranking a row of logits. */
#pragma once

#include "backend/backend.h"

/* Checks that the rows can be one step (1..max_rows of them, tokens within the vocabulary, no
 * sequence broken or full) and gives each row's position. */
enum status step_check(const struct shape *shape, const struct row *rows, int n, int max_rows,
                       int32_t *positions, struct error *error);

/* The candidates of a range of ids, found where its logits were made. */
struct rank_part {
    double sum; /* of exp(logit - logit[0]), filled by the caller */
    int n;
    int32_t id[RANKED_MAX];
    float logit[RANKED_MAX];
};
/* The best RANKED_MAX of logits [count], of ids from first_id on. */
void rank_part(const float *logits, int32_t first_id, int32_t count, struct rank_part *part);
/* One row's candidates from n parts in ascending order of ids. STATUS_DEVICE when the logits are
 * not finite. */
enum status rank_merge(const struct rank_part *parts, int n, struct ranked *ranked,
                       struct error *error);

/* The best RANKED_MAX of logits [n_valid_ids], best first, ties to the lowest id. STATUS_DEVICE
 * when the logits are not finite. */
enum status rank_logits(const float *logits, int32_t n_valid_ids, struct ranked *ranked,
                        struct error *error);
