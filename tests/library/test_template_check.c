/* library/template_check: silent for the known template and for none, one line for another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "library/template_check.h"
#include "support/checkpoint_writer.h"
#include "text/template.h"

static void test_template(void **state)
{
    (void)state;
    struct error note;
    assert_string_equal(template_sha256,
                        "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259");
    assert_false(template_differs("models/tiny", &note)); /* has none */
    struct checkpoint_writer writer;
    writer_init_tiny(&writer);
    writer_write_file(&writer, "chat_template.jinja", "abc", 3);
    assert_true(template_differs(writer.folder, &note));
    assert_non_null(strstr(note.message, "chat_template.jinja: found another chat template"));
    assert_non_null(
        strstr(note.message, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    assert_non_null(strstr(note.message, template_sha256));
    writer_remove(&writer, "chat_template.jinja");
    char path[400];
    snprintf(path, sizeof path, "%s/chat_template.jinja", writer.folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_true(template_differs(writer.folder, &note));
    assert_non_null(strstr(note.message, path));
    writer_clear(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
