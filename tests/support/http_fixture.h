/* A server on a free port with a few routes that do what tests of HTTP need:
 *   GET /health (no key)     "ok"
 *   POST /echo               the body
 *   GET /items/…             the decoded path
 *   POST /block              until the client is gone: notes when; else 200 after 10 s
 *   POST /stream             what the body says, see http_fixture.c
 *   GET /silent              forgets to answer
 * One server at a time. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "server/http.h"

struct http_notes {
    atomic_uint handled, blocked;   /* requests that reached a handler; that are in /block now */
    atomic_uint produced, released; /* calls of producers; of releases */
    atomic_uint released_gone;      /* with `gone` */
    atomic_ullong bytes;            /* that producers gave */
    _Atomic double noticed;         /* on the clock, when the last client was found gone */
    atomic_uint logged;
    struct {
        unsigned status;
        bool client_gone, timed_out;
        unsigned long long bytes;
        char id[80], path[64], method[16], peer[64];
    } last; /* record; read it when `logged` has grown */
};

extern struct http_notes http_notes;

/* Starts with the given options, whose routes, context and log it sets; forgets the notes. */
struct http_server *http_fixture_start(struct http_options options);
/* Waits until a counter has a value; fails after 10 s. */
void http_await(atomic_uint *counter, unsigned wanted);
unsigned http_descriptors(void); /* open in this process */
