/* Whether a checkpoint brings a chat template other than the one that text/template.c implements.
 * The engine renders with its own in any case, so users of such a checkpoint must be told. */
#pragma once

#include <stdbool.h>

#include "base/error.h"

/* True, with one line for the user in `note`, when FOLDER/chat_template.jinja is another template
 * or cannot be read. False when it is the known one or there is none. */
bool template_differs(const char *folder, struct error *note);
