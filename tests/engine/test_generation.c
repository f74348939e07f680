/* A generation step by step: the same tokens as a plain loop of prefill, draw and decode gives,
 * wherever it was suspended, what the cache knew, and whatever its guide wants. On ref, where
 * everything is the same bit for bit, and on the hashed backend. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/generation.h"
#include "support/hashed.h"
#include "support/ok.h"
#include "support/sanitized.h"
#include "support/tiny.h"

#define CONTEXT 200
#if SANITIZED /* they make ref slow */
#define N 12  /* tokens of the prompt */
#define MAX 4 /* tokens generated */
#else
#define N 30
#define MAX 7
#endif
#define PLACE (N * 2 / 3)

static struct engine engine;
static struct sequence *sequences[2];
static struct prefix_cache *cache;
static int32_t vocab_size;
static const int64_t plenty = (int64_t)1 << 30;

static void open_cache(int64_t budget)
{
    struct prefix_cache_options options = {.budget = budget};
    OK(prefix_cache_new(&engine, &options, &cache, e));
}

/* Everything that was held is free again. */
static void close_cache(void)
{
    struct kv_usage usage;
    prefix_cache_free(cache);
    for (int i = 0; i < 2; i++)
        engine.ops->sequence_reset(engine.backend, sequences[i]);
    engine.ops->kv_usage(engine.backend, &usage);
    assert_int_equal(usage.free, usage.pages);
}

static int open_engine(void **state, const struct backend_ops *ops)
{
    if (tiny_setup(state) != 0)
        return -1;
    struct engine_options options = {
        .ops = ops, .context = CONTEXT, .n_sequences = 2, .kv_rows = 2048};
    OK(engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &engine, e));
    OK(engine_open(&engine, e));
    for (int i = 0; i < 2; i++)
        OK(engine.ops->sequence_new(engine.backend, &sequences[i], e));
    vocab_size = engine.shape->vocab_size;
    return 0;
}

static int setup(void **state)
{
    return open_engine(state, &backend_ref);
}

static int setup_hashed(void **state)
{
    hashed.max_chunk = CONTEXT;
    return open_engine(state, &backend_hashed);
}

static int teardown(void **state)
{
    for (int i = 0; i < 2; i++)
        engine.ops->sequence_free(engine.backend, sequences[i]);
    engine_close(&engine);
    return tiny_teardown(state);
}

/* ---- running one ----------------------------------------------------------------------------- */

struct answer {
    struct generated all[CONTEXT + 1]; /* prompt's tokens too, where they are given out */
    int n;
    enum generation_end end;
    struct error error;
    struct generation_figures figures;
};

static void take(void *context, const struct generated *generated)
{
    struct answer *answer = context;
    assert_true(answer->n < CONTEXT + 1);
    answer->all[answer->n++] = *generated;
}

static struct generation_options greedy(void)
{
    return (struct generation_options){.prompt = tiny_ids(),
                                       .n_prompt = N,
                                       .sampling = {.repetition_penalty = 1, .top_p = 1},
                                       .max_tokens = MAX,
                                       .n_top = -1};
}

static struct generation_options sampled(void)
{
    struct generation_options options = greedy();
    options.sampling = (struct sampling){.temperature = 1.2,
                                         .top_k = 200,
                                         .top_p = 0.98,
                                         .presence_penalty = 0.7,
                                         .frequency_penalty = 0.2,
                                         .repetition_penalty = 1.2,
                                         .seed = 5};
    return options;
}

static enum status step(struct generation *generation, int32_t chunk)
{
    struct row row;
    struct ranked ranked;
    struct error error;
    if (generation_phase(generation) == GENERATION_READING)
        return generation_read(generation, chunk, NULL, &error);
    enum status status = generation_row(generation, &row, &error);
    if (status == STATUS_OK)
        status = engine.ops->decode_step(engine.backend, &row, 1, &ranked, &error);
    if (status == STATUS_OK)
        generation_take(generation, &ranked, 0);
    else
        generation_stop(generation, &error);
    return status;
}

/* Runs a generation to its end in chunks; after each `rest` steps it changes its sequence. */
static struct answer run(struct generation_options options, int32_t chunk, int rest)
{
    struct answer answer = {.n = 0};
    struct generation *generation;
    int steps = 0, own = 0;
    options.emit = take;
    options.context = &answer;
    OK(generation_new(&engine, &options, &generation, e));
    assert_int_equal(generation_phase(generation), GENERATION_WAITING);
    generation_start(generation, cache, sequences[own]);
    while (generation_phase(generation) != GENERATION_ENDED) {
        if (rest > 0 && steps > 0 && steps % rest == 0) {
            assert_ptr_equal(generation_suspend(generation), sequences[own]);
            assert_int_equal(generation_phase(generation), GENERATION_WAITING);
            own = 1 - own;
            generation_start(generation, cache, sequences[own]);
            /* goes on from nothing where the cache is off: until it decodes it does not rest */
            while (generation_phase(generation) == GENERATION_READING)
                assert_int_not_equal(step(generation, chunk), STATUS_BUSY);
            if (generation_phase(generation) == GENERATION_ENDED)
                break;
        }
        assert_int_not_equal(step(generation, chunk), STATUS_BUSY);
        steps++;
    }
    answer.end = generation_end(generation);
    answer.error = *generation_error(generation);
    answer.figures = *generation_figures(generation);
    assert_ptr_equal(generation_finish(generation), sequences[own]);
    generation_free(generation);
    return answer;
}

static void assert_tokens(const struct answer *answer, const int32_t *wanted, int n)
{
    if (answer->end == GENERATION_FAILED)
        fail_msg("%s", answer->error.message);
    assert_int_equal(answer->n, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(answer->all[i].token, wanted[i]);
}

/* ---- the plain loop -------------------------------------------------------------------------- */

struct plain {
    int32_t tokens[CONTEXT];
    float *logits; /* [MAX][vocab_size] that each was drawn from */
};

/* Draws from all logits; `banned`, if there is one, may not come as one of the first `min`. */
static struct plain run_plain(const struct sampling *sampling, int n_tokens, int32_t banned,
                              int min)
{
    struct plain plain = {.logits = malloc((size_t)n_tokens * (size_t)vocab_size * sizeof(float))};
    float *masked = malloc((size_t)vocab_size * sizeof *masked);
    struct sampler *sampler;
    struct ranked ranked;
    const struct prefill_watch unwatched = {0};
    struct sequence *sequence = sequences[0];
    assert_non_null(plain.logits);
    assert_non_null(masked);
    OK(sampler_new(sampling, TINY_N_VALID_IDS, &sampler, e));
    sampler_add_prompt(sampler, tiny_ids(), N);
    engine.ops->sequence_reset(engine.backend, sequence);
    OK(engine_prefill(&engine, sequence, tiny_ids(), N, &ranked, &unwatched, e));
    for (int i = 0; i < n_tokens; i++) {
        float *logits = plain.logits + (size_t)i * (size_t)vocab_size;
        OK(engine.ops->logits(engine.backend, 0, logits, e));
        memcpy(masked, logits, (size_t)vocab_size * sizeof *masked);
        if (i < min)
            masked[banned] = -INFINITY;
        plain.tokens[i] = sampler_draw(sampler, masked, sequence->position);
        sampler_add_generated(sampler, plain.tokens[i]);
        OK(engine_decode(&engine, sequence, plain.tokens[i], &ranked, e));
    }
    sampler_free(sampler);
    free(masked);
    return plain;
}

static double log_sum(const float *logits)
{
    double sum = 0;
    for (int32_t i = 0; i < TINY_N_VALID_IDS; i++)
        sum += exp((double)logits[i]);
    return log(sum);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void test_same_as_plain(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct generation_options options = with ? sampled() : greedy();
        struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
        const int32_t chunks[] = {7, 64};
        for (int i = 0; i < 2; i++) {
            open_cache(i ? plenty : 0);
            struct answer answer = run(options, chunks[i], 0);
            assert_tokens(&answer, plain.tokens, MAX);
            assert_int_equal(answer.end, GENERATION_LENGTH);
            assert_int_equal(answer.figures.prompt, N);
            assert_int_equal(answer.figures.read, N);
            assert_int_equal(answer.figures.cached, 0);
            assert_int_equal(answer.figures.generated, MAX);
            assert_true(answer.figures.started <= answer.figures.first &&
                        answer.figures.first <= answer.figures.end);
            close_cache();
        }
        free(plain.logits);
    }
}

static void test_suspended(void **state)
{
    (void)state;
    for (int with = 0; with < 4; with++) {
        struct generation_options options = with % 2 ? sampled() : greedy();
        prefix_places_add(&options.places, PLACE, PREFIX_USER);
        struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
        open_cache(with / 2 ? plenty : 0);
        for (int rest = 1; rest < (SANITIZED ? 4 : 6); rest += SANITIZED ? 2 : 1) {
            struct answer answer = run(options, 13, rest);
            assert_tokens(&answer, plain.tokens, MAX);
            assert_true(answer.figures.suspended > 0);
        }
        close_cache();
        free(plain.logits);
    }
}

/* What was read when it lost its place is all there when it goes on. */
static void test_resumed_where_an_entry_ends(void **state)
{
    (void)state;
    struct generation_options options = greedy();
    struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
    struct answer answer = {.n = 0};
    struct generation *generation;
    open_cache(plenty);
    prefix_places_add(&options.places, N, PREFIX_EXPLICIT);
    options.emit = take;
    options.context = &answer;
    OK(generation_new(&engine, &options, &generation, e));
    generation_start(generation, cache, sequences[0]);
    OK(generation_read(generation, CONTEXT, NULL, e));
    assert_int_equal(answer.n, 1);
    generation_suspend(generation);
    generation_start(generation, cache, sequences[1]);
    while (generation_phase(generation) != GENERATION_ENDED)
        OK(step(generation, CONTEXT));
    assert_int_equal(generation_figures(generation)->read, N);
    assert_int_equal(generation_figures(generation)->cached, 0); /* as it first began */
    assert_tokens(&answer, plain.tokens, MAX);
    generation_finish(generation);
    generation_free(generation);
    close_cache();
    free(plain.logits);
}

static void test_cached(void **state)
{
    (void)state;
    struct generation_options options = sampled();
    struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
    prefix_places_add(&options.places, PLACE, PREFIX_USER);
    prefix_places_add(&options.places, N - 1, PREFIX_PROMPT);
    open_cache(plenty);
    for (int i = 0; i < 2; i++) {
        struct answer answer = run(options, 64, 0);
        assert_tokens(&answer, plain.tokens, MAX);
        assert_int_equal(answer.figures.cached, i ? N - 1 : 0);
        assert_int_equal(answer.figures.read, i ? 1 : N);
    }
    /* what was generated was kept, too, but for the last token, which was not read */
    int32_t longer[N + MAX + 1];
    memcpy(longer, tiny_ids(), N * sizeof *longer);
    memcpy(longer + N, plain.tokens, MAX * sizeof *longer);
    longer[N + MAX] = 7;
    assert_int_equal(prefix_cache_match(cache, longer, N + MAX + 1), N + MAX - 1);
    close_cache();
    free(plain.logits);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
    (void)state;
    const struct {
        int32_t n_prompt, max_tokens;
        int wanted;
    } cases[] = {{N, 0, 0},           {N, 1, 1},        {N, 3, 3},      {CONTEXT - 3, -1, 3},
                 {CONTEXT - 3, 9, 3}, {CONTEXT, -1, 0}, {CONTEXT, 5, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct generation_options options = greedy();
        options.n_prompt = cases[i].n_prompt;
        options.max_tokens = cases[i].max_tokens;
        open_cache(plenty);
        struct answer answer = run(options, 64, 0);
        assert_int_equal(answer.end, GENERATION_LENGTH);
        assert_int_equal(answer.n, cases[i].wanted);
        assert_int_equal(answer.figures.read, cases[i].n_prompt);
        close_cache();
    }
}

static void test_refused(void **state)
{
    (void)state;
    struct generation *generation;
    struct error error;
    struct generation_options options = greedy();
    options.n_prompt = CONTEXT + 1;
    assert_int_equal(generation_new(&engine, &options, &generation, &error), STATUS_CONTEXT);
    assert_null(generation);
    assert_non_null(strstr(error.message, "201"));
    options.n_prompt = 0;
    assert_int_equal(generation_new(&engine, &options, &generation, &error), STATUS_INVALID);
    options = greedy();
    options.n_top = TOP_MAX + 1;
    assert_int_equal(generation_new(&engine, &options, &generation, &error), STATUS_INVALID);
    assert_non_null(strstr(error.message, "21"));
    options.n_top = -1;
    options.prompt_logprobs = true;
    assert_int_equal(generation_new(&engine, &options, &generation, &error), STATUS_INVALID);
    int32_t ids[] = {1, 2, 1 << 20, 3}; /* the backend finds it */
    options = greedy();
    options.prompt = ids;
    options.n_prompt = 4;
    open_cache(plenty);
    struct answer answer = run(options, 64, 0);
    assert_int_equal(answer.end, GENERATION_FAILED);
    assert_int_equal(answer.error.status, STATUS_INVALID);
    close_cache();
}

static void test_stop_ids(void **state)
{
    (void)state;
    struct generation_options options = sampled();
    struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
    const int32_t stops[] = {-1, INT32_MAX, plain.tokens[3]}; /* a client's may be anything */
    int first = 0;
    while (plain.tokens[first] != stops[2])
        first++;
    options.stop_ids = stops;
    options.n_stop_ids = 3;
    open_cache(plenty);
    struct answer answer = run(options, 64, 0);
    assert_tokens(&answer, plain.tokens, first + 1);
    assert_int_equal(answer.end, GENERATION_STOPPED);
    for (int i = 0; i < answer.n; i++)
        assert_int_equal(answer.all[i].stops, i == first);
    const int mins[] = {first, first + 1, MAX - 1};
    for (int i = 0; i < 3; i++) {
        struct plain held = run_plain(&options.sampling, MAX, stops[2], mins[i]);
        options.min_tokens = mins[i];
        answer = run(options, 64, 0);
        int wanted = 0;
        while (wanted < MAX && held.tokens[wanted] != stops[2])
            wanted++;
        assert_true(wanted >= mins[i] || wanted == MAX);
        assert_tokens(&answer, held.tokens, wanted < MAX ? wanted + 1 : MAX);
        free(held.logits);
    }
    close_cache();
    free(plain.logits);
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void assert_logprobs(const struct generated *generated, const float *logits, int n_top)
{
    double sum = log_sum(logits);
    assert_int_equal(generated->n_top, n_top);
    assert_true(fabs((double)generated->logprob - ((double)logits[generated->token] - sum)) < 1e-4);
    for (int k = 0; k < n_top; k++) {
        int32_t better = 0, id = generated->top[k].token;
        for (int32_t other = 0; other < TINY_N_VALID_IDS; other++)
            better += logits[other] > logits[id] || (logits[other] == logits[id] && other < id);
        assert_int_equal(better, k);
        assert_true(fabs((double)generated->top[k].logprob - ((double)logits[id] - sum)) < 1e-4);
    }
}

static void test_logprobs(void **state)
{
    (void)state;
    const int tops[] = {0, 5, TOP_MAX};
    for (int with = 0; with < 3; with++) {
        struct generation_options options = sampled();
        options.n_top = tops[with];
        struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
        open_cache(0);
        struct answer answer = run(options, 64, 0);
        assert_tokens(&answer, plain.tokens, MAX);
        for (int i = 0; i < MAX; i++) {
            assert_false(answer.all[i].in_prompt);
            assert_logprobs(&answer.all[i], plain.logits + (size_t)i * (size_t)vocab_size,
                            tops[with]);
        }
        close_cache();
        free(plain.logits);
    }
}

/* Each token of the prompt once and in order, however it is cut and wherever it is suspended. */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    const int32_t chunks[] = {SANITIZED ? 5 : 1, 7, N, 64};
    float *logits = malloc((size_t)N * (size_t)vocab_size * sizeof *logits);
    struct ranked ranked;
    assert_non_null(logits);
    engine.ops->sequence_reset(engine.backend, sequences[0]);
    for (int i = 0; i < N; i++) {
        OK(engine_decode(&engine, sequences[0], tiny_ids()[i], &ranked, e));
        OK(engine.ops->logits(engine.backend, 0, logits + (size_t)i * (size_t)vocab_size, e));
    }
    for (size_t i = 0; i < 4; i++) {
        struct generation_options options = greedy();
        options.n_top = 3;
        options.prompt_logprobs = true;
        options.max_tokens = i == 1 ? 0 : 2;
        prefix_places_add(&options.places, PLACE, PREFIX_USER);
        open_cache(i < 2 ? 0 : plenty);
        struct answer answer = run(options, chunks[i], i == 1 ? 3 : 0);
        assert_int_equal(answer.n, N + options.max_tokens);
        assert_int_equal(answer.figures.cached, 0);
        assert_int_equal(answer.all[0].token, tiny_ids()[0]);
        assert_true(answer.all[0].in_prompt);
        assert_int_equal(answer.all[0].n_top, -1); /* nothing foretells it */
        for (int t = 1; t < N; t++) {
            assert_true(answer.all[t].in_prompt);
            assert_int_equal(answer.all[t].token, tiny_ids()[t]);
            assert_logprobs(&answer.all[t], logits + (size_t)(t - 1) * (size_t)vocab_size, 3);
        }
        if (options.max_tokens > 0)
            assert_logprobs(&answer.all[N], logits + (size_t)(N - 1) * (size_t)vocab_size, 3);
        for (int t = N; t < answer.n; t++)
            assert_false(answer.all[t].in_prompt);
        close_cache();
    }
    free(logits);
}

/* ---- the guide ------------------------------------------------------------------------------- */

struct script {
    int32_t seen[CONTEXT];
    int n;
    int32_t rare; /* an id outside of the best 64 */
};

/* Two forced tokens, two of three ids, then anything. */
static int32_t script_next(void *context)
{
    const struct script *script = context;
    return script->n == 0   ? script->rare
           : script->n == 1 ? 6
           : script->n < 4  ? GUIDE_MASK
                            : GUIDE_FREE;
}

static void script_mask(void *context, float *logits, int32_t n)
{
    (void)context;
    assert_int_equal(n, TINY_N_VALID_IDS);
    for (int32_t id = 0; id < n; id++)
        if (id < 100 || id > 102)
            logits[id] = -INFINITY;
}

static void script_add(void *context, int32_t token)
{
    struct script *script = context;
    script->seen[script->n++] = token;
}

static void test_guide(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct script script = {.n = 0};
        const struct guide guide = {script_next, script_mask, script_add, &script};
        struct generation_options options = with ? sampled() : greedy();
        struct plain plain = run_plain(&options.sampling, 1, 0, 0);
        for (int32_t id = 0; id < TINY_N_VALID_IDS; id++) /* the least likely one of all */
            if (plain.logits[id] < plain.logits[script.rare])
                script.rare = id;
        options.guide = &guide;
        options.n_top = 2;
        open_cache(plenty);
        struct answer answer = run(options, 64, with ? 2 : 0);
        assert_int_equal(answer.n, MAX);
        assert_int_equal(script.n, MAX);
        for (int i = 0; i < MAX; i++)
            assert_int_equal(script.seen[i], answer.all[i].token);
        assert_int_equal(answer.all[0].token, script.rare);
        assert_logprobs(&answer.all[0], plain.logits, 2); /* the model's own, not the guide's */
        assert_int_equal(answer.all[1].token, 6);
        for (int i = 2; i < 4; i++)
            assert_true(answer.all[i].token >= 100 && answer.all[i].token <= 102);
        close_cache();
        free(plain.logits);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static struct backend_ops faulty;
static int fail_after;

static enum status fail_chunk(struct backend *backend, struct sequence *sequence,
                              const int32_t *tokens, int n, enum prefill_output output,
                              struct ranked *ranked, const struct interrupt *interrupt,
                              struct error *error)
{
    if (fail_after-- > 0)
        return backend_ref.prefill_chunk(backend, sequence, tokens, n, output, ranked, interrupt,
                                         error);
    sequence->broken = true;
    return error_set(error, STATUS_DEVICE, "no chunk");
}

static enum status fail_logits(struct backend *backend, int i, float *out, struct error *error)
{
    (void)backend, (void)i, (void)out;
    return error_set(error, STATUS_DEVICE, "no logits");
}

static void test_device_fails(void **state)
{
    (void)state;
    struct generation_options options = greedy();
    struct answer answer = {.n = 0};
    open_cache(plenty);
    faulty = backend_ref;
    faulty.prefill_chunk = fail_chunk;
    engine.backend->ops = &faulty;
    for (int after = 0; after < 2; after++) {
        fail_after = after;
        answer = run(options, PLACE, 0);
        assert_int_equal(answer.end, GENERATION_FAILED);
        assert_int_equal(answer.error.status, STATUS_DEVICE);
        assert_string_equal(answer.error.message, "no chunk");
        assert_int_equal(answer.figures.read, PLACE * after);
    }
    faulty = backend_ref;
    faulty.logits = fail_logits;
    struct generation_options all = greedy();
    all.sampling.temperature = 1; /* without top_k: wants all logits */
    answer = run(all, 64, 0);
    assert_int_equal(answer.end, GENERATION_FAILED);
    assert_string_equal(answer.error.message, "no logits");
    assert_int_equal(answer.n, 0);
    engine.backend->ops = &backend_ref;
    struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
    answer = run(options, 64, 0);
    assert_tokens(&answer, plain.tokens, MAX);
    free(plain.logits);
    close_cache();
}

/* Cancelled inside of a chunk: nothing of it is kept, and the sequence is fit for the next one. */
static void test_cancelled(void **state)
{
    (void)state;
    atomic_bool cancel;
    struct generation_options options = greedy();
    struct plain plain = run_plain(&options.sampling, MAX, 0, 0);
    struct answer answer = {.n = 0};
    struct generation *generation;
    struct error error;
    struct prefix_cache_figures figures;
    options.emit = take;
    options.context = &answer;
    prefix_places_add(&options.places, PLACE, PREFIX_USER);
    open_cache(plenty);
    atomic_init(&cancel, false);
    OK(generation_new(&engine, &options, &generation, e));
    generation_start(generation, cache, sequences[0]);
    OK(generation_read(generation, 64, &(struct interrupt){&cancel, 0}, e));
    atomic_store(&cancel, true);
    assert_int_equal(generation_read(generation, 64, &(struct interrupt){&cancel, 0}, &error),
                     STATUS_CANCELLED);
    assert_int_equal(generation_phase(generation), GENERATION_ENDED);
    assert_int_equal(generation_end(generation), GENERATION_CANCELLED);
    assert_ptr_equal(generation_finish(generation), sequences[0]);
    assert_ptr_equal(generation_finish(generation), NULL);
    generation_free(generation);
    prefix_cache_read_figures(cache, &figures);
    assert_int_equal(figures.n_entries, 1); /* at PLACE */
    assert_int_equal(answer.n, 0);
    answer = run(options, 64, 0);
    assert_tokens(&answer, plain.tokens, MAX);
    assert_int_equal(answer.figures.cached, PLACE);
    /* by force, before it began and between two steps */
    OK(generation_new(&engine, &options, &generation, e));
    generation_stop(generation, NULL);
    assert_int_equal(generation_end(generation), GENERATION_CANCELLED);
    assert_null(generation_finish(generation));
    generation_free(generation);
    OK(generation_new(&engine, &options, &generation, e));
    generation_start(generation, cache, sequences[0]);
    while (generation_phase(generation) == GENERATION_READING)
        OK(step(generation, 64));
    OK(step(generation, 64));
    error_set(&error, STATUS_DEVICE, "first");
    generation_stop(generation, &error);
    generation_stop(generation, NULL); /* the first word counts */
    assert_int_equal(generation_end(generation), GENERATION_FAILED);
    assert_string_equal(generation_error(generation)->message, "first");
    generation_finish(generation);
    generation_free(generation);
    close_cache();
    free(plain.logits);
}

/* ---- on the hashed backend ------------------------------------------------------------------- */

/* Any cut, any rest, any memory: what the rows and states say of each other is checked there. */
static void test_any_way(void **state)
{
    (void)state;
    const int64_t budgets[] = {0, 3000, plenty};
    int32_t tokens[CONTEXT];
    for (int with = 0; with < 3; with++)
        for (int rest = 0; rest < 12; rest++)
            for (int32_t chunk = 1; chunk < 100; chunk += SANITIZED ? 33 : 9) {
                struct generation_options options = greedy();
                options.n_prompt = 150;
                options.max_tokens = -1;
                for (int32_t place = 10; place < 150; place += 30)
                    prefix_places_add(&options.places, place, PREFIX_EXPLICIT);
                open_cache(budgets[with]);
                struct answer answer = run(options, chunk, rest);
                memcpy(tokens, tiny_ids(), 150 * sizeof *tokens);
                for (int i = 0; i < 50; i++)
                    tokens[150 + i] = hashed_next(tokens, 150 + i);
                assert_tokens(&answer, tokens + 150, 50);
                close_cache();
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_plain),
        cmocka_unit_test(test_suspended),
        cmocka_unit_test(test_resumed_where_an_entry_ends),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_guide),
        cmocka_unit_test(test_device_fails),
        cmocka_unit_test(test_cancelled),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_any_way), cmocka_unit_test(test_limits), /* long prompts */
    };
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    return failed | cmocka_run_group_tests_name("hashed", others, setup_hashed, teardown);
}
