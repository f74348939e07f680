#include "cli/generation.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/input.h"

static void print_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

void generation_init(struct generation *generation)
{
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    *generation = (struct generation){
        .open = {.log = print_line},
        .seed = (int64_t)(clock.tv_nsec ^ (clock.tv_sec << 20)), /* another text each time */
    };
}

void generation_add_options(struct generation *g, struct option *table, int n)
{
    struct calla_request *v = &g->values;
    const struct option rows[GENERATION_OPTIONS + 1] = {
        {"system", OPTION_TEXT, &g->system, 0, 0, NULL, "TEXT", "system message"},
        {"think", OPTION_FLAG, &g->flag, 0, 0, &g->think, NULL,
         "reason before answering (default)"},
        {"no-think", OPTION_FLAG, &g->flag, 0, 0, &g->no_think, NULL, "answer at once"},
        {"preset", OPTION_PRESET, &g->preset, 0, 0, NULL, "NAME",
         "sampling and thinking as the vendor advises"},
        {"max-tokens", OPTION_SIZE, &g->max_tokens_value, 1, INT32_MAX, NULL, "N",
         "end the answer after N tokens"},
        {"temperature", OPTION_REAL, &v->temperature, 0, 2, &g->temperature, "T", "0: greedy"},
        {"top-p", OPTION_REAL, &v->top_p, 1e-9, 1, &g->top_p, "P", "nucleus; 1: off"},
        {"top-k", OPTION_INTEGER, &g->top_k_value, 0, INT32_MAX, &g->top_k, "K", "0: off"},
        {"min-p", OPTION_REAL, &v->min_p, 0, 1, &g->min_p, "P",
         "drop tokens below P times the best one's probability"},
        {"presence-penalty", OPTION_REAL, &v->presence_penalty, -2, 2, &g->presence, "X",
         "over tokens that were generated"},
        {"frequency-penalty", OPTION_REAL, &v->frequency_penalty, -2, 2, &g->frequency, "X",
         "over tokens that were generated"},
        {"repetition-penalty", OPTION_REAL, &v->repetition_penalty, 1e-3, 1e3, &g->repetition, "X",
         "over prompt and generated tokens; 1: off"},
        {"seed", OPTION_INTEGER, &g->seed, 0, (double)INT64_MAX, NULL, "N",
         "the same seed gives the same text (default: from the clock)"},
        {"stop", OPTION_LIST, &g->stop, 0, 0, NULL, "TEXT",
         "end the answer where TEXT would appear; may be repeated"},
        {"max-context", OPTION_SIZE, &g->context_value, 1, INT32_MAX, NULL, "N",
         "tokens of prompt and answer together (what fits into memory)"},
        DEVICE_OPTIONS(g->device),
        {"mlock", OPTION_FLAG, &g->lock, 0, 0, NULL, NULL, "keep the weights locked in memory"},
        {"warm-up", OPTION_FLAG, &g->warm_up, 0, 0, NULL, NULL,
         "read all weights before the first prompt"},
        {0},
    };
    memcpy(table + n, rows, sizeof rows);
}

int generation_check(const struct command *command, struct generation *generation)
{
    struct error error;
    if (generation->think && generation->no_think)
        return options_usage(command, "--think and --no-think exclude each other");
    for (int i = 0; i < generation->stop.n;
         i++) { /* what the model could never write ends nothing */
        const char *stop = generation->stop.values[i];
        if (!stop[0])
            return options_usage(command, "--stop: found an empty text");
        if (input_check_utf8("--stop", stop, strlen(stop), &error) != STATUS_OK)
            return options_usage(command, "%s", error.message);
    }
    if (generation->system && input_check_utf8("--system", generation->system,
                                               strlen(generation->system), &error) != STATUS_OK)
        return options_usage(command, "%s", error.message);
    int code = device_check(command, &generation->device, "");
    if (code >= 0)
        return code;
    generation->open.max_context = (int32_t)generation->context_value;
    generation->open.backend = generation->device.backend;
    generation->open.threads = (int32_t)generation->device.threads;
    generation->open.cpu = generation->device.cpu;
    generation->open.lock = generation->lock;
    generation->open.warm_up = generation->warm_up;
    return -1;
}

enum calla_status generation_fill(const struct generation *given, const struct calla_model *model,
                                  struct calla_request *r, struct calla_error *error)
{
    calla_request_init(model, r);
    if (given->preset) {
        enum calla_status status = calla_request_preset(r, given->preset, error);
        if (status != CALLA_OK)
            return status;
    }
    const struct calla_request *v = &given->values;
    r->temperature = given->temperature ? v->temperature : r->temperature;
    r->top_p = given->top_p ? v->top_p : r->top_p;
    r->top_k = given->top_k ? (int32_t)given->top_k_value : r->top_k;
    r->min_p = given->min_p ? v->min_p : r->min_p;
    r->presence_penalty = given->presence ? v->presence_penalty : r->presence_penalty;
    r->frequency_penalty = given->frequency ? v->frequency_penalty : r->frequency_penalty;
    r->repetition_penalty = given->repetition ? v->repetition_penalty : r->repetition_penalty;
    r->thinking = given->think      ? CALLA_THINKING_ON
                  : given->no_think ? CALLA_THINKING_OFF
                                    : r->thinking;
    r->max_tokens = (int32_t)given->max_tokens_value;
    r->seed = (uint64_t)given->seed;
    r->stop = given->stop.values;
    r->n_stop = given->stop.n;
    return CALLA_OK;
}
