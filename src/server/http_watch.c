#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/http_parts.h"

#define LONGEST_NAP 10.0 /* seconds; deadlines may be infinite */
#define LINGER_SECONDS 1.0
#define REFUSED_SECONDS 5.0 /* a connection over the limit may stay */

/* ---- the timer ------------------------------------------------------------------------------- */

/* Waits under the server's lock, `seconds` at most. */
static void wait_for(pthread_cond_t *condition, struct http_server *server, double seconds)
{
    struct timespec end = clock_after(seconds);
    pthread_cond_timedwait(condition, &server->lock, &end);
}

static void expire(struct http_connection *connection)
{
    connection->deadline = INFINITY;
    atomic_store(&connection->expired, true);
    shutdown(connection->fd, connection->reading ? SHUT_RD : SHUT_RDWR);
}

static void *run_watcher(void *argument)
{
    struct http_server *server = argument;
    pthread_mutex_lock(&server->lock);
    while (!server->ended) {
        double now = clock_seconds();
        server->wakes_at = now + LONGEST_NAP;
        for (struct http_connection *c = server->connections; c; c = c->next) {
            if (c->deadline <= now)
                expire(c);
            if (c->deadline < server->wakes_at)
                server->wakes_at = c->deadline;
        }
        wait_for(&server->timer, server, server->wakes_at - now);
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

enum status http_watch_start(struct http_server *server, struct error *error)
{
    pthread_mutex_init(&server->lock, NULL);
    clock_condition_init(&server->timer);
    clock_condition_init(&server->idle);
    if (pthread_create(&server->watcher, NULL, run_watcher, server) == 0)
        return STATUS_OK;
    pthread_mutex_destroy(&server->lock);
    pthread_cond_destroy(&server->timer);
    pthread_cond_destroy(&server->idle);
    return error_set(error, STATUS_NO_MEMORY, "the server's timer: no thread could be started");
}

void http_watch_stop(struct http_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->ended = true;
    pthread_cond_signal(&server->timer);
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->watcher, NULL);
    pthread_mutex_destroy(&server->lock);
    pthread_cond_destroy(&server->timer);
    pthread_cond_destroy(&server->idle);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void set_deadline(struct http_connection *connection, double seconds)
{
    struct http_server *server = connection->server;
    connection->deadline = isinf(seconds) ? INFINITY : clock_seconds() + seconds;
    if (connection->deadline < server->wakes_at)
        pthread_cond_signal(&server->timer);
}

/* Closes the connection that has been without a request for longest, to make room for another one;
 * false: all have one. */
static bool cut_idlest(struct http_server *server, const struct http_connection *other)
{
    struct http_connection *idlest = NULL;
    for (struct http_connection *c = server->connections; c; c = c->next)
        if (c != other && !c->running && !c->reading && !c->refused && !c->cut &&
            (!idlest || c->deadline < idlest->deadline))
            idlest = c;
    if (!idlest)
        return false;
    idlest->cut = true;
    shutdown(idlest->fd, SHUT_RDWR);
    return true;
}

void http_watch_add(struct http_server *server, struct http_connection *connection)
{
    pthread_mutex_lock(&server->lock);
    connection->server = server;
    connection->next = server->connections;
    if (connection->next)
        connection->next->previous = connection;
    server->connections = connection;
    connection->refused = server->n_connections++ >= server->options.connection_limit;
    if (connection->refused && cut_idlest(server, connection))
        connection->refused = false;
    set_deadline(connection, connection->refused ? REFUSED_SECONDS : server->options.idle_seconds);
    pthread_mutex_unlock(&server->lock);
}

void http_watch_remove(struct http_connection *connection)
{
    struct http_server *server = connection->server;
    pthread_mutex_lock(&server->lock);
    if (connection->previous)
        connection->previous->next = connection->next;
    else
        server->connections = connection->next;
    if (connection->next)
        connection->next->previous = connection->previous;
    server->n_connections--;
    pthread_mutex_unlock(&server->lock);
}

void http_watch(struct http_connection *connection, bool reading, double seconds)
{
    pthread_mutex_lock(&connection->server->lock);
    connection->reading = reading;
    set_deadline(connection, seconds);
    pthread_mutex_unlock(&connection->server->lock);
}

void http_watch_running(struct http_connection *connection, bool running)
{
    struct http_server *server = connection->server;
    pthread_mutex_lock(&server->lock);
    if (running && !connection->running)
        server->n_running++;
    if (!running && connection->running && --server->n_running == 0)
        pthread_cond_broadcast(&server->idle);
    connection->running = running;
    pthread_mutex_unlock(&server->lock);
}

void http_watch_cut_idle(struct http_server *server)
{
    pthread_mutex_lock(&server->lock);
    for (struct http_connection *c = server->connections; c; c = c->next)
        if (!c->running)
            shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&server->lock);
}

void http_watch_wait(struct http_server *server, double seconds)
{
    double until = clock_seconds() + seconds;
    pthread_mutex_lock(&server->lock);
    for (double left = seconds; server->n_running > 0 && left > 0; left = until - clock_seconds())
        wait_for(&server->idle, server, left < LONGEST_NAP ? left : LONGEST_NAP);
    pthread_mutex_unlock(&server->lock);
}

unsigned http_server_running(struct http_server *server)
{
    pthread_mutex_lock(&server->lock);
    unsigned n = server->n_running;
    pthread_mutex_unlock(&server->lock);
    return n;
}

/* ---- sockets --------------------------------------------------------------------------------- */

bool http_watch_gone(int fd)
{
#ifdef POLLRDHUP /* seen also behind bytes of a next request */
    struct pollfd poller = {.fd = fd, .events = POLLRDHUP};
    return poll(&poller, 1, 0) > 0 && poller.revents != 0;
#else
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
#endif
}

void http_watch_linger(int fd)
{
    char scrap[8192];
    double until = clock_seconds() + LINGER_SECONDS, left;
    shutdown(fd, SHUT_WR);
    while ((left = until - clock_seconds()) > 0) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        if (poll(&poller, 1, (int)(left * 1000) + 1) <= 0 && errno != EINTR)
            return;
        ssize_t n = recv(fd, scrap, sizeof scrap, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return;
    }
}
