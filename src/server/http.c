#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http_parts.h"

/* Of a connection's thread: handlers parse and render, the engine has threads of its own. */
#define STACK ((size_t)1 << 20)
/* libmicrohttpd's memory for a connection, beyond the headers: its records of them, the answer's
 * headers and a chunk on its way. */
#define POOL_EXTRA ((size_t)48 << 10)
#define DESCRIPTORS_LEFT 24 /* for files, beside the connections */

/* ---- options --------------------------------------------------------------------------------- */

/* No more connections than the process may have descriptors, some left for files: libmicrohttpd
 * calls accept again and again where it fails for lack of one. */
static unsigned fit_descriptors(unsigned wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= wanted + HTTP_REFUSALS + DESCRIPTORS_LEFT)
        return wanted;
    return limit.rlim_cur > HTTP_REFUSALS + DESCRIPTORS_LEFT
               ? (unsigned)limit.rlim_cur - HTTP_REFUSALS - DESCRIPTORS_LEFT
               : 1;
}

static void fill_defaults(struct http_options *options)
{
    if (!options->host)
        options->host = "127.0.0.1";
    if (options->body_limit == 0)
        options->body_limit = (size_t)32 << 20;
    if (options->header_limit == 0)
        options->header_limit = (size_t)64 << 10;
    if (options->request_seconds <= 0)
        options->request_seconds = 30;
    if (options->idle_seconds <= 0)
        options->idle_seconds = 75;
    if (options->connection_limit == 0)
        options->connection_limit = 256;
    options->connection_limit = fit_descriptors(options->connection_limit);
}

static bool copy_secrets(struct http_server *server)
{
    const struct http_options *options = &server->options;
    if (options->cors_origin && !(server->cors_origin = strdup(options->cors_origin)))
        return false;
    server->keys = calloc(options->n_keys + 1, sizeof *server->keys);
    for (size_t i = 0; server->keys && i < options->n_keys; i++)
        if (!(server->keys[i] = strdup(options->keys[i])))
            return false;
    return server->keys != NULL;
}

/* ---- libmicrohttpd --------------------------------------------------------------------------- */

static struct http_connection *open_connection(struct http_server *server,
                                               struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    int fd = info->connect_fd;
    struct http_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        shutdown(fd, SHUT_RDWR);
        return NULL;
    }
    connection->fd = fd;
    info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    http_name_peer(info->client_addr, connection->peer);
    http_watch_add(server, connection);
    return connection;
}

/* On libmicrohttpd's own thread: before the connection's begins, and before its socket is closed.
 */
static void on_connection(void *context, struct MHD_Connection *mhd, void **slot,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *slot = open_connection(server, mhd);
    } else if (*slot) {
        http_watch_remove(*slot);
        free(*slot);
        *slot = NULL;
    }
}

/* Paths are decoded by http_path.c, which can refuse them. */
static size_t leave_escapes(void *context, struct MHD_Connection *mhd, char *text)
{
    (void)context, (void)mhd;
    return strlen(text);
}

static struct MHD_Daemon *start_daemon(struct http_server *server)
{
    const struct http_options *options = &server->options;
    return MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                                MHD_USE_POLL | MHD_USE_ITC,
                            0, NULL, NULL, http_exchange_handle, server, /* */
                            MHD_OPTION_LISTEN_SOCKET, server->listener,  /* */
                            MHD_OPTION_CONNECTION_LIMIT, options->connection_limit + HTTP_REFUSALS,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, options->header_limit + POOL_EXTRA,
                            MHD_OPTION_THREAD_STACK_SIZE, STACK,                      /* */
                            MHD_OPTION_URI_LOG_CALLBACK, http_exchange_begin, server, /* */
                            MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, NULL,        /* */
                            MHD_OPTION_NOTIFY_COMPLETED, http_exchange_end, server,   /* */
                            MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_server(struct http_server *server)
{
    if (server->listener >= 0)
        close(server->listener);
    for (size_t i = 0; server->keys && i < server->options.n_keys; i++)
        free(server->keys[i]);
    free(server->keys);
    free(server->cors_origin);
    free(server);
}

static enum status serve(struct http_server *server, struct error *error)
{
    enum status status = http_watch_start(server, error);
    if (status != STATUS_OK)
        return status;
    server->daemon = start_daemon(server);
    if (server->daemon)
        return STATUS_OK;
    int problem = errno;
    http_watch_stop(server);
    return error_set(error, STATUS_IO, "the HTTP server cannot start: %s", strerror(problem));
}

enum status http_server_start(const struct http_options *options, struct http_server **out,
                              struct error *error)
{
    struct http_server *server = calloc(1, sizeof *server);
    unsigned char seed[8] = {0};
    *out = NULL;
    if (!server)
        return error_no_memory(error, "the HTTP server");
    server->options = *options;
    server->listener = -1;
    fill_defaults(&server->options);
    if (getentropy(seed, sizeof seed) != 0)
        memcpy(seed, &server, sizeof seed); /* ids are no secrets */
    for (size_t i = 0; i < sizeof seed; i++)
        snprintf(server->id_prefix + 2 * i, 3, "%02x", seed[i]);
    enum status status =
        copy_secrets(server) ? STATUS_OK : error_no_memory(error, "the HTTP server");
    if (status == STATUS_OK)
        status = http_listen(server->options.host, server->options.port, &server->listener,
                             &server->port, error);
    if (status == STATUS_OK)
        status = serve(server, error);
    if (status == STATUS_OK)
        *out = server;
    else
        free_server(server);
    return status;
}

int http_server_port(const struct http_server *server)
{
    return server->port;
}

void http_server_drain(struct http_server *server, double grace)
{
    if (!server)
        return;
    if (!atomic_exchange(&server->stopping, true)) {
        MHD_quiesce_daemon(server->daemon);
        shutdown(server->listener, SHUT_RDWR); /* closed at the end: its thread may be looking */
    }
    http_watch_cut_idle(server);
    http_watch_wait(server, grace);
}

void http_server_stop(struct http_server *server, double grace)
{
    if (!server)
        return;
    http_server_drain(server, grace);
    MHD_stop_daemon(server->daemon); /* shuts all sockets, so that clients count as gone */
    http_watch_stop(server);
    free_server(server);
}
