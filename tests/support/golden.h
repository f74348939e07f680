/* JSON lines of tests/golden, for tests that go through all of them. */
#pragma once

#include <jansson.h>
#include <stddef.h>

/* One line: its number from 1, its bytes (no newline, no NUL), and the object in it, which is
 * freed after the call; NULL when the parser refuses the line. */
struct golden_line {
    int number;
    const char *text;
    size_t length;
    json_t *object;
};

/* Calls `each` for every line; fails the test when the file cannot be read. Gives the count. */
int golden_each(const char *path, void (*each)(void *context, const struct golden_line *line),
                void *context);
