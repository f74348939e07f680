#include "engine/chunk.h"

#define START 128

void chunk_size_init(struct chunk_size *size, double seconds, int32_t most)
{
    *size = (struct chunk_size){seconds, most < START ? most : START, most, false};
}

int32_t chunk_size_next(const struct chunk_size *size)
{
    return size->now > CHUNK_LEAST ? size->now - size->now % CHUNK_LEAST : size->now;
}

static void set(struct chunk_size *size, double n)
{
    n = n < CHUNK_LEAST ? CHUNK_LEAST : n;
    size->now = n < size->most ? (int32_t)n : size->most;
}

void chunk_size_guess(struct chunk_size *size, int32_t n, double seconds)
{
    if (!size->learned && n >= CHUNK_LEAST && seconds > 0)
        set(size, n * size->seconds / seconds);
}

void chunk_size_learn(struct chunk_size *size, int32_t n, double seconds)
{
    bool whole = n >= chunk_size_next(size);
    if (n < 1 || seconds <= 0 || (!whole && seconds <= size->seconds))
        return; /* a chunk that was cut short says nothing about longer ones */
    double factor = size->seconds / seconds;
    /* from the size before it was rounded, or small steps up would never add up to one */
    set(size, (whole ? size->now : n) * (factor > 2 ? 2 : factor < 0.25 ? 0.25 : factor));
    size->learned = true;
}
