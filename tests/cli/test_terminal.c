/* cli/terminal and base/error: controls do not reach a terminal; a pipe gets all bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/terminal.h"

/* What a reader gets of a text that is written to `stream`. */
static void assert_shown(FILE *stream, int reader, const char *text, size_t length,
                         const char *shown, size_t shown_length)
{
    char found[256];
    assert_true(terminal_write(stream, text, length));
    assert_int_equal(fflush(stream), 0);
    ssize_t n = read(reader, found, sizeof found);
    assert_int_equal(n, shown_length);
    assert_memory_equal(found, shown, shown_length);
}

static void controls_stop_at_a_terminal(void **state)
{
    (void)state;
    int reader = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(reader >= 0 && grantpt(reader) == 0 && unlockpt(reader) == 0);
    int writer = open(ptsname(reader), O_RDWR | O_NOCTTY);
    struct termios mode;
    assert_int_equal(tcgetattr(writer, &mode), 0);
    cfmakeraw(&mode); /* newlines stay as they are */
    assert_int_equal(tcsetattr(writer, TCSANOW, &mode), 0);
    FILE *stream = fdopen(writer, "w");
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain \t text\n", "plain \t text\n"},
        {"\033]0;title\a \033[2J", "?]0;title? ?[2J"},
        {"\xc2\x9b 31m \xc2\x80\xc2\x9f\xc2\xa0\xc3\x9b", "? 31m ??\xc2\xa0\xc3\x9b"},
        {"a\r\nb\rc\r", "a\nb?c?"},
        {"\x7f\b\v\x01", "????"},
        {"\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80"},
        {"cut \xc2", "cut \xc2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_shown(stream, reader, cases[i].text, strlen(cases[i].text), cases[i].shown,
                     strlen(cases[i].shown));
    assert_shown(stream, reader, "a\0b", 3, "a?b", 3);
    fclose(stream);
    close(reader);
}

static void pipes_get_all(void **state)
{
    (void)state;
    int ends[2];
    static const char text[] = "\033[31m\0\xc2\x9b\r\n";
    assert_int_equal(pipe(ends), 0);
    FILE *stream = fdopen(ends[1], "w");
    assert_shown(stream, ends[0], text, sizeof text - 1, text, sizeof text - 1);
    fclose(stream);
    close(ends[0]);
}

static void errors_hold_no_controls(void **state)
{
    (void)state;
    struct error error;
    error_set(&error, STATUS_INVALID, "%s",
              "a\033[1m \xc2\x9b"
              "1m \xc2\xa0 \xc3\x9b \x7f");
    assert_string_equal(error.message, "a?[1m ??1m \xc2\xa0 \xc3\x9b ?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controls_stop_at_a_terminal),
        cmocka_unit_test(pipes_get_all),
        cmocka_unit_test(errors_hold_no_controls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
