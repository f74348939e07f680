#include "backend/rank.h"

#include <math.h>

enum status step_check(const struct backend *backend, const struct shape *shape,
                       const struct row *rows, int n, int32_t *positions, struct error *error)
{
    if (n < 1 || n > backend->limits.max_rows)
        return error_set(error, STATUS_INVALID, "a step of %d rows, wanted 1 to %d", n,
                         backend->limits.max_rows);
    for (int r = 0; r < n; r++) {
        const struct sequence *sequence = rows[r].sequence;
        positions[r] = sequence->position;
        for (int earlier = r - 1; earlier >= 0; earlier--)
            if (rows[earlier].sequence == sequence) {
                positions[r] = positions[earlier] + 1;
                break;
            }
        if (sequence->broken)
            return error_set(error, STATUS_DEVICE, "the sequence is unusable after a failed step");
        if (positions[r] >= sequence->capacity)
            return error_set(error, STATUS_CONTEXT, "the context is full: %d tokens",
                             sequence->capacity);
        if (rows[r].token < 0 || rows[r].token >= shape->vocab_size)
            return error_set(error, STATUS_INVALID, "token id: found %d, wanted 0 to %d",
                             rows[r].token, shape->vocab_size - 1);
    }
    return STATUS_OK;
}

enum status rank_logits(const float *logits, int32_t n_valid_ids, struct ranked *ranked,
                        struct error *error)
{
    int n = 0;
    for (int32_t id = 0; id < n_valid_ids; id++) {
        float logit = logits[id];
        if (n == RANKED_MAX && !(logit > ranked->logit[n - 1]))
            continue;
        int at = n < RANKED_MAX ? n++ : n - 1;
        for (; at > 0 && logit > ranked->logit[at - 1]; at--) {
            ranked->id[at] = ranked->id[at - 1];
            ranked->logit[at] = ranked->logit[at - 1];
        }
        ranked->id[at] = id;
        ranked->logit[at] = logit;
    }
    ranked->n = n;
    double sum = 0;
    for (int32_t id = 0; id < n_valid_ids; id++)
        sum += exp((double)logits[id] - (double)ranked->logit[0]);
    ranked->logsumexp = (float)(ranked->logit[0] + log(sum));
    if (!isfinite(ranked->logsumexp))
        return error_set(error, STATUS_DEVICE, "the logits are not finite");
    return STATUS_OK;
}
