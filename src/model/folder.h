/* Whether a folder can be a checkpoint at all, asked before its files are read: a wrong path is the
 * first thing that goes wrong, so the message says what is there and how to get a model. */
#pragma once

#include "base/error.h"

/* A folder with a config.json. Reads nothing; what only opening can tell is no error here. */
enum status folder_check(const char *folder, struct error *error);
/* "FOLDER: found NO_WHAT, only a, b and 3 more; wanted …". Gives STATUS_IO. */
enum status folder_refuse(const char *folder, const char *no_what, struct error *error);
