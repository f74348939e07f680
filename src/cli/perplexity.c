/* `calla perplexity`: how well the model predicts a text, as defined in
 * models/tiny/reference/README.md. Stands on cli/scorer, below the library: see there. */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/evaluation.h"
#include "cli/jsonl.h"

struct perplexity {
    const struct model *model;
    struct evaluation evaluation;
    struct scorer scorer;
    struct tally tally;
    bool json, jsonl;
    double seconds;
    struct bytes line;
};

static enum status print_token(struct perplexity *p, int64_t index, int i, double nll,
                               struct error *error)
{
    int32_t id = p->evaluation.ids.data[index];
    struct bytes *line = &p->line;
    bytes_reset(line);
    bytes_format(line, "{\"index\": %" PRId64 ", \"id\": %d, \"text\": ", index, id);
    evaluation_print_token(p->model->tokenizer, id, line);
    bytes_append_text(line, ", \"nll\": ");
    if (i >= 0) {
        evaluation_print_real(nll, line);
        bytes_format(line, ", \"argmax\": %d}\n", p->scorer.ranked[i].id[0]);
    } else {
        bytes_append_text(line, "null, \"argmax\": null}\n");
    }
    return jsonl_write(line, error);
}

static enum status on_token(void *context, int64_t index, int i, struct error *error)
{
    struct perplexity *p = context;
    int32_t id = p->evaluation.ids.data[index];
    double nll = 0;
    if (i >= 0) {
        enum status status = scorer_nll(&p->scorer, i, id, &nll, error);
        if (status != STATUS_OK)
            return status;
        tally_add(&p->tally, nll, p->scorer.ranked[i].id[0] == id);
    }
    return p->jsonl ? print_token(p, index, i, nll, error) : STATUS_OK;
}

static enum status print_json(struct perplexity *p, struct error *error)
{
    bytes_reset(&p->line);
    bytes_format(&p->line, "{\"tokens\": %zu, \"predicted\": %" PRId64 ", ",
                 p->evaluation.ids.length, p->tally.predicted);
    tally_print_json(&p->tally, &p->line);
    bytes_format(&p->line, ", \"chunk\": %d, \"backend\": \"%s\", \"seconds\": %.3f}\n",
                 p->evaluation.chunk, p->scorer.engine.ops->name, p->seconds);
    return jsonl_write(&p->line, error);
}

/* With --jsonl stdout belongs to the tokens. */
static void print_text(const struct perplexity *p, FILE *out)
{
    size_t n = p->evaluation.ids.length, chunk = (size_t)p->evaluation.chunk;
    struct tally_text text;
    tally_format(&p->tally, &text);
    fprintf(out,
            "tokens      %zu in %zu chunk%s of %zu, %" PRId64 " predicted\n"
            "mean nll    %s nats\nperplexity  %s\ntop-1       %s\n"
            "time        %.1f s, %.1f tok/s, backend %s\n",
            n, (n + chunk - 1) / chunk, n > chunk ? "s" : "", chunk, p->tally.predicted,
            text.mean_nll, text.perplexity, text.top1, p->seconds,
            p->seconds > 0 ? (double)p->tally.predicted / p->seconds : 0,
            p->scorer.engine.ops->name);
}

static enum status measure(struct perplexity *p, const char *path,
                           const struct evaluation_options *options,
                           const struct device_options *side, struct error *error)
{
    enum status status = evaluation_open(path, p->model, options, &p->evaluation, error);
    if (status == STATUS_OK)
        status = scorer_open(p->model, side, evaluation_context(&p->evaluation), &p->scorer, error);
    if (status != STATUS_OK)
        return status;
    double start = clock_seconds();
    struct scorer *scorer = &p->scorer;
    status = evaluation_run(&p->evaluation, "perplexity", &scorer, 1, on_token, p, error);
    p->seconds = clock_seconds() - start;
    if (status == STATUS_OK && p->json)
        return print_json(p, error);
    if (status == STATUS_OK)
        print_text(p, p->jsonl ? stderr : stdout);
    return status;
}

static int run(int argc, char **argv)
{
    struct perplexity p = {0};
    struct evaluation_options evaluation = {.chunk = EVALUATION_CHUNK};
    struct device_options side = {0};
    const char *positionals[2];
    const struct option options[] = {
        EVALUATION_OPTIONS(&evaluation) /* and: */
        DEVICE_OPTIONS(side),
        {"json", OPTION_FLAG, &p.json, 0, 0, NULL, NULL, "one JSON object"},
        {"jsonl", OPTION_FLAG, &p.jsonl, 0, 0, NULL, NULL,
         "a line by token, the summary on stderr"},
        {0},
    };
    int code = options_parse(&command_perplexity, argc, argv, options, positionals, 2, 2);
    if (code < 0)
        code = device_check(&command_perplexity, &side, "");
    if (code >= 0)
        return code;
    if (p.json && p.jsonl)
        return options_usage(&command_perplexity, "--json and --jsonl exclude each other");
    struct model model;
    struct error error;
    if (model_open(positionals[0], &model, &error) != STATUS_OK)
        return command_failed(&error);
    p.model = &model;
    code = measure(&p, positionals[1], &evaluation, &side, &error) == STATUS_OK
               ? EXIT_DONE
               : command_failed(&error);
    scorer_close(&p.scorer);
    evaluation_clear(&p.evaluation);
    bytes_clear(&p.line);
    model_close(&model);
    return code;
}

const struct command command_perplexity = {
    .name = "perplexity",
    .arguments = "MODEL FILE",
    .summary = "how well the model predicts a text",
    .run = run,
    .details =
        "FILE (- is stdin) is cut into chunks that do not overlap, the last one shorter; each is "
        "read from\n"
        "an empty state, and its first token is not predicted. Perplexity is exp(mean nll).\n"
        "--json:  {\"tokens\", \"predicted\", \"mean_nll\", \"perplexity\", \"top1\", \"chunk\", "
        "\"backend\", \"seconds\"};\n"
        "         top1 is the share of predicted tokens that were the argmax\n"
        "--jsonl: {\"index\", \"id\", \"text\", \"nll\", \"argmax\"} by token; the last two are "
        "null where nothing\n"
        "         was predicted\n",
};
