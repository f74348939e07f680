/* The scheduler's order: who reads when, who waits, who leaves, and what becomes of those whose
 * place is taken; a job gets the tokens that it gets alone, or an end that says why not. On the
 * hashed backend, whose answers anybody can foretell. test_company.c has crowds. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/ok.h"
#include "support/scheduling.h"
#include "support/tiny.h"

#define COMPANY 16

/* All rows of 16 jobs come together, and the figures say so. */
static void test_rows(void **state)
{
    (void)state;
    struct job *jobs[COMPANY];
    hashed.on_step = wait_at_gate;
    set_gate(true);
    open_scheduler((struct set_up){.parallel = COMPANY});
    for (int i = 0; i < COMPANY; i++)
        jobs[i] = submit(i, 10, 40);
    wait_until_held();
    set_gate(false);
    for (int i = 0; i < COMPANY; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, i, 10, 40);
    }
    assert_int_equal(figures().most_rows, COMPANY);
    assert_int_equal(figures().read, COMPANY * 10);
    close_scheduler(0);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_first_come(void **state)
{
    (void)state;
    struct job *jobs[6];
    double before = 0;
    hashed.on_step = wait_at_gate;
    set_gate(true);
    open_scheduler((struct set_up){.parallel = 1});
    for (int i = 0; i < 6; i++)
        jobs[i] = submit(i, 20 - i, 3);
    set_gate(false);
    for (int i = 0; i < 6; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, i, 20 - i, 3);
        assert_true(result.news.figures.started > before);
        before = result.news.figures.end;
    }
    close_scheduler(0);
}

static void test_queue_limit(void **state)
{
    (void)state;
    struct job *jobs[8], *refused = NULL;
    struct error error;
    int32_t prompt[8];
    fill_prompt(prompt, 1, 8);
    struct generation_options many[4];
    for (int i = 0; i < 4; i++)
        many[i] = options_for(prompt, 8, 2);
    hashed.on_step = wait_at_gate;
    set_gate(true);
    open_scheduler((struct set_up){.parallel = 2, .queue = 2});
    jobs[0] = submit(0, 8, 2);
    wait_until_held(); /* in the first one's chunk: one more place is free, and two may wait */
    for (int i = 1; i < 4; i++)
        jobs[i] = submit(i, 8, 2);
    assert_int_equal(scheduler_submit(scheduler, many, 1, &refused, &error), STATUS_BUSY);
    assert_non_null(strstr(error.message, "full"));
    job_free(jobs[3]); /* leaves the queue as soon as the engine looks */
    set_gate(false);
    for (int i = 0; i < 3; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, i, 8, 2);
    }
    set_gate(true);
    jobs[0] = submit(0, 8, 2);
    wait_until_held();
    struct job *four[4];
    assert_int_equal(scheduler_submit(scheduler, many, 4, four, &error), STATUS_BUSY);
    assert_int_equal(figures().queued, 0); /* all or none */
    OK(scheduler_submit(scheduler, many, 3, four, e));
    set_gate(false);
    finish(jobs[0]);
    for (int i = 0; i < 3; i++)
        finish(four[i]);
    close_scheduler(0);
    /* an idle engine takes what is more than the queue */
    open_scheduler((struct set_up){.parallel = 1, .queue = 1});
    OK(scheduler_submit(scheduler, many, 4, four, e));
    for (int i = 0; i < 4; i++) {
        struct result result = finish(four[i]);
        assert_answer(&result, 1, 8, 2);
    }
    close_scheduler(0);
}

/* One that cannot be made makes none. */
static void test_refused(void **state)
{
    (void)state;
    struct generation_options options[2];
    struct job *jobs[2];
    struct error error;
    int32_t prompt[8];
    fill_prompt(prompt, 1, 8);
    options[0] = options[1] = options_for(prompt, 8, 2);
    options[1].n_prompt = 0;
    open_scheduler((struct set_up){0});
    assert_int_equal(scheduler_submit(scheduler, options, 2, jobs, &error), STATUS_INVALID);
    options[1].n_prompt = CONTEXT + 1;
    assert_int_equal(scheduler_submit(scheduler, options, 2, jobs, &error), STATUS_CONTEXT);
    assert_int_equal(figures().queued, 0);
    struct scheduler *other;
    struct scheduler_options of = {.parallel = HASHED_ROWS + 1, .mailbox = 1};
    assert_int_equal(scheduler_new(&engine, cache, &of, &other, &error), STATUS_INVALID);
    assert_null(other);
    close_scheduler(0);
}

static struct {
    int32_t lengths[64]; /* of sequences, before each chunk */
    int32_t tokens[64];  /* the first of each chunk */
    int n;
} chunks;

static enum status note_chunk(const struct row *rows, int n, bool prefill, bool *broken)
{
    wait_at_gate(rows, n, prefill, broken);
    if (prefill && chunks.n < 64) {
        chunks.lengths[chunks.n] = rows[0].sequence->position;
        chunks.tokens[chunks.n++] = rows[0].token;
    }
    return STATUS_OK;
}

/* A short prompt that comes behind a long one is read after the next chunk, and answered while the
 * long one is still read. */
static void test_short_behind_long(void **state)
{
    (void)state;
    chunks.n = 0;
    hashed.on_step = note_chunk;
    set_gate(true);
    open_scheduler((struct set_up){0});
    struct job *long_one = submit(1, 1000, 4);
    wait_until_held();
    struct job *short_one = submit(2, 5, 6);
    set_gate(false);
    struct result b = finish(short_one), a = finish(long_one);
    assert_answer(&a, 1, 1000, 4);
    assert_answer(&b, 2, 5, 6);
    assert_true(chunks.n > 10);
    assert_int_equal(chunks.lengths[0], 0);
    assert_int_equal(chunks.lengths[1], 0); /* the short one's */
    assert_int_equal(chunks.lengths[2], 64);
    assert_true(b.news.figures.end < a.news.figures.first);
    close_scheduler(0);
}

/* Others decode between the slices of a chunk, and short prompts are read. */
static void test_slices(void **state)
{
    (void)state;
    chunks.n = 0;
    hashed.on_step = note_chunk;
    set_gate(true);
    open_scheduler((struct set_up){.slices = 10});
    struct job *answer = submit(1, 5, 20);
    wait_until_held();
    struct job *long_one = submit(2, 3 * 64, 4);
    set_gate(false);
    struct result a = finish(answer), b = finish(long_one);
    assert_answer(&a, 1, 5, 20);
    assert_answer(&b, 2, 3 * 64, 4);
    assert_int_equal(chunks.n, 4);
    assert_true(a.news.figures.end < b.news.figures.first); /* 30 slices, 20 tokens */

    chunks.n = 0; /* two long ones read chunk by chunk in turn, a short one beside them */
    set_gate(true);
    long_one = submit(3, 4 * 64, 4);
    wait_until_held(); /* at the end of its first chunk */
    struct job *second = submit(4, 3 * 64, 4), *short_one = submit(5, 20, 4);
    set_gate(false);
    a = finish(second);
    b = finish(long_one);
    struct result c = finish(short_one);
    assert_answer(&a, 4, 3 * 64, 4);
    assert_answer(&b, 3, 4 * 64, 4);
    assert_answer(&c, 5, 20, 4);
    static const int32_t places[] = {0, 0, 0, 64, 64, 128, 128, 192};
    assert_int_equal(chunks.n, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(chunks.lengths[i], places[i]);
    assert_true(c.news.figures.first < a.news.figures.first);
    close_scheduler(0);
}

/* Several prompts are read in turn, none waits for another one's end. */
static void test_turns(void **state)
{
    (void)state;
    chunks.n = 0;
    hashed.on_step = note_chunk;
    set_gate(true);
    open_scheduler((struct set_up){0});
    struct job *jobs[3];
    jobs[0] = submit(0, 300, 1);
    wait_until_held();
    jobs[1] = submit(1, 300, 1);
    jobs[2] = submit(2, 300, 1);
    set_gate(false);
    for (int i = 0; i < 3; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, i, 300, 1);
    }
    assert_int_equal(chunks.n, 15);
    for (int i = 0; i < 15; i++)
        assert_int_equal(chunks.lengths[i], i / 3 * 64);
    /* also where one has gone */
    chunks.n = 0;
    set_gate(true);
    jobs[0] = submit(0, 10, 1);
    wait_until_held();
    jobs[1] = submit(1, 300, 1);
    jobs[2] = submit(2, 300, 1);
    set_gate(false);
    for (int i = 0; i < 3; i++)
        finish(jobs[i]);
    for (int i = 0; i < 3; i++) {
        int32_t prompt[1];
        fill_prompt(prompt, i, 1);
        assert_int_equal(chunks.tokens[i], prompt[0]);
    }
    close_scheduler(0);
}

/* Of n jobs of one call the first reads, the others find it. */
static void test_one_call(void **state)
{
    (void)state;
    int32_t prompt[200];
    struct job *jobs[4];
    struct generation_options options[4];
    fill_prompt(prompt, 1, 200);
    for (int i = 0; i < 4; i++) {
        options[i] = options_for(prompt, 200, 5);
        prefix_places_add(&options[i].places, 199, PREFIX_PROMPT);
    }
    open_scheduler((struct set_up){.budget = 1 << 20});
    OK(scheduler_submit(scheduler, options, 4, jobs, e));
    for (int i = 0; i < 4; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, 1, 200, 5);
        assert_int_equal(result.news.figures.cached, i > 0 ? 199 : 0);
    }
    assert_int_equal(figures().read, 200 + 3);
    assert_int_equal(figures().cached, 3 * 199);
    /* the first one is cancelled before it has read: the others do not wait for ever */
    hashed.on_step = wait_at_gate;
    set_gate(true);
    fill_prompt(prompt, 2, 200);
    OK(scheduler_submit(scheduler, options, 4, jobs, e));
    wait_until_held();
    job_cancel(jobs[0]);
    set_gate(false);
    assert_int_equal(finish(jobs[0]).news.end, GENERATION_CANCELLED);
    for (int i = 1; i < 4; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, 2, 200, 5);
    }
    close_scheduler(0);
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void test_cancelled(void **state)
{
    (void)state;
    hashed.on_step = wait_at_gate;
    set_gate(true);
    open_scheduler((struct set_up){.parallel = 1});
    struct job *reading = submit(1, 300, 5), *queued = submit(2, 10, 5), *other = submit(3, 10, 5);
    wait_until_held();
    assert_int_equal(figures().running, 1);
    assert_int_equal(figures().queued, 2);
    job_cancel(reading);
    job_cancel(queued);
    set_gate(false);
    struct result result = finish(reading);
    assert_int_equal(result.news.end, GENERATION_CANCELLED);
    assert_int_equal(result.n, 0);
    assert_true(result.news.figures.read <= 64);
    result = finish(queued);
    assert_int_equal(result.news.end, GENERATION_CANCELLED);
    assert_int_equal(result.news.figures.read, 0);
    result = finish(other);
    assert_answer(&result, 3, 10, 5);
    struct job *decoding = submit(4, 10, MOST - 1);
    wait_for_phase(decoding, JOB_DECODING);
    set_gate(true);
    job_cancel(decoding);
    set_gate(false);
    result = finish(decoding);
    assert_true(result.news.end == GENERATION_CANCELLED || result.n == MOST - 1);
    assert_false(result.news.overflowed);
    result = finish(submit(5, 10, 5));
    assert_answer(&result, 5, 10, 5);
    close_scheduler(0);
}

static void test_freed_at_once(void **state)
{
    (void)state;
    open_scheduler((struct set_up){.budget = 1 << 16});
    for (int i = 0; i < 50; i++)
        job_free(submit(i, 1 + i * 3, -1));
    job_free(NULL);
    struct result result = finish(submit(1, 70, 5));
    assert_answer(&result, 1, 70, 5);
    close_scheduler(0);
}

/* A reader that is too slow loses its request: it gets the beginning without a gap, and is told. */
static void test_overflow(void **state)
{
    (void)state;
    open_scheduler((struct set_up){.mailbox = 4});
    struct job *slow = submit(1, 10, 40);
    while (figures().running + figures().queued > 0)
        usleep(1000);
    struct result result = finish(slow);
    assert_true(result.news.overflowed);
    assert_int_equal(result.news.end, GENERATION_CANCELLED);
    assert_int_equal(result.n, 4);
    slow = submit(2, 10, 5); /* its last token is the one that has no room */
    while (figures().running + figures().queued > 0)
        usleep(1000);
    result = finish(slow);
    assert_true(result.news.overflowed);
    assert_int_equal(result.news.end, GENERATION_CANCELLED);
    result = finish(submit(3, 10, 4));
    assert_answer(&result, 3, 10, 4);
    close_scheduler(0);
}

/* ---- a failing device ------------------------------------------------------------------------ */

static int failures_left, victim; /* victim: position at which a step fails */
static bool breaks;

static enum status fail_company(const struct row *rows, int n, bool prefill, bool *broken)
{
    (void)rows;
    if (prefill || n < 2 || failures_left == 0)
        return STATUS_OK;
    failures_left--;
    *broken = breaks;
    return STATUS_DEVICE;
}

/* Steps of several rows fail, single ones work: everybody gets the right answer. */
static void test_company_fails(void **state)
{
    (void)state;
    for (int with = 0; with < 3; with++) {
        struct job *jobs[4];
        breaks = with > 0;
        failures_left = with == 1 ? 3 : 1000;
        hashed.on_step = fail_company;
        open_scheduler((struct set_up){.budget = with ? 1 << 16 : 0});
        for (int i = 0; i < 4; i++)
            jobs[i] = submit(i, 50 + 60 * i, 40);
        for (int i = 0; i < 4; i++) {
            struct result result = finish(jobs[i]);
            assert_answer(&result, i, 50 + 60 * i, 40);
        }
        assert_true(figures().failed_steps > 0);
        assert_true(figures().failed_steps < 4 * 40); /* each is of use to somebody */
        assert_true(with != 1 || figures().most_rows > 1);
        assert_int_equal(figures().drawn, 4 * 40);
        close_scheduler(0);
    }
}

static enum status fail_victim(const struct row *rows, int n, bool prefill, bool *broken)
{
    (void)prefill;
    *broken = breaks;
    for (int i = 0; i < n; i++)
        if (rows[i].sequence->position == victim)
            return STATUS_DEVICE;
    return STATUS_OK;
}

/* One row fails, in company and alone: its job ends, the others do not notice. */
static void test_one_fails(void **state)
{
    (void)state;
    const int victims[] = {705, 64}; /* in an answer, in a prompt */
    for (int with = 0; with < 4; with++) {
        struct job *jobs[4];
        breaks = with % 2;
        victim = victims[with / 2];
        hashed.on_step = fail_victim;
        open_scheduler((struct set_up){0});
        for (int i = 0; i < 3; i++)
            jobs[i] = submit(i, 10 + i, 30);
        jobs[3] = submit(3, 700, 30);
        for (int i = 0; i < 3; i++) {
            struct result result = finish(jobs[i]);
            assert_answer(&result, i, 10 + i, 30);
        }
        struct result result = finish(jobs[3]);
        assert_int_equal(result.news.end, GENERATION_FAILED);
        assert_int_equal(result.news.error.status, STATUS_DEVICE);
        assert_int_equal(result.n, victim == 705 ? 6 : 0);
        assert_true(figures().failed_steps > 0);
        hashed.on_step = NULL;
        result = finish(submit(3, 700, 30)); /* the next request works */
        assert_answer(&result, 3, 700, 30);
        close_scheduler(0);
    }
}

/* ---- few KV rows ----------------------------------------------------------------------------- */

/* Rows for two of five: they lose their places and all end rightly; also with a cache that holds
 * rows, too. */
static void test_rows_run_out(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct job *jobs[10];
        open_scheduler((struct set_up){
            .parallel = 5, .kv_rows = 4 * 256, .budget = with ? (int64_t)1 << 30 : 0});
        for (int i = 0; i < 10; i++)
            jobs[i] = submit(i, 230 + 7 * (i % 3), MOST - 1); /* the answers need a second page */
        double last = 0;
        for (int i = 0; i < 10; i++) {
            struct result result = finish(jobs[i]);
            assert_answer(&result, i, 230 + 7 * (i % 3), MOST - 1);
            last = result.news.figures.end > last ? result.news.figures.end : last;
        }
        assert_true(figures().suspended > 0);
        assert_true(figures().suspended < 40); /* at most those running, for each that ended */
        close_scheduler(0);
    }
}

/* One that needs more than there is, alone, ends and says so; the others do not suffer. */
static void test_never_enough_rows(void **state)
{
    (void)state;
    open_scheduler((struct set_up){.kv_rows = 2 * 256, .budget = 1 << 20});
    struct job *small = submit(1, 20, 10), *large = submit(2, 600, 10), *other = submit(3, 20, 10);
    struct result result = finish(large);
    assert_int_equal(result.news.end, GENERATION_FAILED);
    assert_int_equal(result.news.error.status, STATUS_BUSY);
    result = finish(small);
    assert_answer(&result, 1, 20, 10);
    result = finish(other);
    assert_answer(&result, 3, 20, 10);
    result = finish(submit(4, 500, 10)); /* fills all of it */
    assert_answer(&result, 4, 500, 10);
    close_scheduler(0);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Opens the gate when the scheduler takes no jobs any more. */
static void *open_gate(void *context)
{
    (void)context;
    while (scheduler_submit(scheduler, NULL, 0, NULL, NULL) != STATUS_CANCELLED)
        usleep(1000);
    usleep(100000); /* and the others have no more time */
    set_gate(false);
    return NULL;
}

static void test_stopped(void **state)
{
    (void)state;
    struct job *jobs[8], *late;
    struct error error;
    int32_t prompt[8];
    fill_prompt(prompt, 1, 8);
    struct generation_options options = options_for(prompt, 8, 2);
    open_scheduler((struct set_up){.parallel = 2}); /* idle */
    close_scheduler(0);
    open_scheduler((struct set_up){.parallel = 2}); /* with time: all end */
    for (int i = 0; i < 8; i++)
        jobs[i] = submit(i, 30, 20);
    scheduler_stop(scheduler, 100);
    assert_int_equal(scheduler_submit(scheduler, &options, 1, &late, &error), STATUS_CANCELLED);
    for (int i = 0; i < 8; i++) {
        struct result result = finish(jobs[i]);
        assert_answer(&result, i, 30, 20);
    }
    close_scheduler(1);            /* a second call is harmless */
    hashed.on_step = wait_at_gate; /* without: all are cancelled, and told */
    set_gate(true);
    open_scheduler((struct set_up){.parallel = 2});
    for (int i = 0; i < 8; i++)
        jobs[i] = submit(i, 300, 20);
    wait_until_held();
    pthread_t opener;
    assert_int_equal(pthread_create(&opener, NULL, open_gate, NULL), 0);
    scheduler_stop(scheduler, 0);
    pthread_join(opener, NULL);
    scheduler_free(scheduler); /* jobs outlive it */
    int cancelled = 0;
    for (int i = 0; i < 8; i++)
        cancelled += finish(jobs[i]).news.end == GENERATION_CANCELLED;
    assert_int_equal(cancelled, 8);
    prefix_cache_free(cache);
    engine_close(&engine);
    hashed = (struct hashed){0};
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_first_come),
        cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_short_behind_long),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_freed_at_once),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_company_fails),
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_rows_run_out),
        cmocka_unit_test(test_never_enough_rows),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
