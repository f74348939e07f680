/* What the files of the HTTP server share; http.h is its interface.
 *
 *   http.c           start and stop
 *   http_listen.c    the socket that listens
 *   http_exchange.c  a request from its first line to its end, as libmicrohttpd calls it
 *   http_gate.c      what is refused before a handler sees it; routes
 *   http_auth.c, http_cors.c, http_path.c
 *   http_answer.c    answers and their headers
 *   http_stream.c    answers of unknown length
 *   http_watch.c     connections, what each of them waits for, and the timer */
#pragma once

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/http.h"

enum {
    HTTP_ID_SIZE = 65,   /* with the NUL; longer ones of clients are not taken over */
    HTTP_PEER_SIZE = 64, /* "[address%scope]:port" */
    HTTP_REFUSALS = 32,  /* connections over the limit that get an answer */
};

/* Of one connection, from accept to close. In the server's list, whose lock guards all but fd, peer
 * and refused; these do not change. */
struct http_connection {
    struct http_server *server;
    struct http_connection *previous, *next;
    int fd;
    char peer[HTTP_PEER_SIZE];
    bool refused;    /* over the limit */
    double deadline; /* on the clock of base/clock.h; INFINITY: none */
    bool reading;    /* a request arrives: when time is up there is something to answer */
    bool running;    /* a request is counted in n_running */
    bool cut;        /* closed, to make room for another one */
    atomic_bool expired;
};

struct http_server {
    struct http_options options; /* with defaults filled in */
    char **keys;
    char *cors_origin;
    char id_prefix[17];
    atomic_ullong n_ids;
    struct MHD_Daemon *daemon;
    int listener, port;
    atomic_bool stopping; /* no new requests */
    /* http_watch.c */
    pthread_mutex_t lock;
    pthread_cond_t timer, idle; /* an earlier deadline; n_running has become 0 */
    struct http_connection *connections;
    unsigned n_connections, n_running;
    double wakes_at;
    bool ended;
    pthread_t watcher;
};

struct http_exchange {
    struct http_connection *connection;
    struct MHD_Connection *mhd;
    char id[HTTP_ID_SIZE];
    char *path; /* NULL: unreadable, or there was no memory for it */
    bool path_valid;
    const char *method; /* libmicrohttpd's; NULL until the headers are there */
    double began;
    const struct http_route *route;
    /* the body */
    struct bytes body;
    size_t received;
    bool dropped; /* the answer is known; the body is read to keep the connection */
    /* the answer */
    struct bytes fields;           /* name, NUL, value, NUL, … */
    struct MHD_Response *response; /* NULL: none yet, or given to libmicrohttpd */
    bool answered;
    bool close;  /* the connection ends with this answer */
    bool linger; /* the client may still be sending: it has to see the answer first */
    unsigned status;
    uint64_t sent; /* bytes of the body */
    atomic_bool gone;
    struct {
        http_producer *producer;
        void *context;
        http_release *release; /* NULL: no stream */
        struct bytes out;
        size_t taken;  /* bytes of `out` */
        double looked; /* for the client, in the clock's seconds */
        bool ended;
    } stream;
};

/* ---- http_listen.c: gives the descriptor and the port it got ---- */
enum status http_listen(const char *host, int port, int *out, int *out_port, struct error *error);
/* Writes "address:port". */
void http_name_peer(const struct sockaddr *address, char out[HTTP_PEER_SIZE]);

/* ---- http_watch.c ---- */
enum status http_watch_start(struct http_server *server, struct error *error);
void http_watch_stop(struct http_server *server);
void http_watch_add(struct http_server *server, struct http_connection *connection);
void http_watch_remove(struct http_connection *connection);
/* Time is up in `seconds` (INFINITY: never). What then happens depends on `reading`: the socket
 * gives no more bytes, so that the request can be answered; or it is cut. */
void http_watch(struct http_connection *connection, bool reading, double seconds);
void http_watch_running(struct http_connection *connection, bool running);
/* Cuts connections without a running request. */
void http_watch_cut_idle(struct http_server *server);
/* Waits until no request runs, at most so many seconds. */
void http_watch_wait(struct http_server *server, double seconds);
/* Whether the socket's other end is closed, for writing at least. */
bool http_watch_gone(int fd);
/* Reads and forgets what still comes, for a moment: closing a socket with unread bytes resets the
 * connection, and the client may lose the answer. */
void http_watch_linger(int fd);

/* ---- http_exchange.c, as libmicrohttpd wants them ---- */
void *http_exchange_begin(void *server, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result http_exchange_handle(void *server, struct MHD_Connection *mhd, const char *url,
                                     const char *method, const char *version, const char *data,
                                     size_t *size, void **exchange);
void http_exchange_end(void *server, struct MHD_Connection *mhd, void **exchange,
                       enum MHD_RequestTerminationCode code);

/* ---- http_gate.c: answers the exchange when it must not reach a handler, else sets its route ----
 */
void http_gate(struct http_exchange *exchange);
/* The length that the request tells of its body: 0 none, UINT64_MAX unknown. */
uint64_t http_told_length(struct http_exchange *exchange);

/* ---- http_auth.c, http_cors.c, http_path.c ---- */
bool http_key_fits(const struct http_server *server, const char *authorization);
void http_cors_fields(struct http_exchange *exchange);
void http_cors_preflight(struct http_exchange *exchange, const char *methods);
/* The path of a request's target, decoded, of its own; NULL: not *valid, or out of memory. */
char *http_path_decode(const char *target, bool *valid);

/* ---- http_answer.c ---- */
enum MHD_Result http_answer_queue(struct http_exchange *exchange);
/* Writes an error past libmicrohttpd, which takes no answer while a body arrives; the connection
 * must end then. */
void http_problem_now(struct http_exchange *exchange, unsigned status, const char *code,
                      const char *message);
/* The types of errors. */
#define HTTP_INVALID "invalid_request_error"
#define HTTP_OVERLOADED "server_overloaded"
#define HTTP_FAILED "server_error"
