/* Messages that a user types or pipes in. On a terminal lines are edited and remembered (libedit):
 * a pasted text keeps its newlines and is one message, Ctrl-C empties the line. Otherwise lines are
 * read as they are. On both a line that ends with a backslash goes on in the next one, and a block
 * from """ to """ is one message. */
#pragma once

#include <stdbool.h>

#include "base/bytes.h"
#include "base/error.h"

struct line_input;

enum input_kind {
    INPUT_MESSAGE,
    INPUT_COMMAND,   /* one line that begins with a slash; `//` begins a message with one */
    INPUT_EMPTY,     /* nothing but white space */
    INPUT_INTERRUPT, /* Ctrl-C, with nothing typed */
    INPUT_CLEARED,   /* Ctrl-C: what was typed is dropped */
    INPUT_END,       /* Ctrl-D, the end of the file */
    INPUT_BAD,       /* not UTF-8, a block without end; the error says it */
    INPUT_FAILED,    /* reading is over for good: the error says why */
};

/* Reads stdin. `history` is the path of the file that remembers lines, NULL for none; it is used on
 * a terminal only, and `note` gets a line, or "", when it is there but not used. */
enum status line_input_open(const char *history, struct line_input **out, struct error *note,
                            struct error *error);
void line_input_close(struct line_input *input);
/* Whether a person types: stdin and stdout or stderr are a terminal. */
bool line_input_is_terminal(const struct line_input *input);
/* Reads the next message; `text` is emptied first. `initial`, if not NULL, stands in the line from
 * the start, to be edited (on a terminal). */
enum input_kind line_input_read(struct line_input *input, const char *initial, struct bytes *text,
                                struct error *error);
