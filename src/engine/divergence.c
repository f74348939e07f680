#include "engine/divergence.h"

#include <math.h>

static void distribution_measure(const float *logits, int32_t n, struct distribution *out)
{
    out->best = 0;
    for (int32_t id = 1; id < n; id++)
        if (logits[id] > logits[out->best])
            out->best = id;
    double max = logits[out->best], sum = 0;
    for (int32_t id = 0; id < n; id++)
        sum += exp(logits[id] - max);
    out->logsumexp = max + log(sum);
}

/* The terms are p·ln(p/q) + q - p, whose sum is the same because p and q both sum to 1. None of
 * them is negative, so nothing cancels, and an error of the logsumexp counts only by its square:
 * divergences far below the rounding of p·ln(p/q) keep their digits. */
void divergence_measure(const float *p, const float *q, int32_t n, struct divergence *out)
{
    distribution_measure(p, n, &out->p);
    distribution_measure(q, n, &out->q);
    out->kl = 0;
    for (int32_t id = 0; id < n; id++) {
        double log_p = p[id] - out->p.logsumexp, log_q = q[id] - out->q.logsumexp;
        double p_id = exp(log_p), d = log_p - log_q;
        if (p_id == 0)
            out->kl += exp(log_q);
        else if (fabs(d) < 0.5) /* expm1 keeps the digits of a small difference */
            out->kl += p_id * (d + expm1(-d));
        else
            out->kl += p_id * d + (exp(log_q) - p_id);
    }
}
