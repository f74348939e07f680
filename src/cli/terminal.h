/* Writing text that a model, a tool or a file gave. On a terminal control characters would be
 * commands: to change its title, to hide or retype what stands there. A pipe gets all bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Whole UTF-8 characters; on a terminal '?' stands for controls but newline and tab, and a carriage
 * return before a newline is left out. False: they were not written, errno says why. */
bool terminal_write(FILE *stream, const char *text, size_t length);
