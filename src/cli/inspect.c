/* `calla inspect MODEL`: what a checkpoint holds, what the engine would take of the machine, and
 * with --verify whether its files are the published ones. Opening the checkpoint has already
 * checked every tensor's dtype, shape and bounds. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/verify.h"
#include "engine/engine.h"
#include "library/template_check.h"
#include "model/checkpoint.h"

struct plan {
    const char *backend;
    int32_t context;
    struct memory_plan memory;
    struct error problem; /* why it does not fit */
    bool fits;
};

/* For one sequence. */
static enum status plan_memory(const struct checkpoint *checkpoint, const char *backend,
                               int64_t context, struct plan *plan, struct error *error)
{
    const struct backend_ops *ops;
    enum status status = backend_find(backend, &ops, error);
    if (status == STATUS_OK)
        status = engine_context(ops, checkpoint_weights(checkpoint), (int32_t)context,
                                checkpoint_config(checkpoint)->max_position_embeddings,
                                &plan->context, error);
    if (status != STATUS_OK)
        return status;
    const struct backend_options options = {
        .weights = checkpoint_weights(checkpoint),
        .n_valid_ids = checkpoint_config(checkpoint)->shape->vocab_size,
        .context = plan->context,
        .n_sequences = 1,
    };
    plan->backend = ops->name;
    ops->plan(&options, &plan->memory);
    plan->fits = memory_plan_check(&plan->memory, plan->context, 1, &plan->problem) == STATUS_OK;
    return STATUS_OK;
}

static struct checkpoint_part sum_parts(const struct checkpoint *checkpoint, bool skipped)
{
    struct checkpoint_part sum = {.name = skipped ? "total (skipped)" : "total", .bits = ""};
    for (const struct checkpoint_part *part = checkpoint_parts(checkpoint); part->name; part++) {
        if (part->skipped != skipped)
            continue;
        sum.tensors += part->tensors;
        sum.bytes += part->bytes;
        sum.parameters += part->parameters;
    }
    return sum;
}

static void print_part(const struct checkpoint_part *part)
{
    char parameters[32] = "";
    if (part->parameters)
        snprintf(parameters, sizeof parameters, "%" PRId64, part->parameters);
    printf("  %-17s %7" PRId64 "  %-7s %14s %15" PRId64 "\n", part->name, part->tensors, part->bits,
           parameters, part->bytes);
}

static void print_plan(const struct plan *plan)
{
    const struct {
        const char *name;
        int64_t bytes;
    } rows[] = {{"weights (mapped)", plan->memory.weights},
                {"KV cache", plan->memory.kv_cache},
                {"state", plan->memory.state},
                {"workspace", plan->memory.workspace},
                {"total", plan->memory.total}};
    printf("\nmemory for one sequence of %d tokens, backend %s\n", plan->context, plan->backend);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("  %-17s %15" PRId64 "  %9.3f GiB\n", rows[i].name, rows[i].bytes,
               (double)rows[i].bytes / (1 << 30));
    printf("  %-17s %15" PRId64 "\n", "KV bytes a token", plan->memory.kv_row);
    if (!plan->fits)
        printf("  does not fit: %s\n", plan->problem.message);
}

static void print_table(const char *folder, const struct checkpoint *checkpoint,
                        const struct plan *plan)
{
    const struct config *config = checkpoint_config(checkpoint);
    const struct shape *shape = config->shape;
    printf("checkpoint   %s\nshape        %s: hidden %d, %d layers (%d with full attention), %d "
           "experts, %d at a time\n",
           folder, shape->name, shape->hidden_size, shape->num_hidden_layers,
           shape_n_full_attention(shape), shape->num_experts, shape->num_experts_per_tok);
    printf("max context  %d tokens\nstop ids    ", config->max_position_embeddings);
    for (int i = 0; i < config->n_stop_ids; i++)
        printf(" %d", config->stop_ids[i]);
    printf("%s\n", config->n_stop_ids ? "" : " from tokenizer.json");
    if (config->do_sample)
        printf("sampling     temperature %g, top_p %g, top_k %d\n", config->temperature,
               config->top_p, config->top_k);
    else
        printf("sampling     greedy\n");
    printf("files        %d with tensors; dtype, shape and bounds of every tensor are right\n\n",
           checkpoint_n_shards(checkpoint));
    printf("  %-17s %7s  %-7s %14s %15s\n", "part", "tensors", "bits", "parameters", "bytes");
    for (const struct checkpoint_part *part = checkpoint_parts(checkpoint); part->name; part++)
        if (part->tensors)
            print_part(part);
    struct checkpoint_part used = sum_parts(checkpoint, false);
    struct checkpoint_part skipped = sum_parts(checkpoint, true);
    print_part(&used);
    print_part(&skipped);
    print_plan(plan);
}

static json_t *parts_json(const struct checkpoint *checkpoint)
{
    json_t *parts = json_array();
    for (const struct checkpoint_part *part = checkpoint_parts(checkpoint); part->name; part++)
        json_array_append_new(parts,
                              json_pack("{s:s, s:I, s:s, s:I, s:I, s:b}", "name", part->name,
                                        "tensors", (json_int_t)part->tensors, "bits", part->bits,
                                        "parameters", (json_int_t)part->parameters, "bytes",
                                        (json_int_t)part->bytes, "skipped", part->skipped));
    return parts;
}

static json_t *total_json(const struct checkpoint *checkpoint, bool skipped)
{
    struct checkpoint_part sum = sum_parts(checkpoint, skipped);
    return json_pack("{s:I, s:I, s:I}", "tensors", (json_int_t)sum.tensors, "parameters",
                     (json_int_t)sum.parameters, "bytes", (json_int_t)sum.bytes);
}

static json_t *plan_json(const struct plan *plan)
{
    const struct memory_plan *memory = &plan->memory;
    return json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "backend", plan->backend,
                     "context", plan->context, "sequences", 1, "weights",
                     (json_int_t)memory->weights, "kv_cache", (json_int_t)memory->kv_cache,
                     "kv_bytes_per_token", (json_int_t)memory->kv_row, "state",
                     (json_int_t)memory->state, "workspace", (json_int_t)memory->workspace, "total",
                     (json_int_t)memory->total, "fits", plan->fits);
}

/* One object on one line; EXIT_FAILED when memory runs out. */
static int print_json(const char *folder, const struct checkpoint *checkpoint,
                      const struct plan *plan)
{
    const struct config *config = checkpoint_config(checkpoint);
    json_t *stop_ids = json_array();
    for (int i = 0; i < config->n_stop_ids; i++)
        json_array_append_new(stop_ids, json_integer(config->stop_ids[i]));
    /* a folder's name may be no UTF-8, then there is no "folder" */
    json_t *object =
        json_pack("{s:o*, s:s, s:i, s:i, s:o, s:{s:b, s:f, s:f, s:i}, s:o, s:o, s:o, s:o}",
                  "folder", json_string(folder), "shape", config->shape->name, "files",
                  checkpoint_n_shards(checkpoint), "max_context", config->max_position_embeddings,
                  "stop_ids", stop_ids, "sampling", "do_sample", config->do_sample, "temperature",
                  config->temperature, "top_p", config->top_p, "top_k", config->top_k, "parts",
                  parts_json(checkpoint), "total", total_json(checkpoint, false), "skipped",
                  total_json(checkpoint, true), "memory", plan_json(plan));
    struct bytes line = {0};
    if (object)
        json_print(object, &line);
    json_decref(object);
    bytes_append_byte(&line, '\n');
    bool failed = !object || line.failed;
    if (failed)
        fprintf(stderr, "calla: out of memory for the answer\n");
    else
        fwrite(line.data, 1, line.length, stdout);
    bytes_clear(&line);
    return failed ? EXIT_FAILED : EXIT_DONE;
}

static int inspect(const char *folder, const char *backend, int64_t context, bool json)
{
    struct error error;
    struct checkpoint *checkpoint;
    if (checkpoint_open(folder, &checkpoint, &error) != STATUS_OK)
        return command_failed(&error);
    if (template_differs(folder, &error))
        fprintf(stderr, "calla: %s\n", error.message);
    struct plan plan;
    int code = EXIT_DONE;
    if (plan_memory(checkpoint, backend, context, &plan, &error) != STATUS_OK)
        code = command_failed(&error);
    else if (json)
        code = print_json(folder, checkpoint, &plan);
    else
        print_table(folder, checkpoint, &plan);
    checkpoint_close(checkpoint);
    return code;
}

static int run(int argc, char **argv)
{
    const char *folder, *backend = NULL;
    int64_t context = 0;
    bool json = false, verify = false;
    const struct option options[] = {
        {.name = "max-context",
         .kind = OPTION_SIZE,
         .value = &context,
         .low = 1,
         .high = INT32_MAX,
         .argument = "N",
         .help = "tokens that the memory plan is made for"},
        {.name = "backend",
         .kind = OPTION_BACKEND,
         .value = &backend,
         .argument = "NAME",
         .help = "the backend that it is made for (the best one)"},
        {.name = "verify",
         .kind = OPTION_FLAG,
         .value = &verify,
         .help = "only hash the files and compare them with the published ones"},
        {.name = "json", .kind = OPTION_FLAG, .value = &json, .help = "one JSON object"},
        {0},
    };
    int code = options_parse(&command_inspect, argc, argv, options, &folder, 1, 1);
    if (code >= 0)
        return code;
    return verify ? verify_run(folder, json) : inspect(folder, backend, context, json);
}

const struct command command_inspect = {
    .name = "inspect",
    .arguments = "MODEL",
    .summary = "what a checkpoint holds; --verify checks its files",
    .run = run,
};
