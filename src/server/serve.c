#include "server/serve.h"

#include <stdlib.h>
#include <string.h>

#include "server/call.h"
#include "server/request_log.h"
#include "server/texts.h"

#define FAREWELL 1.0 /* seconds for a client to take the news that its request was cancelled */

struct server {
    struct service service;
    struct http_server *http;
    bool json_log;
    struct line_log *log;
};

/* ---- routes ---------------------------------------------------------------------------------- */

/* Calls a handler that needs the model. */
static void when_ready(struct service *service, struct http_exchange *exchange,
                       http_handler *handler)
{
    if (atomic_load(&service->state) == SERVICE_READY) {
        handler(service, exchange);
        return;
    }
    bool loading = atomic_load(&service->state) == SERVICE_LOADING;
    http_header(exchange, "Retry-After", "1");
    http_problem(exchange, 503, "server_error", NULL, loading ? "loading" : "shutting_down",
                 loading ? "the model is being loaded" : "the server is shutting down");
}

#define READY(name)                                                                                \
    static void ready_##name(void *context, struct http_exchange *exchange)                        \
    {                                                                                              \
        when_ready(context, exchange, name##_handle);                                              \
    }
READY(chat)
READY(completion)
READY(models)
READY(model)
READY(tokenize)
READY(detokenize)
READY(template)

static const struct http_route routes[] = {
    {"POST", "/v1/chat/completions", false, false, ready_chat},
    {"POST", "/v1/completions", false, false, ready_completion},
    {"GET", "/v1/models", false, false, ready_models},
    {"GET", "/v1/models/", true, false, ready_model},
    {"GET", "/health", false, true, health_handle},
    {"GET", "/metrics", false, false, metrics_handle},
    {"POST", "/tokenize", false, false, ready_tokenize},
    {"POST", "/detokenize", false, false, ready_detokenize},
    {"POST", "/apply-template", false, false, ready_template},
};

/* ---- the log --------------------------------------------------------------------------------- */

/* Monitoring asks all the time; what it gets is of interest when it is no 200. */
static bool is_routine(const struct http_record *record)
{
    return record->status == 200 &&
           (strcmp(record->path, "/health") == 0 || strcmp(record->path, "/metrics") == 0);
}

static void log_request(void *context, const struct http_record *record)
{
    struct server *server = context;
    struct bytes line = {0};
    metrics_count_request(&server->service.metrics, record->status, record->client_gone);
    request_log_print(record, server->json_log, &line);
    if (!is_routine(record) && !line.failed)
        line_log_write(server->log, line.data, line.length);
    bytes_clear(&line);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum status server_open(const struct serve_options *options, struct server **out,
                        struct error *error)
{
    struct server *server = *out = calloc(1, sizeof *server);
    if (!server)
        return error_no_memory(error, "the server");
    server->json_log = options->json_log;
    server->log = options->log;
    service_init(&server->service, &options->service);
    const struct http_options http = {
        .host = options->host,
        .port = options->port,
        .routes = routes,
        .n_routes = sizeof routes / sizeof *routes,
        .context = &server->service,
        .keys = options->keys,
        .n_keys = options->n_keys,
        .cors_origin = options->cors,
        .body_limit = SERVICE_BODY_MAX,
        .log = log_request,
        .log_context = server,
    };
    enum status status = http_server_start(&http, &server->http, error);
    if (status != STATUS_OK) {
        server_close(server, 0);
        *out = NULL;
    }
    return status;
}

int server_port(const struct server *server)
{
    return http_server_port(server->http);
}

enum status server_load(struct server *server, struct error *error)
{
    return service_open(&server->service, error);
}

void server_close(struct server *server, double grace)
{
    http_server_drain(server->http, grace);
    service_cancel(&server->service);
    http_server_stop(server->http, FAREWELL);
    service_stop(&server->service, 0);
    service_close(&server->service);
    free(server);
}
