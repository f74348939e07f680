/* `calla inspect --verify`: the files of a folder against those of the published checkpoint. */
#pragma once

#include <stdbool.h>

/* Prints a line a file, or one JSON object; EXIT_DONE only when every file is the published one. */
int verify_run(const char *folder, bool json);
