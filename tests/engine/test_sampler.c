/* The sampler and its random numbers: known answers, distributions, the order of its steps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/random.h"
#include "engine/sampler.h"

#define N 100     /* ids */
#define MANY 1500 /* more than a backend ranks */

static const struct sampling neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

/* Known answers of Philox4x32-10 published with Random123. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], wanted[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].wanted, sizeof out);
    }
}

/* The best of a row, as a backend gives them: ties to the lowest id. */
static void rank(const float *logits, struct ranked *ranked)
{
    bool taken[N] = {false};
    for (ranked->n = 0; ranked->n < RANKED_MAX; ranked->n++) {
        int best = -1;
        for (int i = 0; i < N; i++)
            if (!taken[i] && (best < 0 || logits[i] > logits[best]))
                best = i;
        taken[best] = true;
        ranked->id[ranked->n] = best;
        ranked->logit[ranked->n] = logits[best];
    }
}

static void fill(struct ranked *ranked, float *logits)
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 37) % N) * -0.05f; /* 37 and 100 are coprime: all different */
    rank(logits, ranked);
}

static struct sampler *new_sampler(struct sampling sampling)
{
    struct sampler *sampler;
    struct error error;
    assert_int_equal(sampler_new(&sampling, N, &sampler, &error), STATUS_OK);
    return sampler;
}

/* One draw; where the candidates are enough, they give the row's token. */
static int32_t draw(struct sampler *sampler, const float *logits, int64_t position)
{
    struct ranked ranked;
    rank(logits, &ranked);
    int32_t token = sampler_draw_ranked(sampler, &ranked, position);
    int32_t full = sampler_draw(sampler, logits, position);
    if (token >= 0)
        assert_int_equal(token, full);
    return full;
}

static void test_greedy(void **state)
{
    (void)state;
    struct ranked ranked;
    float logits[N];
    fill(&ranked, logits);
    struct sampling sampling = neutral;
    sampling.temperature = 0;
    struct sampler *sampler = new_sampler(sampling);
    assert_int_equal(sampler_draw_ranked(sampler, &ranked, 0), 0);
    assert_int_equal(draw(sampler, logits, 0), 0);
    sampler_free(sampler);
    for (int i = 0; i < N; i++) /* a tie over the full row: the lowest id */
        logits[i] = i == 70 || i == 20 ? 5 : 0;
    sampling.presence_penalty = 1;
    sampler = new_sampler(sampling);
    assert_int_equal(draw(sampler, logits, 0), 20);
    sampler_add_generated(sampler, 20);
    assert_int_equal(draw(sampler, logits, 0), 70);
    sampler_free(sampler);
}

/* Draws follow softmax(logits / T); the full row and the candidates give the same tokens. */
static void test_distribution(void **state)
{
    (void)state;
    struct ranked ranked;
    float logits[N];
    fill(&ranked, logits);
    struct sampling sampling = neutral;
    sampling.temperature = 0.5;
    sampling.top_k = 4;
    sampling.seed = 7;
    struct sampler *candidates = new_sampler(sampling);
    int counts[N] = {0};
    const int draws = 40000;
    for (int i = 0; i < draws; i++) {
        counts[draw(candidates, logits, i)]++;
    }
    double total = 0;
    for (int rank = 0; rank < 4; rank++)
        total += exp(-0.1 * rank);
    for (int rank = 0; rank < RANKED_MAX; rank++) {
        double wanted = rank < 4 ? draws * exp(-0.1 * rank) / total : 0;
        int found = counts[ranked.id[rank]];
        if (fabs(found - wanted) > 5 * sqrt(wanted)) /* five standard deviations */
            fail_msg("rank %d: found %d draws, wanted about %.0f", rank, found, wanted);
    }
    sampler_free(candidates);
}

static void test_seed_and_position(void **state)
{
    (void)state;
    struct ranked ranked;
    float logits[N];
    fill(&ranked, logits);
    struct sampling sampling = neutral;
    sampling.top_k = 64;
    struct sampler *a = new_sampler(sampling), *again = new_sampler(sampling);
    sampling.seed = 1;
    struct sampler *b = new_sampler(sampling);
    int differ = 0, move = 0;
    for (int i = 0; i < 200; i++) {
        int32_t id = draw(a, logits, i);
        assert_int_equal(id, draw(again, logits, i));
        differ += id != draw(b, logits, i);
        move += id != draw(a, logits, i + 1);
    }
    assert_true(differ > 150);
    assert_true(move > 150);
    sampler_free(a);
    sampler_free(again);
    sampler_free(b);
}

/* How many different ids come out in 3,000 draws. */
static int support_of(struct sampling sampling)
{
    struct ranked ranked;
    float logits[N];
    fill(&ranked, logits);
    struct sampler *sampler = new_sampler(sampling);
    bool seen[N] = {false};
    int n = 0;
    for (int i = 0; i < 3000; i++)
        seen[draw(sampler, logits, i)] = true;
    for (int i = 0; i < N; i++)
        n += seen[i];
    sampler_free(sampler);
    return n;
}

static void test_cuts(void **state)
{
    (void)state;
    struct sampling s = neutral;
    s.temperature = 5;                  /* flat enough for 3,000 draws to meet every id */
    assert_int_equal(support_of(s), N); /* nothing is cut */
    s.top_k = 7;
    assert_int_equal(support_of(s), 7);
    s.top_k = 1000;
    assert_int_equal(support_of(s), N);
    s = neutral;
    s.min_p = 0.5; /* e^(-0.05 r) >= 0.5: r <= 13.86 */
    assert_int_equal(support_of(s), 14);
    s.min_p = 1;
    assert_int_equal(support_of(s), 1);
    s = neutral;
    s.top_k = 10;
    s.top_p = 0.5; /* of the ten's mass: ranks 0..4 hold 0.562, 0..3 hold 0.461 */
    assert_int_equal(support_of(s), 5);
    s.top_p = 1e-9;
    assert_int_equal(support_of(s), 1);
}

struct entry {
    double weight;
    int32_t id;
};

static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    return a->weight != b->weight ? (a->weight > b->weight ? -1 : 1) : a->id - b->id;
}

/* What each of n ids is drawn with, by the definition: sort, cut, divide by the sum. */
static void expect(const float *logits, int n, const struct sampling *s, double *probability)
{
    struct entry sorted[MANY];
    double total = 0, kept = 0;
    int stay = 0;
    for (int i = 0; i < n; i++)
        sorted[i] = (struct entry){exp((double)logits[i] / s->temperature), i};
    qsort(sorted, (size_t)n, sizeof *sorted, compare_entries);
    n = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (int i = 0; i < n; i++)
        total += sorted[i].weight;
    for (; stay < n && (stay == 0 || (kept < s->top_p * total &&
                                      sorted[stay].weight >= s->min_p * sorted[0].weight));
         stay++)
        kept += sorted[stay].weight;
    for (int i = 0; i < stay; i++)
        probability[sorted[i].id] = sorted[i].weight / kept;
}

/* Draws from more ids than a backend ranks, with ties on the borders of the cuts. */
static void test_many_ids(void **state)
{
    (void)state;
    static const int top_k[] = {0, 20, 300, MANY - 1};
    static const double top_p[] = {1, 0.999, 0.7, 0.2, 1e-9}, min_p[] = {0, 0.05, 1};
    const int draws = 2000;
    float logits[MANY];
    for (int i = 0; i < MANY; i++) /* a few stand out */
        logits[i] = (float)(int)(8 * random_uniform(5, (uint64_t)i)) / 2 + (i % 30 == 7 ? 5 : 0);
    for (int round = 0; round < 4 * 5 * 3; round++) {
        double wanted[MANY] = {0};
        int found[MANY] = {0};
        struct sampling s = neutral;
        struct sampler *sampler;
        struct error error;
        s.top_k = top_k[round % 4];
        s.top_p = top_p[round / 4 % 5];
        s.min_p = min_p[round / 20];
        s.seed = (uint64_t)round;
        expect(logits, MANY, &s, wanted);
        assert_int_equal(sampler_new(&s, MANY, &sampler, &error), STATUS_OK);
        for (int i = 0; i < draws; i++)
            found[sampler_draw(sampler, logits, i)]++;
        for (int i = 0; i < MANY; i++) {
            double mean = draws * wanted[i];
            if (wanted[i] == 0)
                assert_int_equal(found[i], 0);
            else
                assert_true(fabs(found[i] - mean) < 6 * sqrt(mean) + 6);
        }
        sampler_free(sampler);
    }
}

/* Presence and frequency count generated tokens only; repetition counts the prompt too. */
static void test_penalties(void **state)
{
    (void)state;
    struct ranked ranked;
    float logits[N] = {0};
    fill(&ranked, logits);
    logits[0] = 2;
    logits[1] = 1.5f;
    for (int i = 2; i < N; i++)
        logits[i] = -1;
    const int32_t prompt[3] = {0, 0, -1};
    struct sampling s = neutral;
    s.temperature = 0;
    s.presence_penalty = 1;
    struct sampler *sampler = new_sampler(s);
    sampler_add_prompt(sampler, prompt, 3);
    assert_int_equal(draw(sampler, logits, 0), 0); /* cases.md row 45 */
    sampler_add_generated(sampler, 0);
    assert_int_equal(draw(sampler, logits, 0), 1);
    sampler_free(sampler);

    s.presence_penalty = 0;
    s.frequency_penalty = 0.3;
    sampler = new_sampler(s);
    sampler_add_generated(sampler, 0);
    assert_int_equal(draw(sampler, logits, 0), 0);
    sampler_add_generated(sampler, 0); /* 2 - 0.6 < 1.5 */
    assert_int_equal(draw(sampler, logits, 0), 1);
    sampler_free(sampler);

    s.frequency_penalty = 0;
    s.repetition_penalty = 1.5; /* 2 / 1.5 < 1.5; -1 * 1.5 stays last */
    sampler = new_sampler(s);
    sampler_add_prompt(sampler, prompt, 3);
    assert_int_equal(draw(sampler, logits, 0), 1);
    sampler_free(sampler);

    s = neutral;
    s.temperature = 0;
    struct logit_bias bias[2] = {{.id = 50, .bias = 100}, {.id = N + 5, .bias = 100}};
    s.logit_bias = bias;
    s.n_logit_bias = 2;
    sampler = new_sampler(s);
    assert_int_equal(draw(sampler, logits, 0), 50);
    sampler_free(sampler);
}

/* Whenever the candidates decide a draw, the full row decides it the same; they do so as long as
 * penalties only lower and not too many candidates are lowered. */
static void test_candidates_are_enough(void **state)
{
    (void)state;
    uint64_t random = 1;
    int decided = 0, refused = 0;
    for (int round = 0; round < 3000; round++) {
        float logits[N];
        struct ranked ranked;
        for (int i = 0; i < N; i++)
            logits[i] = (float)(int)(40 * random_uniform(3, random++)) / 4 - 5; /* with ties */
        rank(logits, &ranked);
        struct logit_bias bias = {(int32_t)(random++ % N), round % 7 == 0 ? 3 : -2};
        struct sampling s = {
            .temperature = round % 3 ? 0.8 : 0,
            .top_k = 1 + round % 40,
            .top_p = 0.9,
            .presence_penalty = round % 5 == 0 ? -1 : round % 3,
            .frequency_penalty = round % 2 * 0.5,
            .repetition_penalty = round % 4 ? 1.3 : 1,
            .seed = 9,
            .logit_bias = &bias,
            .n_logit_bias = round % 2,
        };
        struct sampler *sampler = new_sampler(s);
        for (int i = 0; i < round % 90; i++) {
            int32_t id = ranked.id[(uint64_t)(64 * random_uniform(4, random++))];
            if (i % 2)
                sampler_add_generated(sampler, id);
            else
                sampler_add_prompt(sampler, &id, 1);
        }
        if (sampler_draw_ranked(sampler, &ranked, round) >= 0)
            decided++;
        else
            refused++;
        draw(sampler, logits, round);
        sampler_free(sampler);
    }
    assert_true(decided > 500);
    assert_true(refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),       cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_seed_and_position),
        cmocka_unit_test(test_cuts),         cmocka_unit_test(test_many_ids),
        cmocka_unit_test(test_penalties),    cmocka_unit_test(test_candidates_are_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
