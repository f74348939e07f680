/* `calla compare`: two engines read the same text side by side, and their whole predictions are
 * held against each other. Stands on cli/scorer, below the library: see there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "cli/evaluation.h"
#include "cli/jsonl.h"
#include "engine/divergence.h"

enum { BACKEND, AGAINST, SIDES }; /* what is looked at, and what it is held against */

static const char *const side_names[SIDES] = {"backend", "against"};

/* A predicted token, by how far the sides lie apart there. */
struct place {
    int64_t index; /* of the token in the text */
    double kl;
    int32_t best[SIDES];
    double p_best[SIDES], p_token[SIDES];
};

struct compare {
    const struct model *model;
    struct evaluation evaluation;
    struct scorer scorers[SIDES];
    struct tally tallies[SIDES];
    int64_t agreed;
    double kl_sum, kl_max;
    struct place *worst; /* [max_worst], worst first, n_worst of them used */
    int64_t n_worst, max_worst;
    struct bytes line;
};

/* Among equals the first stays. */
static void keep_worst(struct compare *compare, const struct place *place)
{
    bool full = compare->n_worst == compare->max_worst;
    double least = compare->max_worst == 0 ? INFINITY
                   : full                  ? compare->worst[compare->n_worst - 1].kl
                                           : 0;
    if (!(place->kl > least)) /* where the sides agree there is nothing to show */
        return;
    int64_t at = full ? compare->n_worst - 1 : compare->n_worst++;
    for (; at > 0 && place->kl > compare->worst[at - 1].kl; at--)
        compare->worst[at] = compare->worst[at - 1];
    compare->worst[at] = *place;
}

static enum status on_token(void *context, int64_t index, int i, struct error *error)
{
    struct compare *compare = context;
    const float *rows[SIDES];
    if (i < 0)
        return STATUS_OK;
    for (int side = 0; side < SIDES; side++) {
        enum status status = scorer_logits(&compare->scorers[side], i, error);
        if (status != STATUS_OK)
            return status;
        rows[side] = compare->scorers[side].row;
    }
    struct divergence divergence;
    divergence_measure(rows[AGAINST], rows[BACKEND], compare->scorers[0].engine.n_valid_ids,
                       &divergence);
    const struct distribution *sides[SIDES] = {&divergence.q, &divergence.p};
    int32_t id = compare->evaluation.ids.data[index];
    struct place place = {.index = index, .kl = divergence.kl};
    for (int side = 0; side < SIDES; side++) {
        int32_t best = sides[side]->best;
        double nll; /* as `calla perplexity` has it, to the last digit */
        enum status status = scorer_nll(&compare->scorers[side], i, id, &nll, error);
        if (status != STATUS_OK)
            return status;
        place.best[side] = best;
        place.p_best[side] = exp((double)rows[side][best] - sides[side]->logsumexp);
        place.p_token[side] = exp((double)rows[side][id] - sides[side]->logsumexp);
        tally_add(&compare->tallies[side], nll, best == id);
    }
    compare->agreed += place.best[BACKEND] == place.best[AGAINST];
    compare->kl_sum += place.kl;
    compare->kl_max = fmax(compare->kl_max, place.kl);
    keep_worst(compare, &place);
    return STATUS_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static double share(const struct compare *compare, int64_t n)
{
    return (double)n / (double)compare->tallies[BACKEND].predicted;
}

static double mean_kl(const struct compare *compare)
{
    return compare->kl_sum / (double)compare->tallies[BACKEND].predicted;
}

static void print_token_json(const struct compare *compare, const char *name, int32_t id,
                             struct bytes *out)
{
    bytes_format(out, "\"%s\": {\"id\": %d, \"text\": ", name, id);
    evaluation_print_token(compare->model->tokenizer, id, out);
}

static void print_place_json(const struct compare *compare, const struct place *place,
                             struct bytes *out)
{
    bytes_format(out, "{\"index\": %" PRId64 ", \"kl\": ", place->index);
    evaluation_print_real(place->kl, out);
    bytes_append_text(out, ", ");
    print_token_json(compare, "token", compare->evaluation.ids.data[place->index], out);
    for (int side = 0; side < SIDES; side++) {
        bytes_append_text(out, "}, ");
        print_token_json(compare, side_names[side], place->best[side], out);
        bytes_append_text(out, ", \"p\": ");
        evaluation_print_real(place->p_best[side], out);
        bytes_append_text(out, ", \"p_token\": ");
        evaluation_print_real(place->p_token[side], out);
    }
    bytes_append_text(out, "}}");
}

static void print_json(const struct compare *compare, struct bytes *out)
{
    bytes_format(out, "{\"tokens\": %zu, \"predicted\": %" PRId64 ", \"chunk\": %d, ",
                 compare->evaluation.ids.length, compare->tallies[BACKEND].predicted,
                 compare->evaluation.chunk);
    for (int side = 0; side < SIDES; side++) {
        bytes_format(out, "\"%s\": {\"name\": \"%s\", ", side_names[side],
                     compare->scorers[side].engine.ops->name);
        tally_print_json(&compare->tallies[side], out);
        bytes_append_text(out, "}, ");
    }
    bytes_append_text(out, "\"agreement\": ");
    evaluation_print_real(share(compare, compare->agreed), out);
    bytes_append_text(out, ", \"mean_kl\": ");
    evaluation_print_real(mean_kl(compare), out);
    bytes_append_text(out, ", \"max_kl\": ");
    evaluation_print_real(compare->kl_max, out);
    bytes_append_text(out, ", \"worst\": [");
    for (int64_t i = 0; i < compare->n_worst; i++) {
        bytes_append_text(out, i ? ", " : "");
        print_place_json(compare, &compare->worst[i], out);
    }
    bytes_append_text(out, "]}\n");
}

static void print_text(const struct compare *compare, struct bytes *out)
{
    const struct tokenizer *tokenizer = compare->model->tokenizer;
    bytes_format(out, "tokens      %zu, %" PRId64 " predicted\n", compare->evaluation.ids.length,
                 compare->tallies[BACKEND].predicted);
    for (int side = 0; side < SIDES; side++) {
        struct tally_text text;
        tally_format(&compare->tallies[side], &text);
        bytes_format(out, "%-10s  %s: perplexity %s, mean nll %s nats, top-1 %s\n",
                     side_names[side], compare->scorers[side].engine.ops->name, text.perplexity,
                     text.mean_nll, text.top1);
    }
    bytes_format(out,
                 "agreement   %.3f %% of the best tokens, %" PRId64 " differ\n"
                 "KL          mean %.3g, max %.3g nats, KL(against || backend)\n",
                 100 * share(compare, compare->agreed),
                 compare->tallies[BACKEND].predicted - compare->agreed, mean_kl(compare),
                 compare->kl_max);
    if (compare->n_worst > 0)
        bytes_append_text(out, "\nworst positions: index, KL, token; each side's best token and "
                               "its probability, the token's\n");
    for (int64_t i = 0; i < compare->n_worst; i++) {
        const struct place *place = &compare->worst[i];
        bytes_format(out, "%8" PRId64 "  %.3e  ", place->index, place->kl);
        evaluation_print_token(tokenizer, compare->evaluation.ids.data[place->index], out);
        for (int side = 0; side < SIDES; side++) {
            bytes_format(out, "; %s ", side_names[side]);
            evaluation_print_token(tokenizer, place->best[side], out);
            bytes_format(out, " %.4f %.4f", place->p_best[side], place->p_token[side]);
        }
        bytes_append_byte(out, '\n');
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

static enum status compare_sides(struct compare *compare, const char *path,
                                 const struct evaluation_options *options,
                                 const struct device_options sides[SIDES], bool json,
                                 struct error *error)
{
    struct scorer *scorers[SIDES] = {&compare->scorers[BACKEND], &compare->scorers[AGAINST]};
    enum status status =
        evaluation_open(path, compare->model, options, &compare->evaluation, error);
    if (status != STATUS_OK)
        return status;
    int64_t n_ids = (int64_t)compare->evaluation.ids.length;
    compare->max_worst = compare->max_worst < n_ids ? compare->max_worst : n_ids;
    compare->worst = malloc((size_t)(compare->max_worst + 1) * sizeof *compare->worst);
    if (!compare->worst)
        return error_no_memory(error, "--worst");
    for (int side = 0; side < SIDES && status == STATUS_OK; side++)
        status = scorer_open(compare->model, &sides[side], evaluation_context(&compare->evaluation),
                             scorers[side], error);
    if (status == STATUS_OK)
        status = evaluation_run(&compare->evaluation, "comparing", scorers, SIDES, on_token,
                                compare, error);
    if (status != STATUS_OK)
        return status;
    (json ? print_json : print_text)(compare, &compare->line);
    return jsonl_write(&compare->line, error);
}

static int run(int argc, char **argv)
{
    struct evaluation_options evaluation = {.chunk = EVALUATION_CHUNK};
    struct device_options sides[SIDES] = {[AGAINST] = {.backend = "ref"}};
    struct compare compare = {.max_worst = 5};
    bool json = false;
    const char *positionals[2];
    const struct option options[] = {
        DEVICE_OPTIONS(sides[BACKEND]),
        {"against", OPTION_BACKEND, &sides[AGAINST].backend, 0, 0, NULL, "NAME",
         "the backend that it is held against (ref)"},
        {"against-cpu", OPTION_LEVEL, &sides[AGAINST].cpu, 0, 0, NULL, "LEVEL",
         "its level of instructions, as --cpu"},
        EVALUATION_OPTIONS(&evaluation) /* and: */
        {"worst", OPTION_INTEGER, &compare.max_worst, 0, 1 << 20, NULL, "N",
         "show the N positions with the largest KL (5)"},
        {"json", OPTION_FLAG, &json, 0, 0, NULL, NULL, "one JSON object"},
        {0},
    };
    int code = options_parse(&command_compare, argc, argv, options, positionals, 2, 2);
    if (code < 0)
        code = device_check(&command_compare, &sides[BACKEND], "");
    if (code < 0)
        code = device_check(&command_compare, &sides[AGAINST], "against-");
    if (code >= 0)
        return code;
    struct model model;
    struct error error;
    if (model_open(positionals[0], &model, &error) != STATUS_OK)
        return command_failed(&error);
    compare.model = &model;
    code = compare_sides(&compare, positionals[1], &evaluation, sides, json, &error) == STATUS_OK
               ? EXIT_DONE
               : command_failed(&error);
    for (int side = 0; side < SIDES; side++)
        scorer_close(&compare.scorers[side]);
    evaluation_clear(&compare.evaluation);
    free(compare.worst);
    bytes_clear(&compare.line);
    model_close(&model);
    return code;
}

const struct command command_compare = {
    .name = "compare",
    .arguments = "MODEL FILE",
    .summary = "two backends on one text: agreement, perplexities, KL",
    .run = run,
    .details =
        "Both read FILE (- is stdin) in the chunks of `calla perplexity`. KL is KL(against || "
        "backend) in nats,\n"
        "over all valid ids, at each predicted token.\n"
        "--json: {\"tokens\", \"predicted\", \"chunk\", \"backend\": {\"name\", \"mean_nll\", "
        "\"perplexity\", \"top1\"},\n"
        "        \"against\": {the same}, \"agreement\", \"mean_kl\", \"max_kl\", \"worst\": "
        "[{\"index\", \"kl\",\n"
        "        \"token\": {\"id\", \"text\"}, \"backend\": {\"id\", \"text\", \"p\", "
        "\"p_token\"}, \"against\": {the same}}]};\n"
        "        id and p of a side are its best token's, p_token is that of the text's token\n",
};
