#include "support/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *block);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **out, const char *format, ...);
json_t *__real_json_loadb(const char *text, size_t length, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t length, size_t flags, json_error_t *error);

/* Blocks that are alive, so that the free of a block from elsewhere (getline, strdup) is told from
 * that of a counted one. A table with linear probing; it must hold the live blocks of the largest
 * test, and aborts when it is too small. */
#define SLOTS ((size_t)1 << 21)

static struct {
    pthread_mutex_t lock;
    bool on;
    size_t count, fail_from, fail_to;
    bool sparing; /* in jansson's parser now */
    size_t live;
    void **slots;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t slot_of(const void *block)
{
    return (size_t)(((uintptr_t)block >> 4) * 0x9E3779B97F4A7C15u >> 43) % SLOTS;
}

static void add(void *block)
{
    if (gate.live > SLOTS / 2)
        abort();
    size_t i = slot_of(block);
    while (gate.slots[i])
        i = (i + 1) % SLOTS;
    gate.slots[i] = block;
    gate.live++;
}

static void drop(const void *block)
{
    if (!gate.slots)
        return;
    size_t i = slot_of(block);
    while (gate.slots[i] && gate.slots[i] != block)
        i = (i + 1) % SLOTS;
    if (!gate.slots[i])
        return;
    gate.live--;
    gate.slots[i] = NULL;
    /* what follows may have been pushed on by the block that is gone: lay it anew */
    for (size_t j = (i + 1) % SLOTS; gate.slots[j]; j = (j + 1) % SLOTS) {
        void *moved = gate.slots[j];
        gate.slots[j] = NULL;
        gate.live--;
        add(moved);
    }
}

/* Counts one allocation; true when it has to fail. Called with the lock held. */
static bool refused(void)
{
    if (!gate.on || gate.sparing)
        return false;
    gate.count++;
    return gate.count >= gate.fail_from && gate.count <= gate.fail_to;
}

static void *allocate(size_t n, size_t size, bool zeroed)
{
    pthread_mutex_lock(&gate.lock);
    void *block = NULL;
    if (!refused())
        block = zeroed ? __real_calloc(n, size) : __real_malloc(size);
    if (block && gate.on)
        add(block);
    pthread_mutex_unlock(&gate.lock);
    return block;
}

void *__wrap_malloc(size_t size)
{
    return allocate(1, size, false);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return allocate(n, size, true);
}

void *__wrap_realloc(void *old, size_t size)
{
    pthread_mutex_lock(&gate.lock);
    void *block = NULL;
    if (!refused()) {
        if (old)
            drop(old);
        block = __real_realloc(old, size);
        if (gate.on && (block || (old && size)))
            add(block ? block : old);
    }
    pthread_mutex_unlock(&gate.lock);
    return block;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    pthread_mutex_lock(&gate.lock);
    void *block = refused() ? NULL : __real_aligned_alloc(alignment, size);
    if (block && gate.on)
        add(block);
    pthread_mutex_unlock(&gate.lock);
    return block;
}

/* libc's own calls of malloc do not come through here, so these are made of the above. */
char *__wrap_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = allocate(1, size, false);
    return copy ? memcpy(copy, text, size) : NULL;
}

int __wrap_asprintf(char **out, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    *out = length < 0 ? NULL : allocate(1, (size_t)length + 1, false);
    if (*out)
        vsnprintf(*out, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return *out ? length : -1;
}

json_t *__wrap_json_loadb(const char *text, size_t length, size_t flags, json_error_t *error)
{
    gate.sparing = true;
    json_t *value = __real_json_loadb(text, length, flags, error);
    gate.sparing = false;
    return value;
}

void __wrap_free(void *block)
{
    pthread_mutex_lock(&gate.lock);
    if (block)
        drop(block);
    __real_free(block);
    pthread_mutex_unlock(&gate.lock);
}

void alloc_start(size_t fail_from, size_t fail_to)
{
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    pthread_mutex_lock(&gate.lock);
    if (!gate.slots)
        gate.slots = __real_calloc(SLOTS, sizeof *gate.slots);
    if (!gate.slots)
        abort();
    if (gate.live > 0)
        memset(gate.slots, 0, SLOTS * sizeof *gate.slots);
    gate.on = true;
    gate.count = gate.live = 0;
    gate.fail_from = fail_from;
    gate.fail_to = fail_to;
    pthread_mutex_unlock(&gate.lock);
}

size_t alloc_stop(void)
{
    pthread_mutex_lock(&gate.lock);
    gate.on = false;
    size_t count = gate.count;
    pthread_mutex_unlock(&gate.lock);
    return count;
}

size_t alloc_live(void)
{
    pthread_mutex_lock(&gate.lock);
    size_t live = gate.live;
    pthread_mutex_unlock(&gate.lock);
    return live;
}

/* One run of the body with allocations [from, to] failing; fails the test with `n`, `how`. */
static size_t run(alloc_body *body, void *context, size_t from, size_t to, enum status wanted)
{
    struct error error = {0};
    alloc_start(from, to);
    enum status status = body(context, &error);
    size_t count = alloc_stop();
    const char *how = to == from ? "" : " and all later ones";
    if (status != wanted)
        fail_msg("allocation %zu%s failing: found status %d (%s), wanted %d", from, how,
                 (int)status, error.message, (int)wanted);
    if (status != STATUS_OK && !error.message[0])
        fail_msg("allocation %zu%s failing: no message", from, how);
    if (alloc_live() != 0)
        fail_msg("allocation %zu%s failing: %zu blocks were not freed", from, how, alloc_live());
    return count;
}

size_t alloc_sweep(alloc_body *body, void *context, size_t max_points)
{
    size_t count = run(body, context, 0, 0, STATUS_OK);
    size_t points = max_points == 0 || max_points > count ? count : max_points;
    for (size_t i = 0; i < points; i++) {
        size_t n = 1 + i * count / points;
        run(body, context, n, n, STATUS_NO_MEMORY);
        run(body, context, n, SIZE_MAX, STATUS_NO_MEMORY);
    }
    return count;
}
