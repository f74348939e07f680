/* Clients of a server, as light as can be: N connections ask for one streamed answer each, at the
 * same time, and note when its events arrive. One JSON object for all of them on stdout:
 *
 *   build/bench/stream_clients PORT N BODY.json [BODY.json …]
 *
 * Client i sends body i modulo their number. "tokens" are those of the usage that each answer ends
 * with (so ask for it: a token that ends within a character has no chunk of its own); "seconds" is
 * from the first chunk of text of all to the last; gaps are those between chunks; times in ms. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/input.h"

#define CLIENTS_MAX 64

struct client {
    int socket;
    char line[1 << 16]; /* that is not whole yet */
    size_t length;
    double start, first, last;
    int chunks, tokens;
    bool done;
};

struct gaps {
    double *seconds;
    size_t n, capacity;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int dial(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int descriptor = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (descriptor < 0 || connect(descriptor, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect");
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return descriptor;
}

static void ask(struct client *client, const struct bytes *body)
{
    struct bytes request = {0};
    bytes_format(&request,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                 body->length);
    bytes_append(&request, body->data, body->length);
    client->start = clock_seconds();
    if (write(client->socket, request.data, request.length) != (ssize_t)request.length)
        die("write");
    bytes_clear(&request);
}

static void add_gap(struct gaps *gaps, double seconds)
{
    if (gaps->n == gaps->capacity) {
        gaps->capacity = gaps->capacity ? 2 * gaps->capacity : 1024;
        gaps->seconds = realloc(gaps->seconds, gaps->capacity * sizeof *gaps->seconds);
        if (!gaps->seconds)
            die("gaps");
    }
    gaps->seconds[gaps->n++] = seconds;
}

static void take_line(struct client *client, const char *line, double now, struct gaps *gaps)
{
    static const char field[] = "\"completion_tokens\":";
    const char *usage = strstr(line, field);
    if (strstr(line, "data: [DONE]"))
        client->done = true;
    if (usage)
        client->tokens = atoi(usage + strlen(field));
    if (!strstr(line, "\"delta\":{\"content\":\"") &&
        !strstr(line, "\"delta\":{\"reasoning_content\":\""))
        return;
    if (client->chunks++ == 0)
        client->first = now;
    else
        add_gap(gaps, now - client->last);
    client->last = now;
}

static void receive(struct client *client, struct gaps *gaps)
{
    ssize_t n = read(client->socket, client->line + client->length,
                     sizeof client->line - 1 - client->length);
    double now = clock_seconds();
    if (n <= 0)
        die("the server closed the connection");
    client->length += (size_t)n;
    client->line[client->length] = '\0';
    char *from = client->line;
    for (char *end; (end = strchr(from, '\n')); from = end + 1) {
        *end = '\0';
        take_line(client, from, now, gaps);
    }
    client->length -= (size_t)(from - client->line);
    memmove(client->line, from, client->length);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const struct client *clients, int n, struct gaps *gaps)
{
    double first = 1e30, last = 0, wait = 0;
    int tokens = 0;
    for (int i = 0; i < n; i++) {
        tokens += clients[i].tokens;
        first = clients[i].first < first ? clients[i].first : first;
        last = clients[i].last > last ? clients[i].last : last;
        wait += (clients[i].first - clients[i].start) / n;
    }
    qsort(gaps->seconds, gaps->n, sizeof *gaps->seconds, compare);
    printf("{\"clients\": %d, \"tokens\": %d, \"seconds\": %.6f, \"tokens_per_second\": %.3f, "
           "\"first_token_ms\": %.3f, \"gap_p50_ms\": %.3f, \"gap_p99_ms\": %.3f, "
           "\"gap_max_ms\": %.3f}\n",
           n, tokens, last - first, (tokens - n) / (last - first), 1000 * wait,
           gaps->n ? 1000 * gaps->seconds[gaps->n / 2] : 0,
           gaps->n ? 1000 * gaps->seconds[gaps->n * 99 / 100] : 0,
           gaps->n ? 1000 * gaps->seconds[gaps->n - 1] : 0);
}

int main(int argc, char **argv)
{
    static struct client clients[CLIENTS_MAX];
    struct bytes bodies[CLIENTS_MAX] = {0};
    struct pollfd polls[CLIENTS_MAX];
    struct gaps gaps = {0};
    int port = argc > 3 ? atoi(argv[1]) : 0, n = argc > 3 ? atoi(argv[2]) : 0, n_bodies = argc - 3;
    if (n < 1 || n > CLIENTS_MAX || n_bodies > CLIENTS_MAX) {
        fprintf(stderr, "usage: stream_clients PORT N(1..%d) BODY.json …\n", CLIENTS_MAX);
        return 2;
    }
    for (int i = 0; i < n_bodies; i++)
        if (input_read(argv[3 + i], &bodies[i], NULL) != STATUS_OK)
            die(argv[3 + i]);
    for (int i = 0; i < n; i++)
        clients[i].socket = dial(port);
    for (int i = 0; i < n; i++)
        ask(&clients[i], &bodies[i % n_bodies]);
    for (int open = n; open > 0;) {
        for (int i = 0; i < n; i++)
            polls[i] = (struct pollfd){clients[i].done ? -1 : clients[i].socket, POLLIN, 0};
        if (poll(polls, (nfds_t)n, 60000) <= 0)
            die("nothing came for a minute");
        for (int i = 0; i < n; i++)
            if (polls[i].revents) {
                receive(&clients[i], &gaps);
                open -= clients[i].done;
            }
    }
    report(clients, n, &gaps);
    return 0;
}
