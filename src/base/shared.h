/* Something that several threads hold; the last one to let go frees it. The first member of a
 * struct: `free` gets it back and casts. Its maker holds it once. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

struct shared {
    atomic_int holders;
    void (*free)(struct shared *shared);
};

static inline void shared_init(struct shared *shared, void (*free)(struct shared *shared))
{
    atomic_init(&shared->holders, 1);
    shared->free = free;
}

/* Of NULL, too, and so below. */
static inline struct shared *shared_hold(struct shared *shared)
{
    if (shared)
        atomic_fetch_add(&shared->holders, 1);
    return shared;
}

static inline void shared_release(struct shared *shared)
{
    if (shared && atomic_fetch_sub(&shared->holders, 1) == 1)
        shared->free(shared);
}
