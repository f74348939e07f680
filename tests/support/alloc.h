/* A gate in front of malloc, calloc, realloc, aligned_alloc and free for tests that let allocations
 * fail. Programs named tests/LAYER/alloc_NAME.c are linked with it (GNU ld's --wrap; `make
 * check-alloc`): every allocation that the project's own code makes goes through it, in strdup,
 * asprintf and jansson too. What libc allocates for itself neither counts nor fails; utf8proc is
 * called only where it allocates nothing. jansson's parser is spared: out of memory, version 2.14
 * calls the text invalid, drops a byte of a long string, or ends in an assertion.
 *
 * Most tests need only alloc_sweep. Safe with several threads; one sweep at a time. */
#pragma once

#include <stddef.h>

#include "base/error.h"

/* What is tested: makes everything it needs, frees everything it made, whatever happens, and
 * returns the status of the first step that failed. It must do the same each time it is run, and
 * use no cmocka assert (they would leave it half way). */
typedef enum status alloc_body(void *context, struct error *error);

/* Runs `body` once undisturbed: it must return STATUS_OK. Then for each allocation it made, or for
 * `max_points` of them spread evenly over the run (0: all), twice more: with that one allocation
 * failing, and with it and all later ones failing. Each of these must return STATUS_NO_MEMORY with
 * a message, and no run may leave anything allocated. Fails the cmocka test otherwise, naming the
 * allocation's number; returns the number of allocations of the undisturbed run.
 */
size_t alloc_sweep(alloc_body *body, void *context, size_t max_points);

/* The parts of a sweep. From alloc_start on, allocations are counted, from 1; those from
 * `fail_from` to `fail_to` fail (0, 0: none). alloc_stop ends it and returns the count. */
void alloc_start(size_t fail_from, size_t fail_to);
size_t alloc_stop(void);
/* Blocks allocated since the last alloc_start and not freed yet. */
size_t alloc_live(void);
