#include "engine/mailbox.h"

#include <stdlib.h>
#include <string.h>

enum status mailbox_init(struct mailbox *mailbox, int capacity, int n_top, struct error *error)
{
    const struct generated *one = NULL;
    *mailbox = (struct mailbox){.n_top = n_top > 0 ? n_top : 0, .capacity = (size_t)capacity};
    mailbox->size = offsetof(struct generated, top) + (size_t)mailbox->n_top * sizeof one->top[0];
    mailbox->data = malloc(mailbox->capacity * mailbox->size);
    return mailbox->data ? STATUS_OK : error_no_memory(error, "a request's mailbox");
}

void mailbox_clear(struct mailbox *mailbox)
{
    free(mailbox->data);
    *mailbox = (struct mailbox){0};
}

bool mailbox_put(struct mailbox *mailbox, const struct generated *generated)
{
    if (mailbox->length == mailbox->capacity)
        return false;
    size_t at = (mailbox->start + mailbox->length++) % mailbox->capacity;
    memcpy(mailbox->data + at * mailbox->size, generated, mailbox->size);
    return true;
}

int mailbox_take(struct mailbox *mailbox, struct generated *out, int n)
{
    int taken = 0;
    for (; taken < n && mailbox->length > 0; taken++, mailbox->length--) {
        memcpy(&out[taken], mailbox->data + mailbox->start * mailbox->size, mailbox->size);
        mailbox->start = (mailbox->start + 1) % mailbox->capacity;
    }
    return taken;
}
