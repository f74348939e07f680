/* `calla score`: what the model makes of given ids, for comparison with reference vectors
 * (models/tiny/reference/README.md). Stands below the library, on cli/scorer: it shows logits and
 * inner tensors that no user of calla.h needs. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "cli/jsonl.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/scorer.h"
#include "cli/tensor_file.h"

#define TOP 5

struct score {
    struct scorer scorer;
    int32_t n_greedy;
    struct token_list ids;      /* of the line */
    struct tensor_file *hidden; /* NULL without --hidden */
};

static enum status read_ids(const struct score *score, const json_t *line, struct token_list *ids,
                            struct error *error)
{
    const json_t *array = NULL;
    enum status status = jsonl_array(line, "ids", true, &array, error);
    if (status != STATUS_OK)
        return status;
    ids->length = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *id = json_array_get(array, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id))
            return error_set(error, STATUS_INVALID,
                             "ids[%zu]: found %s, wanted an integer from 0 to %d", i,
                             json_type_name(id), score->scorer.engine.n_valid_ids - 1);
        if (value < 0 || value >= score->scorer.engine.n_valid_ids)
            return error_set(error, STATUS_INVALID,
                             "ids[%zu]: found %" JSON_INTEGER_FORMAT ", wanted 0 to %d", i, value,
                             score->scorer.engine.n_valid_ids - 1);
        token_list_append(ids, (int32_t)value);
    }
    if (ids->failed)
        return error_no_memory(error, "ids");
    if (ids->length == 0)
        return error_set(error, STATUS_INVALID, "ids: found none, wanted at least one");
    /* told before anything is read: reading a full context takes long; the last greedy token is
     * chosen, not read */
    int64_t greedy = score->n_greedy > 0 ? score->n_greedy - 1 : 0;
    if ((int64_t)ids->length + greedy > score->scorer.sequence->capacity)
        return error_set(error, STATUS_INVALID,
                         "ids: found %zu%s, but the context has room for %d tokens", ids->length,
                         greedy ? " and --greedy" : "", score->scorer.sequence->capacity);
    return STATUS_OK;
}

/* The three lists of a line, built side by side. */
struct lists {
    struct bytes nll, top_ids, top_logits;
};

static void add_position(struct lists *lists, const struct ranked *ranked, const float *row,
                         const int32_t *next)
{
    if (next)
        bytes_format(&lists->nll, "%s%.9g", lists->nll.length ? ", " : "",
                     (double)ranked->logsumexp - (double)row[*next]);
    const char *separator = lists->top_ids.length ? ", [" : "[";
    bytes_append_text(&lists->top_ids, separator);
    bytes_append_text(&lists->top_logits, separator);
    for (int i = 0; i < TOP && i < ranked->n; i++) {
        bytes_format(&lists->top_ids, "%s%d", i ? ", " : "", ranked->id[i]);
        bytes_format(&lists->top_logits, "%s%.9g", i ? ", " : "", (double)ranked->logit[i]);
    }
    bytes_append_byte(&lists->top_ids, ']');
    bytes_append_byte(&lists->top_logits, ']');
}

/* Reads all ids; `last` gets the candidates after the last one. */
static enum status read_prompt(struct score *score, struct lists *lists, struct ranked *last,
                               struct error *error)
{
    struct scorer *scorer = &score->scorer;
    enum status status = STATUS_OK;
    int64_t n_ids = (int64_t)score->ids.length;
    struct progress progress;
    progress_begin(&progress, "scoring a line", n_ids);
    for (int64_t at = 0; at < n_ids && status == STATUS_OK; at += scorer->max_step) {
        int n = n_ids - at < scorer->max_step ? (int)(n_ids - at) : scorer->max_step;
        status = scorer_step(scorer, score->ids.data + at, n, error);
        for (int i = 0; i < n && status == STATUS_OK; i++) {
            status = scorer_logits(scorer, i, error);
            const int32_t *next = at + i + 1 < n_ids ? &score->ids.data[at + i + 1] : NULL;
            add_position(lists, &scorer->ranked[i], scorer->row, next);
            *last = scorer->ranked[i];
        }
        progress_update(&progress, at + n);
    }
    progress_end(&progress);
    return status;
}

static enum status continue_greedy(struct score *score, struct ranked *ranked, struct bytes *out,
                                   struct error *error)
{
    struct bytes margins = {0};
    enum status status = STATUS_OK;
    bytes_append_text(out, ", \"greedy\": [");
    for (int32_t i = 0; i < score->n_greedy && status == STATUS_OK; i++) {
        bytes_format(out, "%s%d", i ? ", " : "", ranked->id[0]);
        bytes_format(&margins, "%s%.9g", i ? ", " : "",
                     (double)ranked->logit[0] - (double)ranked->logit[1]);
        if (i + 1 < score->n_greedy)
            status = engine_decode(&score->scorer.engine, score->scorer.sequence, ranked->id[0],
                                   ranked, error);
    }
    bytes_append_text(out, "], \"greedy_margin\": [");
    bytes_append(out, margins.data, margins.length);
    bytes_append_byte(out, ']');
    out->failed |= margins.failed;
    bytes_clear(&margins);
    return status;
}

static enum status score_ids(struct score *score, struct lists *lists, struct bytes *out,
                             struct error *error)
{
    struct backend *backend = score->scorer.engine.backend;
    struct ranked last;
    scorer_reset(&score->scorer);
    enum status status = read_prompt(score, lists, &last, error);
    if (score->hidden) /* the greedy continuation is not part of the reference's tensors */
        backend->ops->set_probe(backend, NULL);
    bytes_append_text(out, "{\"nll\": [");
    bytes_append(out, lists->nll.data, lists->nll.length);
    bytes_append_text(out, "], \"top_ids\": [");
    bytes_append(out, lists->top_ids.data, lists->top_ids.length);
    bytes_append_text(out, "], \"top_logits\": [");
    bytes_append(out, lists->top_logits.data, lists->top_logits.length);
    bytes_append_byte(out, ']');
    if (status == STATUS_OK && score->n_greedy > 0)
        status = continue_greedy(score, &last, out, error);
    bytes_append_byte(out, '}');
    out->failed |= lists->nll.failed | lists->top_ids.failed | lists->top_logits.failed;
    return status;
}

static enum status score_line(void *context, const json_t *line, struct bytes *out,
                              struct error *error)
{
    struct score *score = context;
    const char *name = "";
    size_t length = 0;
    enum status status = read_ids(score, line, &score->ids, error);
    if (status == STATUS_OK)
        status = jsonl_text(line, "name", false, &name, &length, error);
    if (status == STATUS_OK && strlen(name) != length) /* no reader of the file would take it */
        status = error_set(error, STATUS_INVALID, "name: found U+0000 in it, wanted none");
    if (status != STATUS_OK)
        return status;
    if (score->hidden) {
        status = tensor_file_begin(score->hidden, name, score->ids.data, (int64_t)score->ids.length,
                                   error);
        if (status != STATUS_OK)
            return status;
        struct backend *backend = score->scorer.engine.backend;
        backend->ops->set_probe(backend, tensor_file_probe(score->hidden));
    }
    struct lists lists = {0};
    status = score_ids(score, &lists, out, error);
    if (status != STATUS_OK && score->hidden)
        tensor_file_drop(score->hidden);
    bytes_clear(&lists.nll);
    bytes_clear(&lists.top_ids);
    bytes_clear(&lists.top_logits);
    return status;
}

static int score_all(struct score *score, const char *hidden_path, struct error *error)
{
    struct backend *backend = score->scorer.engine.backend;
    if (hidden_path && !backend->ops->set_probe) {
        error_set(error, STATUS_INVALID, "--hidden: the backend %s cannot show its tensors",
                  backend->ops->name);
        return command_failed(error);
    }
    if (hidden_path && !(score->hidden = tensor_file_new(score->scorer.engine.shape))) {
        error_no_memory(error, "--hidden");
        return command_failed(error);
    }
    int code = jsonl_run(score_line, score);
    if (score->hidden && tensor_file_write(score->hidden, hidden_path, error) != STATUS_OK)
        return command_failed(error);
    return code;
}

static int run_score(int argc, char **argv)
{
    const char *path, *hidden_path = NULL;
    int64_t context = 0, n_greedy = 0;
    struct device_options side = {0};
    const struct option options[] = {
        {"greedy", OPTION_SIZE, &n_greedy, 0, 1 << 20, NULL, "N",
         "continue each line greedily by N tokens, through stop tokens"},
        {"hidden", OPTION_TEXT, &hidden_path, 0, 0, NULL, "FILE",
         "write inner tensors as safetensors, names prefixed by the line's name"},
        {"max-context", OPTION_SIZE, &context, 1, INT32_MAX, NULL, "N", "tokens a line can have"},
        DEVICE_OPTIONS(side),
        {0},
    };
    int code = options_parse(&command_score, argc, argv, options, &path, 1, 1);
    if (code < 0)
        code = device_check(&command_score, &side, "");
    if (code >= 0)
        return code;
    struct model model;
    struct error error;
    if (model_open(path, &model, &error) != STATUS_OK)
        return command_failed(&error);
    struct score score = {.n_greedy = (int32_t)n_greedy};
    if (scorer_open(&model, &side, (int32_t)context, &score.scorer, &error) != STATUS_OK)
        code = command_failed(&error);
    else
        code = score_all(&score, hidden_path, &error);
    tensor_file_free(score.hidden);
    token_list_clear(&score.ids);
    scorer_close(&score.scorer);
    model_close(&model);
    return code;
}

const struct command command_score = {
    .name = "score",
    .arguments = "MODEL",
    .summary = "negative log-likelihoods and best tokens of given ids (JSONL)",
    .run = run_score,
    .details =
        "in:  {\"ids\": […], \"name\": \"…\"}, one object a line; name only matters to --hidden\n"
        "out: {\"nll\": [n-1], \"top_ids\": [n][5], \"top_logits\": [n][5]}; nll[i] = -ln "
        "p(ids[i+1] | ids[0..i]);\n"
        "     with --greedy N also \"greedy\": [N] and \"greedy_margin\": [N], best minus second "
        "logit\n",
};
