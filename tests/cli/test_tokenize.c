/* `calla tokenize` and `calla detokenize` as a user runs them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static char out[20000];

/* Runs the filter on lines given in printf's spelling; gives the exit code. */
static int filter(const char *command, const char *arguments, const char *lines)
{
    const char *program = getenv("CALLA");
    char line[4000];
    snprintf(line, sizeof line, "printf '%s' | %s %s %s 2>&1", lines,
             program ? program : "build/calla", command, arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    out[fread(out, 1, sizeof out - 1, pipe)] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void tokenize(void **state)
{
    (void)state;
    assert_int_equal(filter("tokenize", "models/tiny",
                            "{\"text\":\"The\"}\\n"
                            "{\"text\":\"<|im_end|>\",\"special\":true, \"x\": []}\\n"
                            "{\"text\":\"\",\"special\":false}\\n"),
                     0);
    assert_string_equal(out, "{\"ids\": [338]}\n{\"ids\": [4052]}\n{\"ids\": []}\n");
    assert_int_equal(filter("tokenize", "models/tiny", "{\"text\":\"<|im_end|>\"}\\n"), 0);
    assert_null(strstr(out, "4052"));
}

static void tokenize_refuses(void **state)
{
    (void)state;
    assert_int_equal(filter("tokenize", "models/tiny",
                            "{\"text\":5}\\n{\"text\":\"a\",\"special\":1}\\n{}\\n"
                            "{\"text\":\"The\"}\\n"),
                     1);
    assert_string_equal(out,
                        "{\"error\": \"line 1: text: found an integer, wanted a string\"}\n"
                        "{\"error\": \"line 2: special: found an integer, wanted true or false\"}\n"
                        "{\"error\": \"line 3: text: found nothing, wanted a string\"}\n"
                        "{\"ids\": [338]}\n");
    assert_int_equal(filter("tokenize", "models/none", "{\"text\":\"a\"}\\n"), 1);
    assert_string_equal(out, "calla: models/none/tokenizer.json: No such file or directory\n");
    assert_int_equal(filter("tokenize", "", ""), 2);
}

static void detokenize(void **state)
{
    (void)state;
    assert_int_equal(filter("detokenize", "models/tiny",
                            "{\"ids\":[338,4052,4074,-1,4090,9223372036854775807]}\\n"
                            "{\"ids\":[338,4052],\"skip_special\":false}\\n"
                            "{\"ids\":[338,4052,4074],\"stream\":true}\\n"
                            "{\"ids\":[],\"stream\":true}\\n"
                            "{\"ids\":[222],\"stream\":true}\\n"),
                     0);
    assert_string_equal(out, "{\"text\": \"The<think>\"}\n"
                             "{\"text\": \"The<|im_end|>\"}\n"
                             "{\"pieces\": [\"The\", \"\", \"<think>\", \"\"]}\n"
                             "{\"pieces\": [\"\"]}\n"
                             "{\"pieces\": [\"\uFFFD\", \"\"]}\n");
}

static void detokenize_refuses(void **state)
{
    (void)state;
    assert_int_equal(filter("detokenize", "models/tiny",
                            "{\"ids\":[338,\"a\"]}\\n{\"ids\":[1.0],\"stream\":true}\\n"
                            "{\"ids\":7}\\n{}\\n"),
                     1);
    assert_string_equal(out, "{\"error\": \"line 1: ids[1]: found no integer, wanted one\"}\n"
                             "{\"error\": \"line 2: ids[0]: found no integer, wanted one\"}\n"
                             "{\"error\": \"line 3: ids: found an integer, wanted an array\"}\n"
                             "{\"error\": \"line 4: ids: found nothing, wanted an array\"}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenize),
        cmocka_unit_test(tokenize_refuses),
        cmocka_unit_test(detokenize),
        cmocka_unit_test(detokenize_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
