/* The prefix cache: whatever was read before, a prompt gives what a fresh sequence gives, on ref
 * bit for bit (others may round otherwise where a prompt is cut elsewhere); no more is read than
 * must be; the budget is held, rows that are shared count once, and the right entries go first. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/prefix_cache.h"
#include "support/ok.h"
#include "support/sanitized.h"
#include "support/tiny.h"

#define CONTEXT 600
#define N_SEQUENCES 3
#define STEPS 2 /* tokens generated after each prompt */

/* Ids that stand for the template's tokens here; words are any others. */
enum { START = 4000, END, SYSTEM, USER, ASSISTANT, NEWLINE, THINK };
static const struct turn_tokens turns = {START, SYSTEM, USER, ASSISTANT, NEWLINE};

struct prompt {
    int32_t ids[CONTEXT];
    int32_t n;
};

static const struct backend_ops *ops = &backend_ref; /* under test */
static struct engine engine;
static struct engine plain; /* where fresh sequences read, so that they take no pages here */
static struct sequence *sequences[N_SEQUENCES], *fresh;
static struct prefix_cache *cache;

static void open_engine(struct engine *opened, int n_sequences, int64_t kv_rows)
{
    struct engine_options options = {
        .ops = ops, .context = CONTEXT, .n_sequences = n_sequences, .kv_rows = kv_rows};
    OK(engine_plan(checkpoint_weights(tiny), TINY_N_VALID_IDS, &options, opened, e));
    OK(engine_open(opened, e));
}

static struct kv_usage pool(void)
{
    struct kv_usage usage;
    engine.ops->kv_usage(engine.backend, &usage);
    return usage;
}

static void open_cache(int64_t budget, int32_t spacing)
{
    struct prefix_cache_options options = {.budget = budget, .spacing = spacing};
    OK(prefix_cache_new(&engine, &options, &cache, e));
}

static struct prefix_cache_figures figures(void)
{
    struct prefix_cache_figures out;
    prefix_cache_read_figures(cache, &out);
    return out;
}

/* With the sequences reset, nothing is left of a closed cache. */
static void close_cache(void)
{
    prefix_cache_free(cache);
    for (int i = 0; i < N_SEQUENCES; i++)
        engine.ops->sequence_reset(engine.backend, sequences[i]);
    assert_int_equal(pool().free, pool().pages);
    assert_int_equal(pool().held, 0);
}

static int setup(void **state)
{
    if (tiny_setup(state) != 0)
        return -1;
    open_engine(&engine, N_SEQUENCES, 0);
    open_engine(&plain, 1, 0);
    for (int i = 0; i < N_SEQUENCES; i++)
        OK(ops->sequence_new(engine.backend, &sequences[i], e));
    OK(ops->sequence_new(plain.backend, &fresh, e));
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < N_SEQUENCES; i++)
        ops->sequence_free(engine.backend, sequences[i]);
    ops->sequence_free(plain.backend, fresh);
    engine_close(&engine);
    engine_close(&plain);
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

/* Reads a prompt as a generation does, up to `most` tokens of it. */
static enum status read_prompt(struct sequence *sequence, const struct prompt *prompt, int32_t most,
                               struct ranked *ranked, int32_t *reused, struct error *error)
{
    struct backend *backend = engine.backend;
    struct prefix_places places;
    prefix_places_find(&turns, prompt->ids, prompt->n, &places);
    enum status status = STATUS_OK;
    *reused = prefix_cache_begin(cache, sequence, prompt->ids, prompt->n);
    for (int32_t at = *reused; at < prompt->n && at < most && status == STATUS_OK;) {
        int32_t end = at + backend->limits.max_chunk;
        end = end < prompt->n ? end : prompt->n;
        end = prefix_cache_next_stop(cache, at, end, &places);
        status = prefix_cache_reserve(cache, sequence, end, error);
        if (status == STATUS_OK)
            status = backend->ops->prefill_chunk(backend, sequence, prompt->ids + at, end - at,
                                                 PREFILL_LAST, ranked, NULL, error);
        if (status == STATUS_OK)
            prefix_cache_save_at(cache, sequence, prompt->ids, &places);
        at = end;
    }
    return status;
}

static enum status decode(struct sequence *sequence, int32_t token, struct ranked *ranked,
                          struct error *error)
{
    enum status status = prefix_cache_reserve(cache, sequence, sequence->position + 1, error);
    return status == STATUS_OK ? engine_decode(&engine, sequence, token, ranked, error) : status;
}

static void assert_figures(void)
{
    struct prefix_cache_figures now = figures();
    assert_true(now.used <= now.budget && now.peak <= now.budget && now.used <= now.peak);
    assert_int_equal(now.kv_bytes, pool().held * pool().page_bytes);
    assert_true(now.n_entries > 0 || now.used == 0);
}

/* What a fresh sequence gives for a prompt and STEPS greedy tokens. */
struct wanted {
    struct prompt prompt;
    struct ranked ranked[STEPS + 1];
};

#define MEMO 200
static struct wanted memo[MEMO];
static int n_memo;

/* Each prompt is read by a fresh sequence once. */
static const struct wanted *wanted_for(const struct prompt *prompt)
{
    const struct prefill_watch unwatched = {0};
    for (int i = 0; i < n_memo; i++)
        if (memo[i].prompt.n == prompt->n &&
            memcmp(memo[i].prompt.ids, prompt->ids, (size_t)prompt->n * sizeof prompt->ids[0]) == 0)
            return &memo[i];
    assert_true(n_memo < MEMO);
    struct wanted *wanted = &memo[n_memo++];
    wanted->prompt = *prompt;
    plain.ops->sequence_reset(plain.backend, fresh);
    OK(engine_prefill(&plain, fresh, prompt->ids, prompt->n, &wanted->ranked[0], &unwatched, e));
    for (int i = 0; i < STEPS; i++)
        OK(engine_decode(&plain, fresh, wanted->ranked[i].id[0], &wanted->ranked[i + 1], e));
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

/* Reads the prompt into a sequence, generates greedily, compares each step with a fresh sequence
 * and keeps the end. Gives the number of tokens that were reused. */
static int32_t check_in(struct sequence *sequence, const struct prompt *prompt)
{
    struct ranked found[STEPS + 1];
    struct prompt all = *prompt;
    int32_t reused;
    memset(found, 0, sizeof found);
    const struct wanted *wanted = wanted_for(prompt);
    int32_t known = prefix_cache_match(cache, prompt->ids, prompt->n);
    struct prefix_cache_figures before = figures();
    OK(read_prompt(sequence, prompt, CONTEXT, &found[0], &reused, e));
    assert_int_equal(reused, known);
    assert_int_equal(figures().hits - before.hits, known > 0);
    assert_int_equal(figures().misses - before.misses, known == 0);
    for (int i = 0; i < STEPS; i++) {
        OK(decode(sequence, found[i].id[0], &found[i + 1], e));
        all.ids[all.n++] = found[i].id[0];
    }
    for (int i = 0; i <= STEPS; i++)
        compare(&found[i], &wanted->ranked[i]);
    assert_int_equal(sequence->position, prompt->n + STEPS);
    prefix_cache_save(cache, sequence, all.ids, PREFIX_END);
    assert_figures();
    return reused;
}

static int32_t check(const struct prompt *prompt)
{
    return check_in(sequences[0], prompt);
}

/* Whether the first n tokens of a prompt are an entry. */
static bool holds(const struct prompt *prompt, int32_t n)
{
    return prefix_cache_match(cache, prompt->ids, n + 1) == n;
}

static const int64_t plenty = (int64_t)1 << 30;

/* Bytes of an entry beside its KV rows and ids, found out by making one. */
static int64_t entry_bytes;

static void test_measure(void **state)
{
    (void)state;
    struct prompt prompt = {.n = 0};
    struct ranked ranked;
    int32_t reused;
    open_cache(plenty, 0);
    put_question(&prompt);
    OK(read_prompt(sequences[0], &prompt, CONTEXT, &ranked, &reused, e));
    assert_int_equal(figures().n_entries, 1);
    assert_int_equal(figures().kv_bytes, pool().page_bytes);
    entry_bytes = figures().used - figures().kv_bytes - 3 * (int64_t)sizeof(int32_t);
    assert_true(entry_bytes > (int64_t)engine.ops->state_size(engine.backend));
    prefix_cache_save(cache, sequences[0], prompt.ids, PREFIX_END); /* 2 more ids, the same page */
    assert_int_equal(figures().n_entries, 2);
    assert_int_equal(figures().kv_bytes, pool().page_bytes);
    assert_int_equal(figures().used, pool().page_bytes + 2 * entry_bytes + (3 + 5) * 4);
    assert_int_equal(figures().peak, figures().used);
    prefix_cache_save(cache, sequences[0], prompt.ids, PREFIX_END); /* it is there already */
    assert_int_equal(figures().n_entries, 2);
    close_cache();
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void assert_place(const struct prefix_places *places, int i, int32_t length,
                         enum prefix_kind kind)
{
    assert_true(i < places->n);
    assert_int_equal(places->place[i].length, length);
    assert_int_equal(places->place[i].kind, kind);
}

static void test_places(void **state)
{
    (void)state;
    struct prefix_places places;
    struct prompt prompt = TALK(1, 2);
    prefix_places_find(&turns, prompt.ids, prompt.n, &places);
    assert_int_equal(places.n, 3);
    assert_place(&places, 0, 9, PREFIX_SYSTEM);
    assert_place(&places, 1, 26, PREFIX_USER);      /* system 9, user 8, assistant 9 */
    assert_place(&places, 2, 37, PREFIX_ASSISTANT); /* user 8, and the three that open the answer */
    assert_int_equal(prompt.n, 39);
    put_words(&prompt, 5, 3); /* more than the opening of a thought: the answer was begun */
    prefix_places_find(&turns, prompt.ids, prompt.n, &places);
    assert_int_equal(places.n, 4);
    assert_place(&places, 3, 41, PREFIX_PROMPT);
    prompt = TALK(1); /* the only user turn begins where the system block ends */
    prefix_places_find(&turns, prompt.ids, prompt.n, &places);
    assert_int_equal(places.n, 2);
    assert_place(&places, 0, 9, PREFIX_SYSTEM);
    assert_place(&places, 1, 20, PREFIX_ASSISTANT);
    prompt.n = 0; /* no system block: the user turn begins at 0, where no state is worth keeping */
    put_turn(&prompt, USER, 1, 3);
    put_question(&prompt);
    prefix_places_find(&turns, prompt.ids, prompt.n, &places);
    assert_int_equal(places.n, 1);
    assert_place(&places, 0, 11, PREFIX_ASSISTANT);
    prefix_places_find(&turns, tiny_ids(), 1000, &places); /* no turns at all */
    assert_int_equal(places.n, 1);
    assert_place(&places, 0, 999, PREFIX_PROMPT);
    struct turn_tokens none = {-1, -1, -1, -1, -1};
    prefix_places_find(&none, prompt.ids, prompt.n, &places);
    assert_int_equal(places.n, 1);
    assert_place(&places, 0, prompt.n - 1, PREFIX_PROMPT);
    prefix_places_find(&turns, prompt.ids, 1, &places);
    assert_int_equal(places.n, 0);
}

static void test_places_added(void **state)
{
    (void)state;
    struct prefix_places places = {0};
    prefix_places_add(&places, 30, PREFIX_USER);
    prefix_places_add(&places, 10, PREFIX_SYSTEM);
    prefix_places_add(&places, 20, PREFIX_EXPLICIT);
    prefix_places_add(&places, 20, PREFIX_USER); /* once each, as it was first */
    prefix_places_add(&places, 0, PREFIX_USER);
    prefix_places_add(&places, -1, PREFIX_USER);
    assert_int_equal(places.n, 3);
    assert_place(&places, 0, 10, PREFIX_SYSTEM);
    assert_place(&places, 1, 20, PREFIX_EXPLICIT);
    assert_place(&places, 2, 30, PREFIX_USER);
    for (int32_t i = 0; i < 2 * PREFIX_PLACES_MAX; i++)
        prefix_places_add(&places, 100 - i, PREFIX_EXPLICIT);
    assert_int_equal(places.n, PREFIX_PLACES_MAX);
    for (int i = 1; i < places.n; i++)
        assert_true(places.place[i - 1].length < places.place[i].length);
}

/* The whole life of a conversation, with the exact number of tokens that need no reading. The
 * template leaves earlier thinking out of the prompt, so the answers stand there as re-rendered. */
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
    prompt = TALK(1, 2, 4); /* branches do not overwrite each other */
    assert_int_equal(check(&prompt), 54);
    prompt = TALK(7); /* another conversation, the same system block */
    assert_int_equal(check(&prompt), 9);
    prompt.ids[4]++; /* another system block */
    assert_int_equal(check(&prompt), 0);
    close_cache();
}

/* A tool loop: the generated tokens stand in the next prompt as they are, and nothing of them is
 * read again. */
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
    assert_true(holds(&next, end));
    /* exactly what stands there: the last token has to be read, its candidates are wanted */
    assert_int_equal(check(&same), prompt.n - 2);
    close_cache();
}

/* Turned off, and with a budget that holds nothing, everything is read. */
static void test_off(void **state)
{
    (void)state;
    const int64_t budgets[] = {0, 1, pool().page_bytes + entry_bytes};
    for (int i = 0; i < 3; i++) {
        open_cache(budgets[i], 0);
        struct prompt prompt = TALK(1);
        assert_int_equal(check(&prompt), 0);
        assert_int_equal(check(&prompt), 0);
        assert_int_equal(figures().peak, 0);
        assert_int_equal(figures().n_entries, 0);
        assert_int_equal(figures().evictions, 0);
        assert_int_equal(figures().misses, 2);
        close_cache();
    }
}

/* What cannot be kept at all drives nothing out. */
static void test_too_large(void **state)
{
    (void)state;
    struct prompt prompt = {.n = 0}, large = {.n = 0};
    struct ranked ranked;
    int32_t reused;
    open_cache(pool().page_bytes + entry_bytes + 40 * 4, 0);
    put_turn(&prompt, USER, 1, 3);
    put_question(&prompt);
    OK(read_prompt(sequences[0], &prompt, CONTEXT, &ranked, &reused, e));
    assert_true(holds(&prompt, 11));
    put_words(&large, 3, 300); /* two pages */
    OK(read_prompt(sequences[1], &large, CONTEXT, &ranked, &reused, e));
    prefix_cache_save(cache, sequences[1], large.ids, PREFIX_END);
    assert_true(holds(&prompt, 11));
    assert_int_equal(figures().evictions, 0);
    assert_figures();
    close_cache();
}

/* With each budget from nothing to all, the same results; more memory never reuses less here. */
static void test_budgets(void **state)
{
    (void)state;
    const struct prompt prompts[] = {TALK(1), TALK(1, 2), TALK(1, 2), TALK(1, 3), TALK(1, 3, 4)};
    int32_t before = 0;
    for (int entries = 0; entries <= 8; entries += SANITIZED ? 8 : 1) {
        open_cache(entries * (entry_bytes + pool().page_bytes + 60 * 4), 0);
        int32_t reused = 0;
        for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
            reused += check(&prompts[i]);
        assert_true(reused >= before);
        before = reused;
        close_cache();
    }
    assert_true(before > 0);
}

/* The least recently used goes first; to use an entry is to use all that it begins with, and of
 * those used together the beginning that other conversations share stays longest. */
static void test_eviction_order(void **state)
{
    (void)state;
    struct prompt a = TALK(1), b = TALK(2), c = TALK(3);
    struct ranked ranked;
    int32_t reused;
    open_cache(pool().page_bytes * 3 + 4 * entry_bytes + 120 * 4, 0); /* four entries */
    OK(read_prompt(sequences[0], &a, CONTEXT, &ranked, &reused, e));  /* 9 and 20 */
    OK(read_prompt(sequences[0], &b, CONTEXT, &ranked, &reused, e));
    assert_int_equal(reused, 9);
    OK(read_prompt(sequences[0], &c, CONTEXT, &ranked, &reused, e));
    assert_int_equal(figures().n_entries, 4);
    assert_int_equal(figures().evictions, 0);
    OK(read_prompt(sequences[0], &a, CONTEXT, &ranked, &reused, e)); /* used again: b is oldest */
    assert_int_equal(reused, 20);
    prefix_cache_save(cache, sequences[0], a.ids, PREFIX_END);
    assert_int_equal(figures().evictions, 1);
    assert_true(holds(&a, 9) && holds(&a, 20) && holds(&a, a.n) && holds(&c, 20));
    assert_false(holds(&b, 20));
    OK(read_prompt(sequences[0], &b, CONTEXT, &ranked, &reused, e));
    assert_int_equal(reused, 9);
    assert_false(holds(&c, 20)); /* never used since it was made */
    assert_true(holds(&b, 20));
    close_cache();
}

/* One conversation that outgrows the budget keeps the block that all others begin with, and what
 * its own next turn needs. */
static void test_system_block_stays(void **state)
{
    (void)state;
    open_cache(pool().page_bytes + 3 * entry_bytes + 150 * 4, 0);
    struct prompt other = TALK(8);
    int users[] = {1, 2, 3, 4};
    for (int n = 1; n <= 4; n++) {
        struct prompt prompt = conversation(users, n);
        struct ranked ranked;
        int32_t reused;
        OK(read_prompt(sequences[0], &prompt, CONTEXT, &ranked, &reused, e));
        assert_true(holds(&other, 9));
        assert_true(holds(&prompt, prompt.n - 2));
        assert_figures();
    }
    assert_true(figures().evictions > 0);
    close_cache();
}

/* A long prompt leaves entries on its way; one that shares most of it goes on from there. */
static void test_periodic(void **state)
{
    (void)state;
    open_cache(plenty, 16);
    struct prompt prompt = {.n = 0};
    put_words(&prompt, 3, SANITIZED ? 50 : 90);
    assert_int_equal(check(&prompt), 0);
    for (int32_t at = 16; at < prompt.n; at += 16)
        assert_true(holds(&prompt, at));
    prompt.ids[40]++;
    assert_int_equal(check(&prompt), 32);
    assert_true(holds(&prompt, 48));
    prompt.n = 32; /* nothing would be left to read at 32 */
    assert_int_equal(check(&prompt), 16);
    close_cache();
}

static void test_next_stop(void **state)
{
    (void)state;
    const struct prefix_places places = {2, {{10, PREFIX_SYSTEM}, {40, PREFIX_USER}}};
    open_cache(plenty, 16);
    assert_int_equal(prefix_cache_next_stop(cache, 0, 64, &places), 10);
    assert_int_equal(prefix_cache_next_stop(cache, 10, 64, &places), 16);
    assert_int_equal(prefix_cache_next_stop(cache, 16, 20, &places), 20);
    assert_int_equal(prefix_cache_next_stop(cache, 16, 64, &places), 32);
    assert_int_equal(prefix_cache_next_stop(cache, 32, 64, &places), 40);
    assert_int_equal(prefix_cache_next_stop(cache, 40, 41, &places), 41);
    close_cache();
    open_cache(plenty, 0); /* PREFIX_SPACING is longer than the context */
    assert_int_equal(prefix_cache_next_stop(cache, 40, CONTEXT, &places), CONTEXT);
    close_cache();
    open_cache(0, 16); /* nothing is kept, so nothing is cut */
    assert_int_equal(prefix_cache_next_stop(cache, 0, 64, &places), 64);
    close_cache();
}

/* Rows that several sequences and entries go on from lie there once, also over the border of a
 * page, and nobody sees what another one wrote. */
static void test_shared_pages(void **state)
{
    (void)state;
    const int32_t n = 300; /* a page is 256 */
    struct prompt prompts[N_SEQUENCES];
    struct ranked ranked;
    int32_t reused;
    open_cache(plenty, 128);
    for (int i = 0; i < N_SEQUENCES; i++) {
        prompts[i].n = 0;
        put_words(&prompts[i], 3, n);
        put_words(&prompts[i], 11 + i, 3);
    }
    OK(read_prompt(sequences[0], &prompts[0], CONTEXT, &ranked, &reused, e));
    assert_int_equal(pool().pages - pool().free, 2);
    assert_int_equal(figures().kv_bytes, 2 * pool().page_bytes); /* 128, 256 and 302 */
    assert_int_equal(figures().n_entries, 3);
    for (int i = 1; i < N_SEQUENCES; i++) {
        OK(read_prompt(sequences[i], &prompts[i], 257, &ranked, &reused, e));
        assert_int_equal(reused, 256);
    }
    assert_int_equal(pool().pages - pool().free, 4); /* each one's second page */
    for (int i = 0; i < N_SEQUENCES; i++)
        assert_int_equal(check_in(sequences[i], &prompts[i]), n + 2);
    close_cache();
}

/* Entries go where a sequence needs their pages, and what they begin with is not harmed. */
static void test_pool_exhausted(void **state)
{
    (void)state;
    struct engine large = engine;
    struct sequence *kept[N_SEQUENCES];
    struct ranked ranked;
    struct error error;
    int32_t reused;
    memcpy(kept, sequences, sizeof kept);
    open_engine(&engine, N_SEQUENCES, 3 * 256);
    for (int i = 0; i < N_SEQUENCES; i++)
        OK(ops->sequence_new(engine.backend, &sequences[i], e));
    open_cache(plenty, 0);
    struct prompt a = TALK(1), b = TALK(7), c = TALK(3), long_one = {.n = 0};
    check_in(sequences[0], &a);
    check_in(sequences[0], &b); /* a copy of the page, as the rows differ */
    check_in(sequences[0], &c);
    int entries = figures().n_entries;
    assert_true(entries > 0 && pool().free < 3);
    put_words(&long_one, 21, 300); /* two pages */
    OK(read_prompt(sequences[1], &long_one, CONTEXT, &ranked, &reused, e));
    assert_true(figures().n_entries < entries + 1 && figures().evictions > 0);
    assert_int_equal(figures().kv_bytes, pool().held * pool().page_bytes);
    /* c's rows and the two pages: there is no third sequence's */
    assert_int_equal(prefix_cache_reserve(cache, sequences[2], 1, &error), STATUS_BUSY);
    assert_int_equal(figures().n_entries, 0); /* all were asked to go */
    OK(decode(sequences[0], 5, &ranked, e));  /* and who has pages goes on */
    OK(decode(sequences[1], 5, &ranked, e));
    engine.ops->sequence_reset(engine.backend, sequences[1]);
    OK(prefix_cache_reserve(cache, sequences[2], 1, e));
    check_in(sequences[2], &a);
    assert_int_equal(prefix_cache_reserve(cache, sequences[2], CONTEXT + 1, &error),
                     STATUS_INVALID);
    close_cache();
    for (int i = 0; i < N_SEQUENCES; i++)
        ops->sequence_free(engine.backend, sequences[i]);
    engine_close(&engine);
    engine = large;
    memcpy(sequences, kept, sizeof kept);
}

/* ---- failures -------------------------------------------------------------------------------- */

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

static enum status fail_hold(struct backend *backend, struct sequence *of, int32_t length,
                             struct kv_hold **out, struct error *error)
{
    (void)backend, (void)of, (void)length, (void)out;
    return error_set(error, STATUS_NO_MEMORY, "no hold");
}

static enum status fail_attach(struct backend *backend, struct sequence *of,
                               const struct kv_hold *hold, int32_t length, struct error *error)
{
    (void)backend, (void)hold, (void)length;
    of->broken = true;
    return error_set(error, STATUS_DEVICE, "no rows");
}

/* A device that fails costs what was remembered at most. */
static void test_failing_device(void **state)
{
    (void)state;
    struct prompt prompt = TALK(1);
    open_cache(plenty, 0);
    for (int i = 0; i < 2; i++) {
        struct backend_ops faulty = *ops;
        if (i == 0)
            faulty.state_read = fail_state_read;
        else
            faulty.kv_hold = fail_hold;
        engine.backend->ops = &faulty;
        check(&prompt);
        assert_int_equal(check(&prompt), 0); /* nothing could be kept */
        assert_int_equal(figures().used, 0);
        engine.backend->ops = ops;
    }
    check(&prompt);
    for (int i = 0; i < 2; i++) {
        struct backend_ops faulty = *ops;
        struct ranked ranked;
        int32_t reused;
        if (i == 0)
            faulty.state_write = fail_state_write;
        else
            faulty.kv_attach = fail_attach;
        engine.backend->ops = &faulty;
        int64_t hits = figures().hits;
        OK(read_prompt(sequences[0], &prompt, CONTEXT, &ranked, &reused, e));
        assert_int_equal(reused, 0); /* what was kept could not be written: everything is read */
        assert_int_equal(figures().hits, hits);
        compare(&ranked, &wanted_for(&prompt)->ranked[0]);
        engine.backend->ops = ops;
    }
    assert_int_equal(check(&prompt), 20);
    close_cache();
}

/* A broken sequence is never kept, and begins like any other. */
static void test_broken(void **state)
{
    (void)state;
    struct prompt prompt = TALK(1), next = TALK(1, 2);
    struct ranked ranked;
    int32_t reused;
    open_cache(plenty, 0);
    OK(read_prompt(sequences[0], &prompt, CONTEXT, &ranked, &reused, e));
    int entries = figures().n_entries;
    sequences[0]->broken = true;
    prefix_cache_save(cache, sequences[0], prompt.ids, PREFIX_END);
    assert_int_equal(figures().n_entries, entries);
    assert_int_equal(check(&next), 20);
    sequences[0]->broken = true;
    struct prompt unknown = {.n = 0};
    put_words(&unknown, 30, 10);
    assert_int_equal(check(&unknown), 0);
    engine.ops->sequence_reset(engine.backend, sequences[1]);
    entries = figures().n_entries;
    prefix_cache_save(cache, sequences[1], prompt.ids, PREFIX_END); /* nothing read: nothing kept */
    assert_int_equal(figures().n_entries, entries);
    close_cache();
}

/* A prompt that is stopped on its way leaves what it read, whatever its sequence does next. */
static void test_stopped(void **state)
{
    (void)state;
    open_cache(plenty, 0);
    struct prompt first = TALK(1), second = TALK(1, 2);
    const int32_t stop[] = {20, 21, 27}, known[] = {20, 26, 37}; /* places: 26 and 37 */
    for (int i = 0; i < 3; i++) {
        struct ranked ranked;
        int32_t reused;
        check(&first);
        OK(read_prompt(sequences[0], &second, stop[i], &ranked, &reused, e));
        assert_int_equal(reused, i == 0 ? 20 : known[i - 1]);
        assert_int_equal(prefix_cache_match(cache, second.ids, second.n), known[i]);
        assert_int_equal(check(&first), 20);
    }
    assert_int_equal(check(&second), 37);
    close_cache();
}

/* ---- all of it ------------------------------------------------------------------------------- */

static uint32_t random_state;

static int random_below(int n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int)(random_state >> 16) % n;
}

/* Conversations grown, changed, cut, stopped and begun anew at random, in little memory, on
 * sequences that take turns. */
static void test_random(void **state)
{
    (void)state;
    int rounds = SANITIZED ? 1 : 4, operations = SANITIZED ? 8 : 24, total = 0;
    for (int round = 0; round < rounds; round++) {
        random_state = (uint32_t)round + 1;
        open_cache((2 + 2 * round) * (entry_bytes + pool().page_bytes), round % 2 ? 16 : 0);
        int users[4] = {1}, n_users = 1;
        for (int i = 0; i < operations; i++) {
            int what = random_below(5);
            struct sequence *sequence = sequences[random_below(N_SEQUENCES)];
            if (what == 0 && n_users < 4)
                users[n_users++] = random_below(3);
            else if (what == 1)
                users[random_below(n_users)] = random_below(3);
            else if (what == 2)
                n_users = 1 + random_below(n_users);
            struct prompt prompt = conversation(users, n_users);
            if (what == 3) {
                struct ranked ranked;
                int32_t reused;
                OK(read_prompt(sequence, &prompt, random_below(40), &ranked, &reused, e));
                sequence->broken = random_below(2) == 0;
            }
            total += check_in(sequences[random_below(N_SEQUENCES)], &prompt);
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
        cmocka_unit_test(test_places_added),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_end_of_generation),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_system_block_stays),
        cmocka_unit_test(test_periodic),
        cmocka_unit_test(test_next_stop),
        cmocka_unit_test(test_shared_pages),
        cmocka_unit_test(test_pool_exhausted),
        cmocka_unit_test(test_failing_device),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_random),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_end_of_generation),
        cmocka_unit_test(test_shared_pages),
        cmocka_unit_test(test_stopped),
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
