/* Tokens on their way from the engine's thread to the one that waits for them: a bounded queue that
 * never makes the sender wait. One sender, one reader. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/generation.h"

struct mailbox {
    unsigned char *data; /* [capacity][size] */
    size_t size;         /* of an element: struct generated with as many alternatives as wanted */
    int n_top;
    size_t capacity, start, length;
};

/* For options->n_top alternatives with each token. */
enum status mailbox_init(struct mailbox *mailbox, int capacity, int n_top, struct error *error);
void mailbox_clear(struct mailbox *mailbox);
/* False: full. */
bool mailbox_put(struct mailbox *mailbox, const struct generated *generated);
/* At most n; gives their number. */
int mailbox_take(struct mailbox *mailbox, struct generated *out, int n);
