/* The HTTP side of the server, over libmicrohttpd: it listens, reads requests whole, asks for the
 * key, routes, answers and streams. It knows nothing of the model, and of OpenAI's JSON only the
 * form of an error: {"error": {"message", "type", "param", "code"}}.
 *
 * Threads: each connection has a thread of its own, which runs its handlers and producers, so both
 * may block; they must look at http_client_gone at least every 200 ms while they do. One request of
 * a connection runs at a time; the next ones wait in the socket.
 *
 * Answered before any handler sees the request, always with an error body:
 *   400 unreadable path, two lengths      413 body over the limit (at once if its length is told)
 *   401 no key, or a wrong one            415 a body whose type is plainly not JSON
 *   404, 405 with Allow                   431 headers over the limit
 *   408 request not there in time         503 stopping, or more connections than the limit
 * What libmicrohttpd finds wrong itself (a garbage request line, …) has a right status and no such
 * body. OPTIONS is 204, with Allow; HEAD goes to the handler of GET.
 *
 * When there are as many connections as allowed, a new one takes the place of the one that has been
 * without a request for longest. Where all have one, 32 more get 503 and others are closed.
 *
 * A client that closes its side for writing counts as gone, as in nginx: who still wants the answer
 * keeps the connection open. Bytes of a next request do not. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

struct http_server;
struct http_exchange; /* a request and its answer */

/* Called on the connection's thread when the whole request is there. Gives exactly one answer
 * before it returns (http_answer, http_problem, http_stream); without one it is a 500. `context` is
 * that of the options. */
typedef void http_handler(void *context, struct http_exchange *exchange);

/* The first route that fits wins. */
struct http_route {
    const char *method; /* "GET" (HEAD too), "POST", … */
    const char *path;   /* a whole path; with `prefix` what it begins with, more must follow */
    bool prefix;
    bool open; /* needs no key */
    http_handler *handler;
};

/* What became of a request; the texts live as long as the call. */
struct http_record {
    const char *id, *method, *path, *peer; /* no control characters, valid UTF-8 */
    unsigned status;                       /* 0: none was sent */
    uint64_t bytes;                        /* of the answer's body, as given to the connection */
    double seconds;                        /* since the request's first line */
    bool client_gone;                      /* before all was sent */
    bool timed_out;                        /* the request, or the reading of the answer, stalled */
};
typedef void http_log(void *context, const struct http_record *record);

/* Everything but the keys and origin, which are copied, is read during http_server_start only or,
 * as routes and contexts, must live as long as the server. Zero means the default. */
struct http_options {
    const char *host; /* a name or address, IPv6 also in brackets; NULL: 127.0.0.1 */
    int port;         /* 0: any free one, see http_server_port */
    const struct http_route *routes;
    size_t n_routes;
    void *context; /* of all handlers */
    const char *const *keys;
    size_t n_keys;             /* 0: no key is asked for */
    const char *cors_origin;   /* the value of Access-Control-Allow-Origin; NULL: no CORS headers */
    size_t body_limit;         /* bytes; 32 MiB */
    size_t header_limit;       /* bytes of request line and headers; 64 KiB */
    double request_seconds;    /* for the headers, and again for the body, to arrive whole; 30 */
    double idle_seconds;       /* without a request, or without the client reading its answer; 75 */
    unsigned connection_limit; /* 256, fewer where descriptors are; see above */
    http_log *log;             /* NULL: none; called on the connections' threads */
    void *log_context;
};

/* Listens and begins to serve. STATUS_INVALID and STATUS_IO name --host or --port. */
enum status http_server_start(const struct http_options *options, struct http_server **out,
                              struct error *error);
int http_server_port(const struct http_server *server);
/* Requests whose headers have arrived and whose answer is not yet sent. Any thread. */
unsigned http_server_running(struct http_server *server);
/* Stops listening and closes idle connections at once; new requests get 503. Returns when no
 * request runs any more, after `grace` seconds at most. NULL is allowed. */
void http_server_drain(struct http_server *server, double grace);
/* The same; then the clients of requests that still run count as gone and connections are cut.
 * Returns when all threads have ended, which needs handlers and producers that look (see above),
 * and frees the server. NULL is allowed. */
void http_server_stop(struct http_server *server, double grace);

/* ---- the request; what is given lives as long as the exchange -------------------------------- */

const char *http_method(const struct http_exchange *exchange);
/* Decoded, valid UTF-8 without control characters, without the query; it begins with a slash. */
const char *http_path(const struct http_exchange *exchange);
/* A header's value by its name in any case (the first of several); NULL: absent. Only in the
 * handler. */
const char *http_request_header(const struct http_exchange *exchange, const char *name);
/* The body, with a NUL behind it that is not counted; any bytes. Only in the handler. */
const char *http_body(const struct http_exchange *exchange, size_t *length);
/* Unique, or the client's own x-request-id when that is short and printable; every answer has it.
 */
const char *http_id(const struct http_exchange *exchange);
const char *http_peer(const struct http_exchange *exchange); /* "127.0.0.1:50312" */
/* Whether the client has left, or the server cuts what still runs. Any thread, until the answer is
 * given or, for a stream, until its release. Costs one system call. */
bool http_client_gone(struct http_exchange *exchange);

/* ---- the answer; in the handler only --------------------------------------------------------- */

/* A header of the answer, before it is given. Names and values are copied; values with control
 * characters are left out. */
void http_header(struct http_exchange *exchange, const char *name, const char *value);
void http_answer(struct http_exchange *exchange, unsigned status, const char *content_type,
                 const void *body, size_t length);
/* The same, taking the buffer over: `body` is empty afterwards. One that `failed` becomes a 500. */
void http_answer_bytes(struct http_exchange *exchange, unsigned status, const char *content_type,
                       struct bytes *body);
/* `param` and `code` may be NULL. Bytes of the texts that are no UTF-8 become '?'. */
void http_problem(struct http_exchange *exchange, unsigned status, const char *type,
                  const char *param, const char *code, const char *message);

/* Appends what there is, at best not more than some KB, and says whether more comes; nothing may be
 * appended with either. It is called when all that it gave before is with the kernel, so a client
 * that does not read holds it up. It may block for 200 ms and must when there is nothing: it is
 * called again at once. Memory that runs out in `out` ends the stream as a vanished client does. */
enum http_more { HTTP_MORE, HTTP_END };
typedef enum http_more http_producer(void *context, struct bytes *out);
/* Called exactly once, on the connection's thread, when the stream is over; the exchange ends with
 * the call. `gone`: the client left, was cut or too slow before all was sent, or the stream could
 * not begin. */
typedef void http_release(void *context, bool gone);
/* An answer of unknown length with status 200; its headers go out before the producer's first call.
 * Chunked, for HTTP/1.0 until the connection closes. HEAD gets the headers, and release, alone. */
void http_stream(struct http_exchange *exchange, const char *content_type, http_producer *producer,
                 void *context, http_release *release);
