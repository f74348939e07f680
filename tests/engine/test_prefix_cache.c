/* The prefix cache: whatever was read before, a prompt gives what a fresh sequence gives, on ref
 * bit for bit (others may round otherwise where a prompt is cut elsewhere); no more is read than
 * must be; the budget is held and the right snapshots go first. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/prefix_cache.h"
#include "support/sanitized.h"
#include "support/tiny.h"

#define CONTEXT 160
#define STEPS 2 /* tokens generated after each prompt */

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct error error_;                                                                       \
        struct error *e = &error_;                                                                 \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", e->message);                                                            \
    } while (0)

/* Ids that stand for the template's tokens here; words are any others. */
enum { START = 4000, END, SYSTEM, USER, ASSISTANT, NEWLINE, THINK };
static const struct turn_tokens turns = {START, SYSTEM, USER, ASSISTANT, NEWLINE};

struct prompt {
    int32_t ids[CONTEXT];
    int32_t n;
};

static const struct backend_ops *ops = &backend_ref; /* under test */
static struct engine engine;
static struct sequence *sequence, *fresh;
static struct prefix_cache *cache;
static struct cached_sequence *cached;

static void open_cache(int64_t budget, int32_t spacing)
{
    struct prefix_cache_options options = {.budget = budget, .spacing = spacing};
    OK(prefix_cache_new(&engine, &options, &cache, e));
    OK(prefix_cache_add(cache, sequence, &cached, e));
}

static void close_cache(void)
{
    prefix_cache_remove(cache, cached);
    struct prefix_cache_figures figures;
    prefix_cache_read_figures(cache, &figures);
    assert_int_equal(figures.used, 0);
    assert_int_equal(figures.n_snapshots, 0);
    prefix_cache_free(cache);
}

/* Bytes of one snapshot and of the token ids, found out by making them. */
static int64_t snapshot_bytes, ids_bytes;

static int setup(void **state)
{
    if (tiny_setup(state) != 0)
        return -1;
    struct engine_options options = {.ops = ops, .context = CONTEXT, .n_sequences = 3};
    OK(engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, &engine, e));
    OK(engine_open(&engine, e));
    OK(engine.ops->sequence_new(engine.backend, &sequence, e));
    OK(engine.ops->sequence_new(engine.backend, &fresh, e));
    return 0;
}

static int teardown(void **state)
{
    engine.ops->sequence_free(engine.backend, sequence);
    engine.ops->sequence_free(engine.backend, fresh);
    engine_close(&engine);
    return tiny_teardown(state);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void put(struct prompt *prompt, int32_t id)
{
    assert_true(prompt->n < CONTEXT);
    prompt->ids[prompt->n++] = id;
}

/* `n` words that `seed` decides. */
static void put_words(struct prompt *prompt, int seed, int n)
{
    for (int i = 0; i < n; i++)
        put(prompt, tiny_ids()[(seed * 7 + i) % 1000]);
}

static void put_turn(struct prompt *prompt, int32_t role, int seed, int n)
{
    put(prompt, START);
    put(prompt, role);
    put(prompt, NEWLINE);
    put_words(prompt, seed, n);
    put(prompt, END);
    put(prompt, NEWLINE);
}

static void put_question(struct prompt *prompt)
{
    put(prompt, START);
    put(prompt, ASSISTANT);
    put(prompt, NEWLINE);
    put(prompt, THINK);
    put(prompt, NEWLINE);
}

/* A system block of 9 tokens, user turns of 8, answers of 9; with the opened last one 5. */
static struct prompt conversation(const int *users, int n_users)
{
    struct prompt prompt = {.n = 0};
    put_turn(&prompt, SYSTEM, 1, 4);
    for (int i = 0; i < n_users; i++) {
        put_turn(&prompt, USER, users[i], 3);
        if (i + 1 < n_users)
            put_turn(&prompt, ASSISTANT, users[i] + 50, 4);
    }
    put_question(&prompt);
    return prompt;
}
#define TALK(...)                                                                                  \
    conversation((const int[]){__VA_ARGS__},                                                       \
                 (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

/* ---- reading and comparing ------------------------------------------------------------------- */

static const struct prefill_watch unwatched;

static enum status read_prompt(const struct prompt *prompt, const struct prefill_watch *watch,
                               struct ranked *ranked, int32_t *reused, struct error *error)
{
    struct prefix_place places[PREFIX_PLACES];
    int n = prefix_places_find(&turns, prompt->ids, prompt->n, places);
    return prefix_cache_prefill(cache, cached, prompt->ids, prompt->n, places, n, ranked, watch,
                                reused, error);
}

static void assert_within_budget(void)
{
    struct prefix_cache_figures figures;
    prefix_cache_read_figures(cache, &figures);
    assert_true(figures.used <= figures.budget && figures.peak <= figures.budget);
}

/* What a fresh sequence gives for a prompt and STEPS greedy tokens. */
struct wanted {
    struct prompt prompt;
    struct ranked ranked[STEPS + 1];
};

static struct wanted memo[100];
static int n_memo;

/* Each prompt is read by a fresh sequence once. */
static const struct wanted *wanted_for(const struct prompt *prompt)
{
    for (int i = 0; i < n_memo; i++)
        if (memo[i].prompt.n == prompt->n &&
            memcmp(memo[i].prompt.ids, prompt->ids, (size_t)prompt->n * sizeof prompt->ids[0]) == 0)
            return &memo[i];
    assert_true(n_memo < 100);
    struct wanted *wanted = &memo[n_memo++];
    wanted->prompt = *prompt;
    engine.ops->sequence_reset(engine.backend, fresh);
    OK(engine_prefill(&engine, fresh, prompt->ids, prompt->n, &wanted->ranked[0], &unwatched, e));
    for (int i = 0; i < STEPS; i++)
        OK(engine_decode(&engine, fresh, wanted->ranked[i].id[0], &wanted->ranked[i + 1], e));
    return wanted;
}

static void compare(const struct ranked *found, const struct ranked *wanted)
{
    if (ops == &backend_ref) {
        assert_memory_equal(found, wanted, sizeof *found);
        return;
    }
    assert_int_equal(found->id[0], wanted->id[0]);
    assert_true(fabsf(found->logit[0] - wanted->logit[0]) < 1e-2F * fabsf(wanted->logit[0]));
}

/* Reads the prompt, generates greedily, and compares each step with a fresh sequence. Gives the
 * number of tokens that were reused. */
static int32_t check(const struct prompt *prompt)
{
    struct ranked found[STEPS + 1];
    int32_t reused;
    memset(found, 0, sizeof found);
    const struct wanted *wanted = wanted_for(prompt);
    int32_t known = prefix_cache_match(cache, cached, prompt->ids, prompt->n);
    OK(read_prompt(prompt, &unwatched, &found[0], &reused, e));
    assert_int_equal(reused, known);
    for (int i = 0; i < STEPS; i++)
        OK(prefix_cache_decode(cache, cached, found[i].id[0], &found[i + 1], e));
    for (int i = 0; i <= STEPS; i++)
        compare(&found[i], &wanted->ranked[i]);
    assert_int_equal(sequence->position, prompt->n + STEPS);
    assert_within_budget();
    return reused;
}

static const int64_t plenty = (int64_t)1 << 30;

static void test_measure(void **state)
{
    (void)state;
    struct prefix_cache_figures figures;
    open_cache(plenty, 0);
    prefix_cache_read_figures(cache, &figures);
    ids_bytes = figures.used;
    struct prompt prompt = {.n = 0};
    put_question(&prompt);
    struct ranked ranked;
    int32_t reused;
    OK(read_prompt(&prompt, &unwatched, &ranked, &reused, e));
    prefix_cache_read_figures(cache, &figures);
    assert_int_equal(figures.n_snapshots, 1);
    snapshot_bytes = figures.used - ids_bytes;
    assert_int_equal(ids_bytes, CONTEXT * 4);
    assert_true(snapshot_bytes > (int64_t)engine.ops->state_size(engine.backend));
    close_cache();
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_places(void **state)
{
    (void)state;
    struct prefix_place places[PREFIX_PLACES];
    struct prompt prompt = TALK(1, 2);
    assert_int_equal(prefix_places_find(&turns, prompt.ids, prompt.n, places), 3);
    assert_int_equal(places[0].length, 9);
    assert_int_equal(places[0].kind, PREFIX_SYSTEM);
    assert_int_equal(places[1].length, 26); /* system 9, user 8, assistant 9 */
    assert_int_equal(places[1].kind, PREFIX_USER);
    assert_int_equal(places[2].length, 37); /* user 8, and the three that open the answer */
    assert_int_equal(places[2].kind, PREFIX_ASSISTANT);
    assert_int_equal(prompt.n, 39);
    prompt = TALK(1); /* the only user turn begins where the system block ends */
    assert_int_equal(prefix_places_find(&turns, prompt.ids, prompt.n, places), 2);
    assert_int_equal(places[0].kind, PREFIX_SYSTEM);
    assert_int_equal(places[1].kind, PREFIX_ASSISTANT);
    assert_int_equal(places[1].length, 20);
    prompt.n = 0; /* no system block: the user turn begins at 0, where no state is worth keeping */
    put_turn(&prompt, USER, 1, 3);
    put_question(&prompt);
    assert_int_equal(prefix_places_find(&turns, prompt.ids, prompt.n, places), 1);
    assert_int_equal(places[0].length, 11);
    assert_int_equal(prefix_places_find(&turns, tiny_ids(), 1000, places), 0);
    struct turn_tokens none = {-1, -1, -1, -1, -1};
    assert_int_equal(prefix_places_find(&none, prompt.ids, prompt.n, places), 0);
    assert_int_equal(prefix_places_find(&turns, prompt.ids, 1, places), 0);
}

/* The whole life of a conversation, with the exact number of tokens that need no reading. */
static void test_conversation(void **state)
{
    (void)state;
    open_cache(plenty, 0);
    struct prompt prompt = TALK(1);
    assert_int_equal(check(&prompt), 0);
    assert_int_equal(check(&prompt), 20); /* regenerate: but for <think> and the newline */
    prompt = TALK(1, 2); /* from `assistant\n` on: the answer as re-rendered and the new turn */
    assert_int_equal(check(&prompt), 20);
    prompt = TALK(1, 2, 3);
    assert_int_equal(check(&prompt), 37);
    assert_int_equal(check(&prompt), 54);
    prompt = TALK(1, 2, 4); /* the last user turn edited: from its beginning */
    assert_int_equal(check(&prompt), 43);
    prompt = TALK(1, 2, 4, 5);
    assert_int_equal(check(&prompt), 54);
    prompt = TALK(1, 6, 4); /* an earlier turn edited: its beginning is kept, too */
    assert_int_equal(check(&prompt), 26);
    prompt = TALK(1, 2, 4); /* what was overwritten is not remembered */
    assert_int_equal(check(&prompt), 26);
    prompt = TALK(7); /* another conversation, the same system block */
    assert_int_equal(check(&prompt), 9);
    prompt.ids[4]++; /* another system block */
    assert_int_equal(check(&prompt), 0);
    close_cache();
}

/* The generated tokens stand in the next prompt as they are: nothing of them is read again. */
static void test_end_of_generation(void **state)
{
    (void)state;
    open_cache(plenty, 0);
    struct prompt prompt = TALK(1);
    check(&prompt);
    struct prompt next = prompt;
    for (int i = 0; i < STEPS; i++)
        put(&next, wanted_for(&prompt)->ranked[i].id[0]);
    struct prompt same = next;
    int32_t end = next.n;
    put(&next, END);
    put(&next, NEWLINE);
    put_turn(&next, USER, 9, 3);
    put_question(&next);
    assert_int_equal(check(&next), end);
    assert_true(prefix_cache_holds(cache, cached, end)); /* kept as it was left */
    /* exactly what stands there: the last token has to be read, its candidates are wanted */
    assert_int_equal(check(&same), prompt.n - 2);
    close_cache();
}

/* Turned off, and with a budget that holds nothing, everything is read. */
static void test_off(void **state)
{
    (void)state;
    const int64_t budgets[] = {0, CONTEXT * 4 - 1};
    for (int i = 0; i < 2; i++) {
        open_cache(budgets[i], 0);
        struct prompt prompt = TALK(1);
        assert_int_equal(check(&prompt), 0);
        assert_int_equal(check(&prompt), 0);
        struct prefix_cache_figures figures;
        prefix_cache_read_figures(cache, &figures);
        assert_int_equal(figures.peak, 0);
        close_cache();
    }
}

/* With each budget from nothing to all, the same results; more memory never reuses less here. */
static void test_budgets(void **state)
{
    (void)state;
    const struct prompt prompts[] = {TALK(1), TALK(1, 2), TALK(1, 2), TALK(1, 3), TALK(1, 3, 4)};
    int32_t before = 0;
    for (int snapshots = 0; snapshots <= 5; snapshots += SANITIZED ? 5 : 1) {
        open_cache(ids_bytes + snapshots * snapshot_bytes + snapshot_bytes / 2, 0);
        int32_t reused = 0;
        for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
            reused += check(&prompts[i]);
        struct prefix_cache_figures figures;
        prefix_cache_read_figures(cache, &figures);
        assert_true(figures.n_snapshots <= snapshots);
        assert_true(reused >= before);
        if (snapshots == 1) /* the place that the next turn and regenerate need */
            assert_true(reused >= 2 * 20);
        before = reused;
        close_cache();
    }
    assert_true(before > 0);
}

static void test_eviction_order(void **state)
{
    (void)state;
    open_cache(ids_bytes + 3 * snapshot_bytes, 0);
    struct prompt prompt = TALK(1);
    check(&prompt); /* makes 9 (system) and 20 */
    prompt = TALK(1, 2);
    check(&prompt); /* uses 20, makes 26; 37 drives out the one of least recent use, 20 */
    assert_true(prefix_cache_holds(cache, cached, 9));
    assert_false(prefix_cache_holds(cache, cached, 20));
    assert_true(prefix_cache_holds(cache, cached, 26));
    assert_true(prefix_cache_holds(cache, cached, 37));
    prompt = TALK(1, 3);
    assert_int_equal(check(&prompt), 26); /* 37 is overwritten and made anew; 26 was useful */
    prompt = TALK(1, 3, 4);
    assert_int_equal(check(&prompt), 37); /* makes 43 and 54: 26 and then 37 have to go */
    assert_true(prefix_cache_holds(cache, cached, 9));
    assert_false(prefix_cache_holds(cache, cached, 26));
    assert_false(prefix_cache_holds(cache, cached, 37));
    assert_true(prefix_cache_holds(cache, cached, 43));
    assert_true(prefix_cache_holds(cache, cached, 54));
    close_cache();
}

/* A long prompt leaves snapshots on its way; one that shares most of it goes on from there. */
static void test_periodic(void **state)
{
    (void)state;
    open_cache(plenty, 16);
    struct prompt prompt = {.n = 0};
    put_words(&prompt, 3, SANITIZED ? 50 : 90);
    assert_int_equal(check(&prompt), 0);
    for (int32_t at = 16; at < prompt.n; at += 16)
        assert_true(prefix_cache_holds(cache, cached, at));
    prompt.ids[40]++;
    assert_int_equal(check(&prompt), 32);
    assert_true(prefix_cache_holds(cache, cached, 48));
    prompt.n = 32; /* nothing would be left to read at 32 */
    assert_int_equal(check(&prompt), 16);
    close_cache();
    /* by itself the distance grows until half of the budget holds a full sequence's; here none */
    open_cache(ids_bytes + 4 * snapshot_bytes, 0);
    check(&prompt);
    struct prefix_cache_figures figures;
    prefix_cache_read_figures(cache, &figures);
    assert_int_equal(figures.n_snapshots, 0);
    close_cache();
}

struct canceller {
    int32_t at; /* tokens read when it cancels */
    int32_t first_total;
    atomic_bool flag;
};

static void cancel_at(void *context, int32_t read, int32_t total)
{
    struct canceller *canceller = context;
    canceller->first_total = total;
    if (read >= canceller->at)
        atomic_store(&canceller->flag, true);
}

/* A prompt that is stopped on its way leaves a sequence that goes on rightly, from what it read. */
static void test_cancelled(void **state)
{
    (void)state;
    open_cache(plenty, 0);
    struct prompt first = TALK(1), second = TALK(1, 2);
    /* chunks of the 19 tokens to read begin at 0, 6 and 17 */
    const int32_t at[] = {0, 1, 7}, known[] = {20, 26, 37};
    for (int i = 0; i < 3; i++) {
        struct canceller canceller = {.at = at[i]};
        struct prefill_watch watch = {&canceller.flag, cancel_at, &canceller};
        struct ranked ranked;
        struct error error;
        int32_t reused;
        check(&first);
        assert_int_equal(read_prompt(&second, &watch, &ranked, &reused, &error), STATUS_CANCELLED);
        assert_int_equal(reused, 20);
        assert_int_equal(canceller.first_total, second.n - 20); /* only what is read counts */
        assert_int_equal(check(&second), known[i]);
        assert_int_equal(check(&first), 20);
    }
    close_cache();
}

/* Prompts that cannot be read are refused and change nothing. */
static void test_refused(void **state)
{
    (void)state;
    open_cache(plenty, 0);
    struct prompt prompt = TALK(1);
    check(&prompt);
    struct ranked ranked;
    struct error error;
    int32_t reused, ids[CONTEXT + 1] = {0};
    assert_int_equal(prefix_cache_prefill(cache, cached, ids, CONTEXT + 1, NULL, 0, &ranked,
                                          &unwatched, &reused, &error),
                     STATUS_CONTEXT);
    assert_non_null(strstr(error.message, "161"));
    assert_int_equal(
        prefix_cache_prefill(cache, cached, ids, 0, NULL, 0, &ranked, &unwatched, &reused, &error),
        STATUS_INVALID);
    assert_int_equal(reused, 0);
    assert_int_equal(check(&prompt), 20);
    ids[30] = TINY_N_VALID_IDS + 100000; /* no row of the embedding: found by the backend */
    assert_int_not_equal(
        prefix_cache_prefill(cache, cached, ids, 40, NULL, 0, &ranked, &unwatched, &reused, &error),
        STATUS_OK);
    check(&prompt);
    close_cache();
}

static enum status fail_state_read(struct backend *backend, struct sequence *of, void *out,
                                   struct error *error)
{
    (void)backend, (void)of, (void)out;
    return error_set(error, STATUS_DEVICE, "no state");
}

static enum status fail_state_write(struct backend *backend, struct sequence *of, int32_t position,
                                    const void *in, struct error *error)
{
    (void)backend, (void)of, (void)position, (void)in;
    return error_set(error, STATUS_DEVICE, "no state");
}

static enum status fail_prefill(struct backend *backend, struct sequence *of, const int32_t *tokens,
                                int n, enum prefill_output output, struct ranked *ranked,
                                const atomic_bool *cancel, struct error *error)
{
    (void)backend, (void)tokens, (void)n, (void)output, (void)ranked, (void)cancel;
    of->broken = true;
    return error_set(error, STATUS_DEVICE, "no step");
}

static enum status fail_decode(struct backend *backend, const struct row *rows, int n,
                               struct ranked *ranked, struct error *error)
{
    (void)backend, (void)n, (void)ranked;
    rows[0].sequence->broken = true;
    return error_set(error, STATUS_DEVICE, "no step");
}

/* A device that fails costs what was remembered at most. */
static void test_failing_device(void **state)
{
    (void)state;
    struct backend_ops faulty = *ops;
    struct prompt prompt = TALK(1);
    struct ranked ranked;
    struct error error;
    int32_t reused;
    open_cache(plenty, 0);
    faulty.state_read = fail_state_read;
    engine.backend->ops = &faulty;
    check(&prompt);
    assert_int_equal(check(&prompt), 0); /* nothing could be kept */
    engine.backend->ops = ops;
    check(&prompt);
    faulty = *ops;
    faulty.state_write = fail_state_write;
    engine.backend->ops = &faulty;
    OK(read_prompt(&prompt, &unwatched, &ranked, &reused, e));
    assert_int_equal(reused, 0); /* what was kept could not be written: everything is read */
    faulty = *ops;
    faulty.prefill_chunk = fail_prefill;
    assert_int_equal(read_prompt(&prompt, &unwatched, &ranked, &reused, &error), STATUS_DEVICE);
    engine.backend->ops = ops;
    assert_int_equal(check(&prompt), 0);
    faulty = *ops;
    faulty.decode_step = fail_decode;
    engine.backend->ops = &faulty;
    assert_int_equal(prefix_cache_decode(cache, cached, 5, &ranked, &error), STATUS_DEVICE);
    engine.backend->ops = ops;
    assert_int_equal(check(&prompt), 0);
    assert_int_equal(check(&prompt), 20);
    close_cache();
}

/* Snapshots of two sequences share one budget and are never mixed up. */
static void test_two_sequences(void **state)
{
    (void)state;
    struct sequence *other_sequence = NULL;
    struct cached_sequence *other;
    OK(engine.ops->sequence_new(engine.backend, &other_sequence, e));
    open_cache(2 * ids_bytes + 4 * snapshot_bytes, 0);
    OK(prefix_cache_add(cache, other_sequence, &other, e));
    struct prompt a = TALK(1, 2), b = TALK(3);
    struct cached_sequence *mine = cached;
    struct sequence *my_sequence = sequence;
    assert_int_equal(check(&a), 0);
    assert_int_equal(prefix_cache_match(cache, other, a.ids, a.n), 0);
    cached = other;
    sequence = other_sequence;
    assert_int_equal(check(&b), 0); /* two more snapshots: one of the first sequence goes */
    assert_int_equal(check(&b), 20);
    cached = mine;
    sequence = my_sequence;
    assert_int_equal(check(&a), 37);
    prefix_cache_remove(cache, other);
    assert_int_equal(check(&a), 37);
    engine.ops->sequence_free(engine.backend, other_sequence);
    close_cache();
}

static uint32_t random_state;

static int random_below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)(random_state >> 16) % n;
}

/* Conversations grown, changed, cut, stopped and begun anew at random, in little memory. */
static void test_random(void **state)
{
    (void)state;
    int rounds = SANITIZED ? 1 : 4, operations = SANITIZED ? 8 : 16, total = 0;
    for (int round = 0; round < rounds; round++) {
        random_state = (uint32_t)round + 1;
        open_cache(ids_bytes + (1 + round) * snapshot_bytes, round % 2 ? 16 : 0);
        int users[4] = {1}, n_users = 1;
        for (int i = 0; i < operations; i++) {
            int what = random_below(5);
            if (what == 0 && n_users < 4)
                users[n_users++] = random_below(3);
            else if (what == 1)
                users[random_below(n_users)] = random_below(3);
            else if (what == 2)
                n_users = 1 + random_below(n_users);
            struct prompt prompt = conversation(users, n_users);
            if (what == 3) {
                struct canceller canceller = {.at = random_below(40)};
                struct prefill_watch watch = {&canceller.flag, cancel_at, &canceller};
                struct ranked ranked;
                int32_t reused;
                struct error error;
                read_prompt(&prompt, &watch, &ranked, &reused, &error);
            }
            total += check(&prompt);
        }
        close_cache();
    }
    assert_true(total > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure), /* first: others need its figures */
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_end_of_generation),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_periodic),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_failing_device),
        cmocka_unit_test(test_two_sequences),
        cmocka_unit_test(test_random),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_end_of_generation),
        cmocka_unit_test(test_cancelled),
    };
    if (SANITIZED) /* memory is looked at here, bits elsewhere: the fastest will do */
        ops = backends[0];
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    for (int i = 0; backends[i] && !SANITIZED; i++) {
        ops = backends[i];
        n_memo = 0;
        if (ops != &backend_ref)
            failed |= cmocka_run_group_tests_name(ops->name, others, setup, teardown);
    }
    return failed;
}
