/* Writes a whole file. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/* Makes the file or replaces what is in it. Errors: STATUS_IO with the path and the reason. */
enum status file_write(const char *path, const void *data, size_t length, struct error *error);
