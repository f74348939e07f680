/* `calla doctor [MODEL]`: what this machine offers and what the model needs of it. Stands below the
 * library: it tries backends one by one and plans for weights that are not there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bandwidth.h"
#include "base/cgroup.h"
#include "base/cpu.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/device.h"
#include "library/model.h"
#include "library/template_check.h"
#include "model/synth.h"

#define MODEL_CONTEXT 262144 /* what the real model's config allows */
#define MAX_BACKENDS 8

/* Backends that there are, whether compiled in or not. */
static const struct {
    const char *name, *purpose;
} known[] = {
    {"cpu", "any processor"},
    {"cuda", "NVIDIA GPUs"},
    {"metal", "Apple GPUs"},
    {"ref", "the oracle, slow"},
};
#define N_KNOWN (int)(sizeof known / sizeof *known)

/* What the real model would take with one backend. */
struct fit {
    bool fits;                    /* with the shortest context at least */
    int32_t context;              /* the longest that fits */
    struct memory_plan plan;      /* with it, or with one token */
    double short_bytes;           /* read for a token at the context's begin */
    double long_bytes;            /* and at its end */
    double short_rate, long_rate; /* tokens a second that the bandwidth allows; 0: unknown */
};

struct backend_health {
    const char *name, *purpose;
    bool compiled, usable;
    struct error problem;
    struct fit fit;
};

struct health {
    char cpu[64];
    struct cpu_features features;
    int cores, hardware_threads, threads;
    double cpu_limit; /* of the control group; 0: none */
    struct memory_room memory;
    struct bandwidth bandwidth; /* median 0: not measured */
    struct backend_health backends[MAX_BACKENDS];
    int n_backends;
    int64_t weights; /* of the real model */
    const char *model;
    struct error model_problem, model_warning; /* STATUS_OK: none */
    const char *model_shape;
};

/* ---- looking --------------------------------------------------------------------------------- */

/* Opens the backend on small synthetic weights and reads two tokens. */
static enum status try_backend(const struct backend_ops *ops, const struct weights *weights,
                               struct error *error)
{
    const struct engine_options options = {.ops = ops, .context = 64, .n_sequences = 1};
    const int32_t tokens[2] = {1, 2};
    const struct prefill_watch nobody = {0};
    struct engine engine;
    struct sequence *sequence = NULL;
    struct ranked ranked;
    enum status status = engine_plan(weights, weights->shape->vocab_size, &options, &engine, error);
    if (status == STATUS_OK)
        status = engine_open(&engine, error);
    if (status != STATUS_OK)
        return status;
    status = ops->sequence_new(engine.backend, &sequence, error);
    if (status == STATUS_OK)
        status = engine_prefill(&engine, sequence, tokens, 2, &ranked, &nobody, error);
    if (status == STATUS_OK && !(isfinite(ranked.logit[0]) && isfinite(ranked.logsumexp)))
        status = error_set(error, STATUS_DEVICE, "found logits that are no numbers");
    if (sequence)
        ops->sequence_free(engine.backend, sequence);
    engine_close(&engine);
    return status;
}

static bool plan_fits(const struct backend_ops *ops, const struct weights *weights, int32_t context,
                      struct memory_plan *plan)
{
    const struct backend_options options = {.weights = weights,
                                            .n_valid_ids = weights->shape->vocab_size,
                                            .context = context,
                                            .n_sequences = 1};
    ops->plan(&options, plan);
    return memory_plan_check(plan, context, 1, NULL) == STATUS_OK;
}

/* The context that a model would be opened with, and how fast memory lets it decode there. */
static void find_fit(const struct backend_ops *ops, const struct weights *weights, double bandwidth,
                     struct fit *fit)
{
    struct error unused;
    *fit = (struct fit){0};
    fit->fits = plan_fits(ops, weights, 1, &fit->plan);
    if (!fit->fits)
        return;
    engine_context(ops, weights, 0, MODEL_CONTEXT, &fit->context, &unused);
    plan_fits(ops, weights, fit->context, &fit->plan);
    fit->short_bytes = weights_step_bytes(weights, 1) + 2.0 * (double)fit->plan.state;
    fit->long_bytes = fit->short_bytes + (double)fit->context * (double)fit->plan.kv_row;
    if (bandwidth > 0) {
        fit->short_rate = bandwidth / fit->short_bytes;
        fit->long_rate = bandwidth / fit->long_bytes;
    }
}

static enum status look_at_backends(struct health *health, struct error *error)
{
    struct synth *small = NULL, *real = NULL;
    enum status status = synth_open(&shape_tiny, 1, 1, &small, error);
    if (status == STATUS_OK)
        status = synth_plan(&shape_35b_a3b, 1, false, &real, error);
    if (status == STATUS_OK)
        health->weights = weights_bytes(synth_weights(real));
    for (const struct backend_ops *const *ops = backends;
         status == STATUS_OK && *ops && health->n_backends < MAX_BACKENDS; ops++) {
        struct backend_health *backend = &health->backends[health->n_backends++];
        *backend = (struct backend_health){.name = (*ops)->name, .purpose = "", .compiled = true};
        backend->usable = try_backend(*ops, synth_weights(small), &backend->problem) == STATUS_OK;
        find_fit(*ops, synth_weights(real), health->bandwidth.median, &backend->fit);
    }
    synth_close(small);
    synth_close(real);
    for (int i = 0; status == STATUS_OK && i < N_KNOWN; i++) {
        bool found = false;
        for (int j = 0; j < health->n_backends; j++)
            if (strcmp(health->backends[j].name, known[i].name) == 0) {
                health->backends[j].purpose = known[i].purpose;
                found = true;
            }
        if (!found && health->n_backends < MAX_BACKENDS)
            health->backends[health->n_backends++] =
                (struct backend_health){.name = known[i].name, .purpose = known[i].purpose};
    }
    return status;
}

static void look_at_model(struct health *health)
{
    struct model model;
    if (model_open(health->model, &model, &health->model_problem) != STATUS_OK)
        return;
    health->model_shape = checkpoint_weights(model.checkpoint)->shape->name;
    if (!template_differs(health->model, &health->model_warning))
        health->model_warning.status = STATUS_OK;
    model_close(&model);
}

static enum status look(struct health *health, bool measure, struct error *error)
{
    cpu_name(health->cpu, sizeof health->cpu);
    health->features = cpu_features();
    health->cores = cpu_physical_cores();
    health->hardware_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    health->cpu_limit = cgroup_cpu_limit("");
    health->memory = memory_look();
    enum status status = STATUS_OK;
    if (measure)
        status = bandwidth_measure(health->threads, 0, 0, &health->bandwidth, error);
    if (status == STATUS_OK)
        status = look_at_backends(health, error);
    if (status == STATUS_OK && health->model)
        look_at_model(health);
    return status;
}

/* ---- telling --------------------------------------------------------------------------------- */

static double gib(int64_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* "AVX2, FMA, AVX-512 F": those that are there, or those that are not. */
static void print_features(const struct health *health, const char *title, bool there)
{
    const char *separator = "", *name;
    bool has;
    printf("%-14s ", title);
    for (int i = 0; (name = cpu_feature_name(&health->features, i, &has)); i++)
        if (has == there) {
            printf("%s%s", separator, name);
            separator = ", ";
        }
    printf("%s\n", *separator ? "" : "none");
}

static void print_machine(const struct health *health)
{
    printf("calla          %s\n", CALLA_VERSION);
    printf("processor      %s, %d core%s to use, %d hardware thread%s\n", health->cpu,
           health->cores, health->cores == 1 ? "" : "s", health->hardware_threads,
           health->hardware_threads == 1 ? "" : "s");
    if (health->cpu_limit > 0)
        printf("               its control group allows the time of %.2f processors\n",
               health->cpu_limit);
    print_features(health, "features", true);
    print_features(health, "not there", false);
    printf("memory         %.2f GiB, %.2f of it free", gib(health->memory.physical),
           gib(health->memory.available));
    if (health->memory.limit > 0)
        printf("; the control group allows %.2f", gib(health->memory.limit));
    if (health->memory.allocatable < INT64_MAX)
        printf("; ulimit leaves %.2f", gib(health->memory.allocatable));
    printf("\n");
    if (health->bandwidth.median > 0)
        printf("read bandwidth %.1f GB/s with %d thread%s (best of %d: %.1f)\n",
               health->bandwidth.median / 1e9, health->threads, health->threads == 1 ? "" : "s",
               health->bandwidth.rounds, health->bandwidth.best / 1e9);
}

static void print_fit(const struct health *health, const struct backend_health *backend)
{
    const struct fit *fit = &backend->fit;
    if (!fit->fits) {
        printf("  %-12s does not fit: %.2f GiB with the shortest context, %.2f of it besides the "
               "weights\n",
               backend->name, gib(fit->plan.total), gib(fit->plan.total - fit->plan.weights));
        return;
    }
    printf("  %-12s fits with a context of up to %d tokens%s: %.2f GiB, %.2f of it besides the "
           "weights\n",
           backend->name, fit->context,
           fit->context == MODEL_CONTEXT ? ", the model's longest" : "", gib(fit->plan.total),
           gib(fit->plan.total - fit->plan.weights));
    printf("  %-12s decode reads %.2f GB for a token (%.2f at the context's end)", "",
           fit->short_bytes / 1e9, fit->long_bytes / 1e9);
    if (health->bandwidth.median > 0)
        printf(": no more than %.1f tok/s here (%.1f)", fit->short_rate, fit->long_rate);
    printf("\n");
    if (health->memory.available > 0 && fit->plan.total > health->memory.available)
        printf("  %-12s only %.2f GiB are free now: weights that find no room there are read from "
               "the disk\n               time and again, far slower\n",
               "", gib(health->memory.available));
}

static void print_health(const struct health *health)
{
    print_machine(health);
    for (int i = 0; i < health->n_backends; i++) {
        const struct backend_health *backend = &health->backends[i];
        printf("%-14s %-6s (%s) %s%s%s\n", i ? "" : "backends", backend->name, backend->purpose,
               backend->usable     ? "usable"
               : backend->compiled ? "NOT usable: "
                                   : "not compiled in",
               backend->compiled && !backend->usable ? backend->problem.message : "",
               i == 0 && backend->usable ? ", the default" : "");
    }
    printf("\nQwen3.6-35B-A3B, 4 bit: weights %.2f GB (%.2f GiB), mapped\n",
           (double)health->weights / 1e9, gib(health->weights));
    for (int i = 0; i < health->n_backends; i++)
        if (health->backends[i].compiled)
            print_fit(health, &health->backends[i]);
    if (!health->model)
        return;
    printf("\ncheckpoint     %s: ", health->model);
    if (health->model_problem.status != STATUS_OK)
        printf("NOT usable: %s\n", health->model_problem.message);
    else
        printf("shape %s; config, tensors and tokenizer are right (inspect --verify compares the "
               "files' digests)\n",
               health->model_shape);
    if (health->model_warning.status != STATUS_OK)
        printf("               %s\n", health->model_warning.message);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *number_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

static json_t *features_json(const struct health *health)
{
    json_t *names = json_array();
    const char *name;
    bool has;
    for (int i = 0; (name = cpu_feature_name(&health->features, i, &has)); i++)
        if (has && json_array_append_new(names, json_string(name)) != 0) {
            json_decref(names);
            return NULL; /* the whole then fails, too */
        }
    return names;
}

static json_t *fit_json(const struct backend_health *backend)
{
    const struct fit *fit = &backend->fit;
    if (!backend->compiled)
        return json_null();
    return json_pack("{s:b, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "fits", fit->fits,
                     "max_context_tokens", fit->context, "weight_bytes",
                     (json_int_t)fit->plan.weights, "kv_cache_bytes",
                     (json_int_t)fit->plan.kv_cache, "state_bytes", (json_int_t)fit->plan.state,
                     "workspace_bytes", (json_int_t)fit->plan.workspace, "total_bytes",
                     (json_int_t)fit->plan.total, "bytes_per_token", fit->short_bytes,
                     "bytes_per_token_at_end", fit->long_bytes, "max_decode_tok_per_s",
                     number_or_null(fit->short_rate), "max_decode_tok_per_s_at_end",
                     number_or_null(fit->long_rate));
}

static json_t *backends_json(const struct health *health)
{
    json_t *list = json_array();
    for (int i = 0; i < health->n_backends; i++) {
        const struct backend_health *backend = &health->backends[i];
        const char *why = !backend->compiled ? "not compiled in"
                          : !backend->usable ? backend->problem.message
                                             : NULL;
        json_array_append_new(list,
                              json_pack("{s:s, s:b, s:b, s:s*, s:o}", "name", backend->name,
                                        "compiled", backend->compiled, "usable", backend->usable,
                                        "why", why, "35b-a3b", fit_json(backend)));
    }
    return list;
}

static json_t *model_json(const struct health *health)
{
    if (!health->model)
        return json_null();
    bool usable = health->model_problem.status == STATUS_OK;
    /* a folder's name may be no UTF-8, then there is no "folder" */
    return json_pack("{s:o*, s:b, s:s*, s:s*, s:s*}", "folder", json_string(health->model),
                     "usable", usable, "shape", health->model_shape, "problem",
                     usable ? NULL : health->model_problem.message, "warning",
                     health->model_warning.status == STATUS_OK ? NULL
                                                               : health->model_warning.message);
}

static enum status print_json(const struct health *health, struct error *error)
{
    const struct bandwidth *bandwidth = &health->bandwidth;
    json_t *object = json_pack(
        "{s:s, s:{s:s, s:i, s:i, s:o, s:o}, s:{s:I, s:I, s:o}, s:o, s:i, s:I, s:o, s:o}", "version",
        CALLA_VERSION, "cpu", "name", health->cpu, "cores", health->cores, "hardware_threads",
        health->hardware_threads, "cpu_limit", number_or_null(health->cpu_limit), "features",
        features_json(health), "memory", "physical_bytes", (json_int_t)health->memory.physical,
        "available_bytes", (json_int_t)health->memory.available, "limit_bytes",
        health->memory.limit > 0 ? json_integer(health->memory.limit) : json_null(),
        "read_bandwidth_bytes_per_s", number_or_null(bandwidth->median), "threads", health->threads,
        "35b-a3b_weight_bytes", (json_int_t)health->weights, "backends", backends_json(health),
        "checkpoint", model_json(health));
    struct bytes line = {0};
    if (object)
        json_print(object, &line);
    bool failed = !object || line.failed;
    json_decref(object);
    if (!failed) {
        fwrite(line.data, 1, line.length, stdout);
        putchar('\n');
    }
    bytes_clear(&line);
    return failed ? error_no_memory(error, "the answer") : STATUS_OK;
}

static int run(int argc, char **argv)
{
    struct health health = {0};
    struct device_options device = {0};
    bool json = false, no_bandwidth = false;
    const struct option options[] = {
        {"threads", OPTION_INTEGER, &device.threads, 1, THREADS_MAX, NULL, "N",
         "threads to measure the bandwidth with (the physical cores)"},
        {"no-bandwidth", OPTION_FLAG, &no_bandwidth, 0, 0, NULL, NULL,
         "do not measure the read bandwidth"},
        {"json", OPTION_FLAG, &json, 0, 0, NULL, NULL, "one JSON object"},
        {0},
    };
    int code = options_parse(&command_doctor, argc, argv, options, &health.model, 0, 1);
    if (code >= 0)
        return code;
    struct error error;
    health.threads = device_threads(&device);
    if (look(&health, !no_bandwidth, &error) != STATUS_OK)
        return command_failed(&error);
    if (!json)
        print_health(&health);
    else if (print_json(&health, &error) != STATUS_OK)
        return command_failed(&error);
    bool usable = false;
    for (int i = 0; i < health.n_backends; i++)
        usable |= health.backends[i].usable;
    return usable && health.model_problem.status == STATUS_OK ? EXIT_DONE : EXIT_FAILED;
}

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "[MODEL]",
    .summary = "what this machine offers, and whether the model fits",
    .run = run,
    .details = "exits with 1 when no backend or not MODEL is usable\n",
};
