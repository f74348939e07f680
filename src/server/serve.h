/* A server's life: the port opens, the model loads behind it, requests are answered until somebody
 * wants it to stop. */
#pragma once

#include "server/http.h"
#include "server/line_log.h"
#include "server/service.h"

struct serve_options {
    struct service_options service;
    const char *host;
    int port; /* 0: any free one */
    const char *const *keys;
    size_t n_keys;
    const char *cors; /* NULL: no CORS headers */
    bool json_log;
    struct line_log *log; /* gets a line for each request */
};

struct server;

/* Opens the port; requests get 503 until server_load is done. */
enum status server_open(const struct serve_options *options, struct server **out,
                        struct error *error);
int server_port(const struct server *server);
enum status server_load(struct server *server, struct error *error);
/* Takes no more requests, lets those that run end within `grace` seconds, cancels the others: their
 * clients are told. */
void server_close(struct server *server, double grace);
