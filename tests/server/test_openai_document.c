/* docs/api.md against the parsers' tables: the same fields under the same words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/openai_fields.h"

static const char *word_of(enum openai_handling handling)
{
    return handling == OPENAI_OBEYED    ? "obeyed"
           : handling == OPENAI_REFUSED ? "refused"
                                        : "ignored";
}

static char *read_document(void)
{
    FILE *file = fopen("docs/api.md", "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

/* The section of a path holds a row for each field of the groups, and no other. */
static void check_section(const char *text, const char *path, const struct openai_group *groups)
{
    char heading[64], row[128];
    snprintf(heading, sizeof heading, "\n## POST %s\n", path);
    const char *begin = strstr(text, heading);
    assert_non_null(begin);
    const char *next = strstr(begin + 4, "\n## ");
    char *section = strndup(begin, next ? (size_t)(next - begin) : strlen(begin));
    size_t n = 0, rows = 0;
    for (const struct openai_group *group = groups; group->fields; group++)
        for (const struct openai_field *field = group->fields; field->name; field++, n++) {
            snprintf(row, sizeof row, "\n| `%s` | %s | %s", field->name, word_of(field->handling),
                     field->required ? "required |" : "");
            if (!strstr(section, row))
                fail_msg("docs/api.md, %s: no row begins with '%s'", path, row + 1);
        }
    for (const char *at = section; (at = strstr(at, "\n| `")) != NULL; at++)
        rows++;
    if (n != rows)
        fail_msg("docs/api.md, %s: found %zu rows, wanted %zu", path, rows, n);
    free(section);
}

static void document_lists_all_fields(void **state)
{
    (void)state;
    char *text = read_document();
    check_section(text, "/v1/chat/completions", openai_chat_groups);
    check_section(text, "/v1/completions", openai_completion_groups);
    check_section(text, "/tokenize", openai_tokenize_groups);
    check_section(text, "/apply-template", openai_template_groups);
    check_section(text, "/detokenize", openai_detokenize_groups);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(document_lists_all_fields)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
