#include "support/http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

struct http_notes http_notes;

static void answer_ok(void *context, struct http_exchange *exchange)
{
    (void)context;
    atomic_fetch_add(&http_notes.handled, 1);
    http_answer(exchange, 200, "text/plain", "ok", 2);
}

static void answer_body(void *context, struct http_exchange *exchange)
{
    size_t length;
    const char *body = http_body(exchange, &length);
    struct bytes copy = {0};
    (void)context;
    atomic_fetch_add(&http_notes.handled, 1);
    bytes_append(&copy, body, length);
    assert_int_equal(body[length], '\0');
    http_header(exchange, "X-Extra", "yes");
    http_header(exchange, "X-Bad", "a\r\nb");
    http_answer_bytes(exchange, 200, "application/json", &copy);
}

static void answer_path(void *context, struct http_exchange *exchange)
{
    (void)context;
    atomic_fetch_add(&http_notes.handled, 1);
    http_answer(exchange, 200, "text/plain", http_path(exchange), strlen(http_path(exchange)));
}

static void forget(void *context, struct http_exchange *exchange)
{
    (void)context, (void)exchange;
    atomic_fetch_add(&http_notes.handled, 1);
}

static void block(void *context, struct http_exchange *exchange)
{
    (void)context;
    atomic_fetch_add(&http_notes.blocked, 1);
    double until = clock_seconds() + 10;
    while (clock_seconds() < until && !http_client_gone(exchange))
        usleep(20000);
    if (clock_seconds() < until)
        atomic_store(&http_notes.noticed, clock_seconds());
    atomic_fetch_sub(&http_notes.blocked, 1);
    http_answer(exchange, 200, "text/plain", "done", 4);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The body: "count N" gives N numbered lines, "pace N" one every 20 ms; "silent" nothing, ever;
 * "flood" 4 KB at each call, for ever; "first" one line, then nothing; "empty" ends at once; "fail"
 * runs out of memory. */
struct stream {
    char what[16];
    unsigned n, done;
};

static enum http_more produce(void *context, struct bytes *out)
{
    struct stream *stream = context;
    static const char block_of[4096];
    size_t before = out->length;
    enum http_more more = HTTP_MORE;
    atomic_fetch_add(&http_notes.produced, 1);
    if (strcmp(stream->what, "pace") == 0)
        usleep(20000);
    if (strcmp(stream->what, "count") == 0 || strcmp(stream->what, "pace") == 0) {
        if (stream->done < stream->n)
            bytes_format(out, "line %u\n", stream->done++);
        more = stream->done < stream->n ? HTTP_MORE : HTTP_END;
    } else if (strcmp(stream->what, "flood") == 0) {
        bytes_append(out, block_of, sizeof block_of);
    } else if (strcmp(stream->what, "empty") == 0) {
        more = HTTP_END;
    } else if (strcmp(stream->what, "fail") == 0) {
        out->failed = true;
    } else if (strcmp(stream->what, "silent") != 0 && stream->done++ == 0) {
        bytes_append_text(out, "line\n");
    } else {
        usleep(100000);
    }
    atomic_fetch_add(&http_notes.bytes, out->length - before);
    return more;
}

static void end_stream(void *context, bool gone)
{
    atomic_store(&http_notes.noticed, clock_seconds());
    if (gone)
        atomic_fetch_add(&http_notes.released_gone, 1);
    atomic_fetch_add(&http_notes.released, 1);
    free(context);
}

static void begin_stream(void *context, struct http_exchange *exchange)
{
    struct stream *stream = calloc(1, sizeof *stream);
    size_t length;
    (void)context;
    sscanf(http_body(exchange, &length), "%15s %u", stream->what, &stream->n);
    http_stream(exchange, "text/event-stream", produce, stream, end_stream);
}

/* ---- the server ------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note(void *context, const struct http_record *record)
{
    (void)context;
    pthread_mutex_lock(&lock);
    http_notes.last.status = record->status;
    http_notes.last.client_gone = record->client_gone;
    http_notes.last.timed_out = record->timed_out;
    http_notes.last.bytes = record->bytes;
    snprintf(http_notes.last.id, sizeof http_notes.last.id, "%s", record->id);
    snprintf(http_notes.last.path, sizeof http_notes.last.path, "%s", record->path);
    snprintf(http_notes.last.method, sizeof http_notes.last.method, "%s", record->method);
    snprintf(http_notes.last.peer, sizeof http_notes.last.peer, "%s", record->peer);
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&http_notes.logged, 1);
}

struct http_server *http_fixture_start(struct http_options options)
{
    static const struct http_route routes[] = {
        {"GET", "/health", .open = true, .handler = answer_ok},
        {"POST", "/echo", .handler = answer_body},
        {"GET", "/items", .handler = answer_path},
        {"GET", "/items/", .prefix = true, .handler = answer_path},
        {"DELETE", "/items/", .prefix = true, .handler = answer_path},
        {"POST", "/block", .handler = block},
        {"POST", "/stream", .handler = begin_stream},
        {"GET", "/stream", .handler = begin_stream},
        {"GET", "/silent", .handler = forget},
    };
    struct http_server *server;
    struct error error;
    memset(&http_notes, 0, sizeof http_notes);
    options.routes = routes;
    options.n_routes = sizeof routes / sizeof routes[0];
    options.log = note;
    if (http_server_start(&options, &server, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return server;
}

void http_await(atomic_uint *counter, unsigned wanted)
{
    double until = clock_seconds() + 10;
    while (atomic_load(counter) != wanted && clock_seconds() < until)
        usleep(2000);
    assert_int_equal(atomic_load(counter), wanted);
}

unsigned http_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned n = 0;
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
}
