/* Allocations fail one by one from the opening of models/tiny to its second token: the small ones
 * of the loader and the large ones of the backend alike. And a session whose request ran out of
 * memory answers the next one as if nothing had been. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <string.h>

#include "backend/backend.h"
#include "base/bytes.h"
#include "calla.h"
#include "support/alloc.h"

/* without a cache: a snapshot for which there is no memory is no error */
static const struct calla_open_options options = {
    .backend = "ref", .max_context = 48, .cache_bytes = -1};

/* The library's status as the sweep wants it. */
static enum status give(enum calla_status status, const struct calla_error *from,
                        struct error *error)
{
    if (status == CALLA_OK)
        return STATUS_OK;
    if (from->status != status)
        return error_set(error, STATUS_INVALID, "found status %d in the error of status %d",
                         (int)from->status, (int)status);
    return error_set(error, status == CALLA_NO_MEMORY ? STATUS_NO_MEMORY : STATUS_INVALID, "%s",
                     from->message);
}

/* `messages` or a raw prompt, which is shorter. */
static enum calla_status ask(struct calla_model *model, struct calla_session *session,
                             const char *messages, calla_callback *callback, void *context,
                             struct calla_error *error)
{
    struct calla_request request;
    struct calla_result result;
    calla_request_init(model, &request);
    request.messages = messages;
    request.prompt = messages ? NULL : "Hi";
    request.prompt_length = messages ? 0 : 2;
    request.temperature = 0.5; /* the sampler's own memory, and penalties need the full row */
    request.presence_penalty = 1;
    request.stop = (const char *const[]){"never seen"};
    request.n_stop = 1;
    request.max_tokens = 2;
    return calla_generate(session, &request, callback, context, &result, error);
}

static enum status load_and_generate(void *context, struct error *error)
{
    (void)context;
    struct calla_model *model;
    struct calla_session *session = NULL;
    struct calla_error problem = {0};
    enum calla_status status = calla_open("models/tiny", &options, &model, &problem);
    if (status == CALLA_OK)
        status = calla_session_new(model, &session, &problem);
    if (status == CALLA_OK)
        status = ask(model, session, "[{\"role\": \"user\", \"content\": \"Hi\"}]", NULL, NULL,
                     &problem);
    calla_session_free(session);
    calla_close(model);
    return give(status, &problem, error);
}

static void loading_and_generating(void **state)
{
    (void)state;
    size_t n = alloc_sweep(load_and_generate, NULL, 0);
    print_message("%zu allocations\n", n);
    assert_true(n > 50);
}

static int collect(void *context, const struct calla_event *event)
{
    bytes_append(context, event->text, event->length);
    return 0;
}

static void session_survives(void **state)
{
    (void)state;
    struct calla_model *model;
    struct calla_session *session;
    struct calla_error problem;
    struct bytes wanted = {0};
    struct calla_open_options cached = options;
    cached.cache_bytes = 0;
    assert_int_equal(calla_open("models/tiny", &cached, &model, &problem), CALLA_OK);
    assert_int_equal(calla_session_new(model, &session, &problem), CALLA_OK);
    assert_int_equal(ask(model, session, NULL, collect, &wanted, &problem), CALLA_OK);
    assert_true(wanted.length > 0);
    calla_session_free(session);
    size_t n = 0;
    for (bool failing = true; failing;) {
        n++; /* with a new session each time: one that has answered holds its memory already */
        assert_int_equal(calla_session_new(model, &session, &problem), CALLA_OK);
        alloc_start(n, n);
        enum calla_status status = ask(model, session, NULL, NULL, NULL, &problem);
        failing = alloc_stop() >= n;
        assert_true(failing || status == CALLA_OK);
        struct bytes found = {0};
        enum calla_status after = ask(model, session, NULL, collect, &found, &problem);
        if (after != CALLA_OK)
            fail_msg("after allocation %zu failed: %s", n, problem.message);
        assert_int_equal(found.length, wanted.length);
        assert_memory_equal(found.data, wanted.data, wanted.length);
        bytes_clear(&found);
        calla_session_free(session);
    }
    print_message("%zu allocations\n", n - 1);
    bytes_clear(&wanted);
    calla_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading_and_generating),
        cmocka_unit_test(session_survives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
