#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/http_parts.h"

/* So much of a body whose request is refused is read, so that the connection can go on. */
#define DROPPED_MOST (1 << 20)
/* A body whose parts may have taken memory that is worth giving back. */
#define LARGE (1 << 20)

/* ---- accessors ------------------------------------------------------------------------------- */

const char *http_method(const struct http_exchange *exchange)
{
    return exchange->method;
}

const char *http_path(const struct http_exchange *exchange)
{
    return exchange->path;
}

const char *http_request_header(const struct http_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, name);
}

const char *http_body(const struct http_exchange *exchange, size_t *length)
{
    *length = exchange->body.length;
    return exchange->body.data;
}

const char *http_id(const struct http_exchange *exchange)
{
    return exchange->id;
}

const char *http_peer(const struct http_exchange *exchange)
{
    return exchange->connection->peer;
}

bool http_client_gone(struct http_exchange *exchange)
{
    if (!atomic_load(&exchange->gone) && http_watch_gone(exchange->connection->fd))
        atomic_store(&exchange->gone, true);
    return atomic_load(&exchange->gone);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static bool is_short_and_printable(const char *id)
{
    size_t length = strlen(id);
    for (size_t i = 0; i < length; i++)
        if (id[i] <= ' ' || id[i] > '~')
            return false;
    return length > 0 && length < HTTP_ID_SIZE;
}

static struct http_connection *connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* At the request's first line. NULL when memory runs out: the connection ends then. */
void *http_exchange_begin(void *context, const char *uri, struct MHD_Connection *mhd)
{
    struct http_server *server = context;
    struct http_connection *connection = connection_of(mhd);
    struct http_exchange *exchange = connection ? calloc(1, sizeof *exchange) : NULL;
    if (!exchange)
        return NULL;
    exchange->connection = connection;
    exchange->mhd = mhd;
    exchange->began = clock_seconds();
    exchange->path = uri ? http_path_decode(uri, &exchange->path_valid) : NULL;
    snprintf(exchange->id, sizeof exchange->id, "req_%s%08llx", server->id_prefix,
             (unsigned long long)atomic_fetch_add(&server->n_ids, 1));
    http_watch(connection, true, server->options.request_seconds);
    return exchange;
}

/* When the headers are there. An answer given before the body ends the connection, so it waits for
 * the body where that is short and sure to come. */
static enum MHD_Result on_headers(struct http_exchange *exchange, const char *method)
{
    struct http_connection *connection = exchange->connection;
    exchange->method = method;
    const char *id = http_request_header(exchange, "X-Request-Id");
    if (id && is_short_and_printable(id))
        snprintf(exchange->id, sizeof exchange->id, "%s", id);
    http_watch_running(connection, true);
    http_watch(connection, true, connection->server->options.request_seconds);
    http_gate(exchange);
    uint64_t told = http_told_length(exchange);
    if (!exchange->answered || told == 0)
        return MHD_YES;
    exchange->dropped = true;
    if (!exchange->close && told <= DROPPED_MOST && !http_request_header(exchange, "Expect"))
        return MHD_YES;
    exchange->linger = true;
    return http_answer_queue(exchange);
}

/* ---- the body -------------------------------------------------------------------------------- */

static enum MHD_Result on_piece(struct http_exchange *exchange, const char *data, size_t size)
{
    size_t limit = exchange->connection->server->options.body_limit;
    if (atomic_load(&exchange->connection->expired))
        return MHD_NO; /* http_exchange_end says it */
    if (exchange->dropped)
        return MHD_YES;
    if (size > limit - exchange->received) {
        char message[128];
        snprintf(message, sizeof message, "the request body has more than %zu bytes", limit);
        http_problem_now(exchange, 413, NULL, message);
        return MHD_NO;
    }
    exchange->received += size;
    bytes_append(&exchange->body, data, size);
    return MHD_YES;
}

static enum MHD_Result on_whole(struct http_exchange *exchange)
{
    http_watch(exchange->connection, false, INFINITY);
    if (!exchange->answered && !bytes_terminate(&exchange->body))
        http_problem(exchange, 500, HTTP_FAILED, NULL, NULL, "out of memory for the request body");
    if (!exchange->answered)
        exchange->route->handler(exchange->connection->server->options.context, exchange);
    bytes_clear(&exchange->body); /* a stream may last for hours */
    if (!exchange->answered)
        http_problem(exchange, 500, HTTP_FAILED, NULL, NULL, "the request was not answered");
    return http_answer_queue(exchange);
}

enum MHD_Result http_exchange_handle(void *server, struct MHD_Connection *mhd, const char *url,
                                     const char *method, const char *version, const char *data,
                                     size_t *size, void **context)
{
    struct http_exchange *exchange = *context;
    (void)server, (void)mhd, (void)url, (void)version;
    if (!exchange)
        return MHD_NO;
    if (!exchange->method)
        return on_headers(exchange, method);
    if (*size > 0) {
        enum MHD_Result result = on_piece(exchange, data, *size);
        *size = 0;
        return result;
    }
    return on_whole(exchange);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void write_record(struct http_exchange *exchange, bool gone)
{
    const struct http_options *options = &exchange->connection->server->options;
    if (!options->log)
        return;
    struct http_record record = {
        .id = exchange->id,
        .method = exchange->method ? exchange->method : "?",
        .path = exchange->path ? exchange->path : "?",
        .peer = exchange->connection->peer,
        .status = exchange->status,
        .bytes = exchange->sent,
        .seconds = clock_seconds() - exchange->began,
        .client_gone = gone,
        .timed_out = atomic_load(&exchange->connection->expired),
    };
    options->log(options->log_context, &record);
}

/* The status of what libmicrohttpd answered itself. */
static unsigned own_status(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_HTTP_STATUS);
    return info ? info->http_status : 0;
}

/* Called once for each begun exchange, while the socket is open, on the connection's thread. */
void http_exchange_end(void *context, struct MHD_Connection *mhd, void **slot,
                       enum MHD_RequestTerminationCode code)
{
    struct http_server *server = context;
    struct http_exchange *exchange = *slot;
    *slot = NULL;
    if (!exchange)
        return;
    struct http_connection *connection = exchange->connection;
    bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    bool expired = atomic_load(&connection->expired);
    if (!exchange->answered || exchange->response) { /* nothing was given to libmicrohttpd */
        exchange->sent = 0;
        exchange->status = own_status(mhd);
        exchange->linger = exchange->status != 0;
        if (expired && exchange->status == 0)
            http_problem_now(exchange, 408, NULL, "the request did not arrive in time");
    }
    bool gone = !whole && !exchange->linger;
    if (exchange->stream.release)
        exchange->stream.release(exchange->stream.context, gone);
    write_record(exchange, gone);
    if (exchange->linger)
        http_watch_linger(connection->fd);
    http_watch(connection, false, server->options.idle_seconds);
    http_watch_running(connection, false);
    if (atomic_load(&server->stopping))
        shutdown(connection->fd, SHUT_RDWR); /* what was sent still arrives */
    if (exchange->response)
        MHD_destroy_response(exchange->response);
    bool large = exchange->received > LARGE;
    free(exchange->path);
    bytes_clear(&exchange->body);
    bytes_clear(&exchange->fields);
    bytes_clear(&exchange->stream.out);
    free(exchange);
    if (large)
        memory_trim();
}
