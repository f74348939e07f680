/* calla_open and calla_session_new with the real backend: what they refuse, and that models and
 * sessions beside each other do not disturb each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "calla.h"

static void refuses(const char *path, int32_t max_context, const char *backend, const char *word)
{
    struct calla_open_options options = {.max_context = max_context, .backend = backend};
    struct calla_model *model = (struct calla_model *)&options;
    struct calla_error error;
    assert_int_equal(calla_open(path, &options, &model, &error), CALLA_INVALID);
    assert_null(model);
    assert_int_equal(error.status, CALLA_INVALID);
    if (!strstr(error.message, word))
        fail_msg("'%s' is not in '%s'", word, error.message);
    assert_int_equal(calla_open(path, &options, &model, NULL), CALLA_INVALID);
}

static void test_refused(void **state)
{
    (void)state;
    refuses("", 0, NULL, "empty path");
    refuses("models/tiny", -1, NULL, "context: found -1");
    refuses("models/tiny", INT32_MAX, NULL, "context: found 2147483647");
    refuses("models/tiny", 0, "abacus", "abacus");
    refuses("models/tiny/config.json", 0, NULL, "folder");
}

/* Options of the backend are looked at before the model: there is none. */
static void test_backend_options(void **state)
{
    (void)state;
    const struct {
        const char *backend, *cpu;
        int32_t threads;
        const char *words;
    } wrong[] = {
        {"ref", NULL, 2, "threads: found 2, but the backend ref takes none"},
        {"ref", "portable", 0, "cpu: found 'portable', but the backend ref takes none"},
        {"cpu", "abacus", 0, "cpu: found 'abacus', wanted one of: "},
        {"cpu", NULL, -1, "threads: found -1, wanted 0 to 1024"},
        {"cpu", NULL, 1025, "threads: found 1025, wanted 0 to 1024"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct calla_open_options options = {
            .backend = wrong[i].backend, .cpu = wrong[i].cpu, .threads = wrong[i].threads};
        struct calla_model *model = (struct calla_model *)&options;
        struct calla_error error;
        assert_int_equal(calla_open("no/such/model", &options, &model, &error), CALLA_INVALID);
        assert_null(model);
        if (!strstr(error.message, wrong[i].words))
            fail_msg("'%s' is not in '%s'", wrong[i].words, error.message);
    }
    struct calla_request request;
    int n = 0;
    for (const char *name; (name = calla_preset_name(n)); n++)
        assert_int_equal(calla_request_preset(&request, name, NULL), CALLA_OK);
    assert_int_equal(n, 4);
    assert_null(calla_preset_name(-1));
}

static void test_one_session_at_a_time(void **state)
{
    (void)state;
    struct calla_model *model;
    struct calla_session *first, *second;
    struct calla_error error;
    struct calla_open_options options = {.max_context = 64};
    assert_int_equal(calla_open("models/tiny", &options, &model, &error), CALLA_OK);
    assert_int_equal(calla_session_new(model, &first, &error), CALLA_OK);
    assert_int_equal(calla_session_new(model, &second, &error), CALLA_INVALID);
    assert_null(second);
    assert_non_null(strstr(error.message, "sequences: found 1"));
    calla_session_free(first);
    assert_int_equal(calla_session_new(model, &second, NULL), CALLA_OK);
    calla_session_free(second);
    calla_close(model);
    calla_session_free(NULL);
    calla_close(NULL);
}

/* Errors and cancelled generations between two equal requests change nothing, in either model. */
static void test_two_models(void **state)
{
    (void)state;
    enum { N = 2, TOKENS = 6 };
    struct calla_model *models[N];
    struct calla_session *sessions[N];
    struct calla_request request, broken;
    struct calla_result result;
    struct calla_open_options options = {.max_context = 64};
    int32_t ids[TOKENS];
    for (int i = 0; i < N; i++) {
        assert_int_equal(calla_open("models/tiny", &options, &models[i], NULL), CALLA_OK);
        assert_int_equal(calla_session_new(models[i], &sessions[i], NULL), CALLA_OK);
    }
    calla_request_init(models[0], &request);
    request.seed = UINT64_MAX;
    request.max_tokens = TOKENS;
    request.messages = "[{\"role\": \"user\", \"content\": \"Define hot.\"}]";
    broken = request;
    broken.messages = "[{\"role\":";
    for (int i = 0; i < 3 * N; i++) {
        struct calla_session *session = sessions[i % N];
        assert_int_equal(calla_generate(session, &request, NULL, NULL, &result, NULL), CALLA_OK);
        assert_int_equal(result.completion_tokens, TOKENS);
        if (i == 0)
            memcpy(ids, result.completion_ids, sizeof ids);
        assert_memory_equal(result.completion_ids, ids, sizeof ids);
        assert_int_equal(calla_generate(session, &broken, NULL, NULL, NULL, NULL), CALLA_INVALID);
        calla_cancel(session);
        assert_int_equal(calla_generate(session, &request, NULL, NULL, &result, NULL),
                         CALLA_CANCELLED);
    }
    for (int i = 0; i < N; i++) {
        calla_session_free(sessions[i]);
        calla_close(models[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_backend_options),
        cmocka_unit_test(test_one_session_at_a_time),
        cmocka_unit_test(test_two_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
