#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "server/http_parts.h"

/* What libmicrohttpd takes at once from us for HTTP/1.0; chunks it sizes itself. */
#define BLOCK 16384

#define LOOK_SECONDS 0.1 /* while the producer gives all the time */

/* Calls the producer until it gives something. What was sent shows by itself when the client has
 * closed, so a producer that gives all the time costs no system call more for each piece. */
static bool fill(struct http_exchange *exchange)
{
    double now = clock_seconds();
    bool look = now - exchange->stream.looked >= LOOK_SECONDS;
    bytes_reset(&exchange->stream.out);
    exchange->stream.taken = 0;
    while (exchange->stream.out.length == 0 && !exchange->stream.ended) {
        if (look && http_client_gone(exchange))
            return false;
        exchange->stream.looked = look ? now : exchange->stream.looked;
        look = true;
        enum http_more more =
            exchange->stream.producer(exchange->stream.context, &exchange->stream.out);
        exchange->stream.ended = more == HTTP_END;
        if (exchange->stream.out.failed)
            return false;
    }
    return true;
}

/* libmicrohttpd asks when all it had is with the kernel. */
static ssize_t give(void *context, uint64_t position, char *to, size_t room)
{
    struct http_exchange *exchange = context;
    struct http_connection *connection = exchange->connection;
    struct bytes *out = &exchange->stream.out;
    (void)position;
    if (exchange->stream.taken == out->length) {
        http_watch(connection, false, INFINITY);
        if (!fill(exchange))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        http_watch(connection, false, connection->server->options.idle_seconds);
    }
    size_t left = out->length - exchange->stream.taken, n = left < room ? left : room;
    if (n == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    memcpy(to, out->data + exchange->stream.taken, n);
    exchange->stream.taken += n;
    exchange->sent += n;
    return (ssize_t)n;
}

void http_stream(struct http_exchange *exchange, const char *content_type, http_producer *producer,
                 void *context, http_release *release)
{
    if (exchange->answered) {
        release(context, true);
        return;
    }
    exchange->stream.producer = producer;
    exchange->stream.context = context;
    exchange->stream.release = release; /* called at the exchange's end */
    http_header(exchange, "Cache-Control", "no-cache");
    http_header(exchange, "X-Accel-Buffering", "no");
    exchange->answered = true;
    exchange->status = 200;
    http_header(exchange, "Content-Type", content_type);
    exchange->response =
        strcmp(exchange->method, "HEAD") == 0
            ? MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT)
            : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, give, exchange, NULL);
}
