/* How every layer reports failure: a status to branch on and one line for the user.
 *
 * A function that can fail returns enum status and takes a struct error * as its last argument.
 * The message is made once, where the facts are known: what, which file, field or tensor, what was
 * found and what was wanted. Callers pass it on unchanged. A NULL error is allowed everywhere. */
#pragma once

#include <stdarg.h>

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,     /* the input is wrong: a file, a field, an argument */
    STATUS_UNSUPPORTED, /* valid, but more than the program handles */
    STATUS_IO,          /* the system refused: open, read, write */
    STATUS_NO_MEMORY,   /* an allocation failed, or a plan does not fit */
    STATUS_CONTEXT,     /* the sequence has no room for the tokens */
    STATUS_CANCELLED,   /* the cancel flag was seen */
    STATUS_DEVICE,      /* the backend failed, or the sequence is unusable after a failed step */
    STATUS_BUSY,        /* a resource is in use; later it may work */
};

struct error {
    enum status status;
    char message[600];
};

/* Fills `error` and returns `status`. One line: control characters in the formatted text are
 * and bytes that are no UTF-8 are replaced by '?', and text that does not fit loses its middle. */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum status error_vset(struct error *error, enum status status, const char *format,
                       va_list arguments) __attribute__((format(printf, 3, 0)));

/* The one message for a failed allocation; `what` names the thing that was to be held. */
enum status error_no_memory(struct error *error, const char *what);
