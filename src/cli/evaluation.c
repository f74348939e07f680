#include "cli/evaluation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "cli/input.h"
#include "cli/progress.h"

static enum status encode(const char *name, const struct bytes *text, const struct model *model,
                          bool special, struct token_list *ids, struct error *error)
{
    struct text_span span = {text->data ? text->data : "", text->length, special};
    struct error problem;
    enum status status = tokenizer_encode(model->tokenizer, &span, 1, ids, &problem);
    if (status != STATUS_OK)
        return error_set(error, status, "%s: %s", name, problem.message);
    if (ids->length < 2)
        return error_set(error, STATUS_INVALID,
                         "%s: found %zu token%s, wanted at least 2: the first is not predicted",
                         name, ids->length, ids->length == 1 ? "" : "s");
    return STATUS_OK;
}

enum status evaluation_open(const char *path, const struct model *model,
                            const struct evaluation_options *options, struct evaluation *evaluation,
                            struct error *error)
{
    *evaluation = (struct evaluation){.chunk = (int32_t)options->chunk};
    int32_t max = checkpoint_config(model->checkpoint)->max_position_embeddings;
    if (evaluation->chunk > max)
        return error_set(error, STATUS_INVALID,
                         "--chunk: found %d, wanted 2 to %d tokens, the model's "
                         "max_position_embeddings",
                         evaluation->chunk, max);
    struct bytes text = {0};
    const char *name = input_name(path);
    enum status status = input_read(path, &text, error);
    if (status == STATUS_OK)
        status = input_check_utf8(name, text.data ? text.data : "", text.length, error);
    if (status == STATUS_OK)
        status = encode(name, &text, model, options->special, &evaluation->ids, error);
    bytes_clear(&text);
    int64_t wanted = options->max_chunks * options->chunk;
    if (wanted > 0 && (int64_t)evaluation->ids.length > wanted)
        evaluation->ids.length = (size_t)wanted;
    return status;
}

void evaluation_clear(struct evaluation *evaluation)
{
    token_list_clear(&evaluation->ids);
}

int32_t evaluation_context(const struct evaluation *evaluation)
{
    size_t length = evaluation->ids.length;
    return length < (size_t)evaluation->chunk ? (int32_t)length : evaluation->chunk;
}

/* One step of every scorer: the `n` tokens from `at` on, which predict those from at + 1 on. */
static enum status read_step(const struct evaluation *evaluation, int64_t at, int n,
                             struct scorer *const *scorers, int n_scorers, evaluation_visit *visit,
                             void *context, struct error *error)
{
    enum status status = STATUS_OK;
    for (int s = 0; s < n_scorers && status == STATUS_OK; s++)
        status = scorer_step(scorers[s], evaluation->ids.data + at, n, error);
    for (int i = 0; i < n && status == STATUS_OK; i++)
        status = visit(context, at + i + 1, i, error);
    return status;
}

enum status evaluation_run(const struct evaluation *evaluation, const char *what,
                           struct scorer *const *scorers, int n_scorers, evaluation_visit *visit,
                           void *context, struct error *error)
{
    int64_t n_ids = (int64_t)evaluation->ids.length, max_step = evaluation->chunk;
    for (int s = 0; s < n_scorers; s++)
        max_step = scorers[s]->max_step < max_step ? scorers[s]->max_step : max_step;
    struct progress progress;
    progress_begin(&progress, what, n_ids);
    enum status status = STATUS_OK;
    for (int64_t chunk = 0; chunk < n_ids && status == STATUS_OK; chunk += evaluation->chunk) {
        int64_t left = n_ids - chunk;
        /* the last token of a chunk predicts nothing: it is not read */
        int64_t last = chunk + (left < evaluation->chunk ? left : evaluation->chunk) - 1;
        for (int s = 0; s < n_scorers; s++)
            scorer_reset(scorers[s]);
        status = visit(context, chunk, -1, error);
        for (int64_t at = chunk; at < last && status == STATUS_OK; at += max_step) {
            int n = (int)(last - at < max_step ? last - at : max_step);
            status = read_step(evaluation, at, n, scorers, n_scorers, visit, context, error);
            progress_update(&progress, at + n);
        }
    }
    progress_end(&progress);
    return status;
}

void tally_add(struct tally *tally, double nll, bool hit)
{
    tally->predicted++;
    tally->nll += nll;
    tally->hits += hit;
}

double tally_mean_nll(const struct tally *tally)
{
    return tally->predicted ? tally->nll / (double)tally->predicted : NAN;
}

void tally_format(const struct tally *tally, struct tally_text *text)
{
    double nll = tally_mean_nll(tally);
    snprintf(text->mean_nll, sizeof text->mean_nll, "%.7f", nll);
    snprintf(text->perplexity, sizeof text->perplexity, exp(nll) < 1e9 ? "%.6f" : "%.9g", exp(nll));
    snprintf(text->top1, sizeof text->top1, "%.2f %% (%" PRId64 ")",
             100 * (double)tally->hits / (double)tally->predicted, tally->hits);
}

void tally_print_json(const struct tally *tally, struct bytes *out)
{
    bytes_append_text(out, "\"mean_nll\": ");
    evaluation_print_real(tally_mean_nll(tally), out);
    bytes_append_text(out, ", \"perplexity\": ");
    evaluation_print_real(exp(tally_mean_nll(tally)), out);
    bytes_append_text(out, ", \"top1\": ");
    evaluation_print_real((double)tally->hits / (double)tally->predicted, out);
}

void evaluation_print_real(double value, struct bytes *out)
{
    if (isfinite(value))
        json_print_real(value, out);
    else
        bytes_append_text(out, "null");
}

void evaluation_print_token(const struct tokenizer *tokenizer, int32_t id, struct bytes *out)
{
    struct detokenizer detokenizer;
    struct bytes text = {0};
    detokenizer_init(&detokenizer, tokenizer, false);
    detokenizer_push(&detokenizer, id, &text);
    detokenizer_finish(&detokenizer, &text);
    json_print_string(text.data ? text.data : "", text.length, out);
    out->failed |= text.failed;
    bytes_clear(&text);
}
