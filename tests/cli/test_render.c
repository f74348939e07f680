/* `calla render` as a user runs it: golden lines in, one answer a line, exit codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "support/golden.h"

#define GOLDEN "tests/golden/template.jsonl"

static struct bytes out;

/* Runs "INPUT | calla render models/tiny" with a shell command as INPUT. */
static int render(const char *input)
{
    const char *program = getenv("CALLA");
    char command[1000];
    snprintf(command, sizeof command, "%s | %s render models/tiny 2>&1", input,
             program ? program : "build/calla");
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    bytes_reset(&out);
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, pipe)) > 0)
        bytes_append(&out, part, n);
    assert_non_null(bytes_terminate(&out));
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Compares one golden line with the next line of `out`. */
static void check_line(void *context, const struct golden_line *line)
{
    const char **at = context, *end = strchr(*at, '\n');
    assert_non_null(end);
    json_t *answer = json_loadb(*at, (size_t)(end - *at), JSON_ALLOW_NUL, NULL);
    if (!json_is_object(answer))
        fail_msg("line %d: no JSON object: %.*s", line->number, (int)(end - *at), *at);
    *at = end + 1;
    const json_t *wanted = json_object_get(line->object, "rendered");
    if (!wanted) {
        if (!json_is_string(json_object_get(answer, "error")) || json_object_size(answer) != 1)
            fail_msg("line %d: found no error", line->number);
    } else {
        if (!json_equal((json_t *)wanted, json_object_get(answer, "text")))
            fail_msg("line %d: another text", line->number);
        assert_true(json_array_size(json_object_get(answer, "ids")) > 0);
    }
    json_decref(answer);
}

static void golden_lines_exit_0(void **state)
{
    (void)state;
    assert_int_equal(render("cat " GOLDEN), 0);
    const char *at = out.data;
    assert_int_equal(golden_each(GOLDEN, check_line, &at), 400);
    assert_string_equal(at, "");
}

static void only_a_wrong_form_exits_1(void **state)
{
    (void)state;
    assert_int_equal(render("echo '{\"messages\":[]}'"), 0);
    assert_string_equal(out.data, "{\"error\": \"No messages provided.\"}\n");
    assert_int_equal(render("echo '{\"messages\":[18446744073709551616]}'"), 0);
    assert_non_null(
        strstr(out.data, "{\"error\": \"line 1: JSON that is not supported at line 1 "));
    assert_int_equal(render("echo '{\"messages\":1}'"), 1);
    assert_string_equal(out.data,
                        "{\"error\": \"line 1: messages: found an integer, wanted an array\"}\n");
    assert_int_equal(render("printf '\\n{\\n 7\\n{\"messages\":[]}'"), 1);
    assert_string_equal(out.data,
                        "{\"error\": \"line 2: not JSON at line 1 column 1: string or '}' expected "
                        "near end of file\"}\n"
                        "{\"error\": \"line 3: found JSON that is no object, wanted one\"}\n"
                        "{\"error\": \"No messages provided.\"}\n");
    assert_int_equal(render("true"), 0);
    assert_string_equal(out.data, "");
}

static int clear(void **state)
{
    (void)state;
    bytes_clear(&out);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_lines_exit_0),
        cmocka_unit_test(only_a_wrong_form_exits_1),
    };
    return cmocka_run_group_tests(tests, NULL, clear);
}
