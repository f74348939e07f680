/* What `calla bench` prints: a table while it measures, CSV and JSON at the end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli/bench.h"

/* ---- table ----------------------------------------------------------------------------------- */

void bench_print_machine(const struct bench_run *run)
{
    printf("machine        %s, %d threads\n", run->cpu, run->threads);
    if (run->bandwidth.median > 0)
        printf("read bandwidth %.1f GB/s (median of %d, best %.1f)\n", run->bandwidth.median / 1e9,
               run->bandwidth.rounds, run->bandwidth.best / 1e9);
    fflush(stdout);
}

void bench_print_model(const struct bench_run *run)
{
    printf("engine         calla %s, backend %s, greedy, %d repetition%s\n", CALLA_VERSION,
           run->backend, run->repeat, run->repeat == 1 ? "" : "s");
    printf("model          %s (%s%s), weights %.3f GB\n", run->model, run->shape,
           run->synthetic ? ", synthetic weights in memory" : "", (double)run->weights / 1e9);
    if (run->synthetic)
        printf("load           weights made in %.2f s, opened in %.3f s\n", run->make_seconds,
               run->load_seconds);
    else
        printf("load           %.3f s\n", run->load_seconds);
    if (run->routing.tokens)
        printf("experts        %.1f of %d distinct in a layer for %d tokens (%d to %d)\n",
               run->routing.mean, run->routing.n_experts, run->routing.tokens, run->routing.least,
               run->routing.most);
    fflush(stdout);
}

void bench_print_columns(void)
{
    printf("\n%7s %4s  %-27s %9s  %-27s %7s %8s %6s %6s  %s\n", "context", "rows",
           "prefill tok/s (min - max)", "first s", "decode tok/s (min - max)", "a row", "MB/token",
           "GB/s", "share", "tokens");
}

static const char *print_figure(const struct bench_figure *figure, char *text, size_t size)
{
    if (figure->n == 0)
        snprintf(text, size, "-");
    else
        snprintf(text, size, "%9.2f (%.2f - %.2f)", figure->median, figure->min, figure->max);
    return text;
}

void bench_print_result(const struct bench_result *result)
{
    char prefill[64], decode[64], first[32] = "-", row[32] = "-", rate[32] = "-", share[32] = "-";
    char bytes[32] = "-";
    if (result->prefill.n)
        snprintf(first, sizeof first, "%.3f", result->first_token);
    if (result->decode.n) {
        snprintf(row, sizeof row, "%.2f", result->decode.median / result->test.rows);
        snprintf(bytes, sizeof bytes, "%.1f", result->all_bytes / 1e6);
        snprintf(rate, sizeof rate, "%.2f", result->decode.median * result->all_bytes / 1e9);
        if (result->share > 0)
            snprintf(share, sizeof share, "%.1f %%", 100 * result->share);
    }
    printf("%7d %4d  %-27s %9s  %-27s %7s %8s %6s %6s  %.12s%s%s%s%s\n", result->test.length,
           result->test.rows, print_figure(&result->prefill, prefill, sizeof prefill), first,
           print_figure(&result->decode, decode, sizeof decode), row, bytes, rate, share,
           result->digest[0] ? result->digest : "-",
           result->filled ? ", context filled with copied rows" : "",
           result->varied ? ", REPETITIONS DIFFER" : "", result->cut ? ", cut by " : "",
           result->cut ? result->cut : "");
    fflush(stdout);
}

void bench_print_end(const struct bench_report *report)
{
    const struct bench_run *run = report->run;
    int64_t peak = 0;
    bool late = false;
    for (int i = 0; i < report->n; i++) {
        const struct bench_result *result = &report->results[i];
        peak = result->peak_memory > peak ? result->peak_memory : peak;
        late |= result->cut && strcmp(result->cut, "--time-limit") == 0;
    }
    if (late)
        printf("\ntime limit     %g s; --time-limit SECONDS allows more, 0 all\n", run->time_limit);
    printf("\npeak memory    %.3f GB, weights %.3f GB of it; planned %.3f GB for %d sequence%s of "
           "%d tokens\n",
           (double)peak / 1e9, (double)run->weights / 1e9, (double)run->plan.total / 1e9,
           run->n_sequences, run->n_sequences == 1 ? "" : "s", run->context);
    printf("weights        %.1f MB read for a token (dense parts, chosen and shared experts, "
           "head)\n",
           report->n ? report->results[0].weight_bytes * report->results[0].test.rows / 1e6 : 0);
    if (run->bandwidth_after.median > 0)
        printf("read bandwidth %.1f GB/s afterwards\n", run->bandwidth_after.median / 1e9);
    printf("MB/token, GB/s and share count weights, recurrent states (read and written) and KV "
           "rows\n");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void csv_text(const char *text, struct bytes *out)
{
    if (!strpbrk(text, ",\"\r\n")) {
        bytes_append_text(out, text);
        return;
    }
    bytes_append_byte(out, '"');
    for (; *text; text++) {
        if (*text == '"')
            bytes_append_byte(out, '"');
        bytes_append_byte(out, *text);
    }
    bytes_append_byte(out, '"');
}

static void csv_figure(const struct bench_figure *figure, struct bytes *out)
{
    if (figure->n)
        bytes_format(out, ",%.6g,%.6g,%.6g", figure->median, figure->min, figure->max);
    else
        bytes_append_text(out, ",,,");
}

static void csv_line(const struct bench_run *run, const struct bench_result *r, struct bytes *out)
{
    bytes_format(out, "%s,calla,%s,", run->date, CALLA_VERSION);
    csv_text(run->cpu, out);
    bytes_format(out, ",%d,%s,", run->threads, run->backend);
    csv_text(run->model, out);
    bytes_format(out, ",%d,%d,%d", r->test.length, r->test.rows,
                 r->decode.n > r->prefill.n ? r->decode.n : r->prefill.n);
    csv_figure(&r->prefill, out);
    if (r->prefill.n)
        bytes_format(out, ",%.6g", r->first_token);
    else
        bytes_append_byte(out, ',');
    bytes_format(out, ",%d", r->decode.n ? r->decoded : 0);
    csv_figure(&r->decode, out);
    if (r->decode.n)
        bytes_format(out, ",%.6g", r->decode.median / r->test.rows);
    else
        bytes_append_byte(out, ',');
    bytes_format(out, ",%.6g,%" PRId64 ",%.0f,%.0f", run->load_seconds, r->peak_memory,
                 r->weight_bytes, r->all_bytes);
    if (run->bandwidth.median > 0)
        bytes_format(out, ",%.0f", run->bandwidth.median);
    else
        bytes_append_byte(out, ',');
    if (r->share > 0)
        bytes_format(out, ",%.4f", r->share);
    else
        bytes_append_byte(out, ',');
    bytes_format(out, ",%d,%s\n", r->filled, r->digest);
}

void bench_csv(const struct bench_report *report, struct bytes *out)
{
    bytes_append_text(
        out, "date,engine,version,cpu,threads,backend,model,context_tokens,rows,repeats,"
             "prefill_tok_per_s,prefill_min_tok_per_s,prefill_max_tok_per_s,first_token_s,"
             "decode_tokens,decode_tok_per_s,decode_min_tok_per_s,decode_max_tok_per_s,"
             "decode_row_tok_per_s,load_s,peak_memory_bytes,weight_bytes_per_token,"
             "bytes_per_token,read_bandwidth_bytes_per_s,bandwidth_share,filled,tokens_sha256\n");
    for (int i = 0; i < report->n; i++)
        if (report->results[i].prefill.n || report->results[i].decode.n)
            csv_line(report->run, &report->results[i], out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *figure_json(const struct bench_figure *figure)
{
    if (figure->n == 0)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:i}", "median", figure->median, "min", figure->min, "max",
                     figure->max, "repeats", figure->n);
}

/* A text or nothing; NULL for the whole object when memory runs out, which json_pack's optional
 * values do not tell. */
static json_t *with_text(json_t *object, const char *key, const char *text)
{
    if (!object || !text || json_object_set_new(object, key, json_string(text)) == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *result_json(const struct bench_result *r)
{
    json_t *object = json_pack(
        "{s:i, s:i, s:o, s:o, s:o, s:i, s:f, s:f, s:o, s:I, s:b, s:b}", "context_tokens",
        r->test.length, "rows", r->test.rows, "prefill_tok_per_s", figure_json(&r->prefill),
        "first_token_s", r->prefill.n ? json_real(r->first_token) : json_null(), "decode_tok_per_s",
        figure_json(&r->decode), "decode_tokens", r->decode.n ? r->decoded : 0,
        "weight_bytes_per_token", r->weight_bytes, "bytes_per_token", r->all_bytes,
        "bandwidth_share", r->share > 0 ? json_real(r->share) : json_null(), "peak_memory_bytes",
        (json_int_t)r->peak_memory, "filled", r->filled, "repetitions_differ", r->varied);
    object = with_text(object, "tokens_sha256", r->digest[0] ? r->digest : NULL);
    return with_text(object, "cut", r->cut);
}

static json_t *routing_json(const struct bench_routing *routing)
{
    if (routing->tokens == 0)
        return json_null();
    return json_pack("{s:i, s:i, s:f, s:i, s:i}", "tokens", routing->tokens, "of",
                     routing->n_experts, "mean", routing->mean, "min", routing->least, "max",
                     routing->most);
}

static json_t *bandwidth_json(double bytes_per_second)
{
    return bytes_per_second > 0 ? json_real(bytes_per_second) : json_null();
}

void bench_json(const struct bench_report *report, struct bytes *out)
{
    const struct bench_run *run = report->run;
    json_t *results = json_array();
    for (int i = 0; i < report->n; i++)
        if (json_array_append_new(results, result_json(&report->results[i])) != 0)
            out->failed = true;
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:s, s:s, s:b, s:I, s:f, s:f, s:o, s:o, s:o, s:i, s:i, "
        "s:I, s:o}",
        "date", run->date, "engine", "calla", "version", CALLA_VERSION, "cpu", run->cpu, "threads",
        run->threads, "backend", run->backend, "shape", run->shape, "synthetic", run->synthetic,
        "weight_bytes", (json_int_t)run->weights, "make_s", run->make_seconds, "load_s",
        run->load_seconds, "read_bandwidth_bytes_per_s", bandwidth_json(run->bandwidth.median),
        "read_bandwidth_after_bytes_per_s", bandwidth_json(run->bandwidth_after.median),
        "distinct_experts", routing_json(&run->routing), "sequences", run->n_sequences,
        "sequence_tokens", run->context, "planned_memory_bytes", (json_int_t)run->plan.total,
        "results", results);
    /* a folder's name may be no UTF-8, then there is no "model" */
    if (utf8_valid_length(run->model, strlen(run->model)) == strlen(run->model))
        object = with_text(object, "model", run->model);
    if (object)
        json_print(object, out);
    else
        out->failed = true;
    json_decref(object);
    bytes_append_byte(out, '\n');
}
