#include "backend/rank.h"

#include <math.h>

enum status step_check(const struct shape *shape, const struct row *rows, int n, int max_rows,
                       int32_t *positions, struct error *error)
{
    if (n < 1 || n > max_rows)
        return error_set(error, STATUS_INVALID, "a step of %d rows, wanted 1 to %d", n, max_rows);
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

void rank_part(const float *logits, int32_t first_id, int32_t count, struct rank_part *part)
{
    part->n = 0;
    part->sum = 0;
    for (int32_t i = 0; i < count; i++) {
        float logit = logits[i];
        if (part->n == RANKED_MAX && !(logit > part->logit[part->n - 1]))
            continue;
        int at = part->n < RANKED_MAX ? part->n++ : part->n - 1;
        for (; at > 0 && logit > part->logit[at - 1]; at--) {
            part->id[at] = part->id[at - 1];
            part->logit[at] = part->logit[at - 1];
        }
        part->id[at] = first_id + i;
        part->logit[at] = logit;
    }
}

/* Adds a part's candidates, which come after those that are there in the order of ids. */
static void merge_candidates(struct ranked *ranked, const struct rank_part *part)
{
    for (int i = 0; i < part->n; i++) {
        float logit = part->logit[i];
        if (ranked->n == RANKED_MAX && !(logit > ranked->logit[ranked->n - 1]))
            return; /* the rest is smaller still */
        int at = ranked->n < RANKED_MAX ? ranked->n++ : ranked->n - 1;
        for (; at > 0 && logit > ranked->logit[at - 1]; at--) {
            ranked->id[at] = ranked->id[at - 1];
            ranked->logit[at] = ranked->logit[at - 1];
        }
        ranked->id[at] = part->id[i];
        ranked->logit[at] = logit;
    }
}

enum status rank_merge(const struct rank_part *parts, int n, struct ranked *ranked,
                       struct error *error)
{
    ranked->n = 0;
    for (int i = 0; i < n; i++)
        merge_candidates(ranked, &parts[i]);
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (parts[i].n > 0)
            sum += parts[i].sum * exp((double)parts[i].logit[0] - (double)ranked->logit[0]);
    ranked->logsumexp = (float)(ranked->logit[0] + log(sum));
    if (!isfinite(ranked->logsumexp))
        return error_set(error, STATUS_DEVICE, "the logits are not finite");
    return STATUS_OK;
}

enum status rank_logits(const float *logits, int32_t n_valid_ids, struct ranked *ranked,
                        struct error *error)
{
    struct rank_part part;
    rank_part(logits, 0, n_valid_ids, &part);
    for (int32_t id = 0; id < n_valid_ids; id++)
        part.sum += exp((double)logits[id] - (double)part.logit[0]);
    return rank_merge(&part, 1, ranked, error);
}
