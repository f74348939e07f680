/* How far two models' predictions of the same token lie apart, in double over all valid ids. Reads
 * rows of raw logits and knows nothing of where they come from. */
#pragma once

#include <stdint.h>

/* One row by itself. */
struct distribution {
    double logsumexp; /* log p(id) = logit - logsumexp */
    int32_t best;     /* the highest logit, ties to the lowest id */
};

struct divergence {
    struct distribution p, q;
    double kl; /* KL(p || q) in nats, not negative; 0 exactly when the rows are the same */
};

/* p, q: raw logits [n], n at least 1, each with a finite maximum. -INFINITY is a probability of 0;
 * where q is 0 and p is not, kl is INFINITY. */
void divergence_measure(const float *p, const float *q, int32_t n, struct divergence *out);
