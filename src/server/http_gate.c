#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/http_parts.h"

/* ---- the request's frame --------------------------------------------------------------------- */

uint64_t http_told_length(struct http_exchange *exchange)
{
    const char *length = http_request_header(exchange, "Content-Length");
    if (http_request_header(exchange, "Transfer-Encoding"))
        return UINT64_MAX;
    return length ? strtoull(length, NULL, 10)
                  : 0; /* libmicrohttpd has refused what is no number */
}

struct count {
    const char *name;
    unsigned n;
};

static enum MHD_Result count_header(void *context, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    struct count *count = context;
    (void)kind, (void)value;
    count->n += strcasecmp(name, count->name) == 0;
    return MHD_YES;
}

static unsigned n_headers(struct http_exchange *exchange, const char *name)
{
    struct count count = {.name = name};
    MHD_get_connection_values(exchange->mhd, MHD_HEADER_KIND, count_header, &count);
    return count.n;
}

/* Two opinions about where a request ends are how one is smuggled past a proxy. */
static const char *frame_problem(struct http_exchange *exchange)
{
    unsigned n_lengths = n_headers(exchange, "Content-Length");
    unsigned n_codings = n_headers(exchange, "Transfer-Encoding");
    const char *coding = http_request_header(exchange, "Transfer-Encoding");
    if (n_lengths + n_codings > 1)
        return "Content-Length and Transfer-Encoding: found several, wanted one";
    if (coding && strcasecmp(coding, "chunked") != 0)
        return "Transfer-Encoding: wanted chunked or none";
    return NULL;
}

static bool is_token(const char *method)
{
    size_t length = 0;
    while (isalpha((unsigned char)method[length]) || method[length] == '-')
        length++;
    return length > 0 && method[length] == '\0';
}

static bool headers_fit(struct http_exchange *exchange)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(exchange->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return !info || info->header_size <= exchange->connection->server->options.header_limit;
}

/* ---- routes ---------------------------------------------------------------------------------- */

static bool path_fits(const struct http_route *route, const char *path)
{
    size_t length = strlen(route->path);
    return route->prefix ? strncmp(path, route->path, length) == 0 && path[length]
                         : strcmp(path, route->path) == 0;
}

static const struct http_route *find_route(const struct http_options *options, const char *method,
                                           const char *path)
{
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < options->n_routes; i++) {
        const struct http_route *route = &options->routes[i];
        if (path_fits(route, path) && strcmp(route->method, method) == 0)
            return route;
    }
    return NULL;
}

static void add_method(char *list, size_t size, const char *method)
{
    size_t length = strlen(list);
    if (!strstr(list, method))
        snprintf(list + length, size - length, "%s%s", length > 0 ? ", " : "", method);
}

/* "GET, HEAD, OPTIONS": what a path takes, "*" what any does; false when the path is unknown. */
static bool list_methods(const struct http_options *options, const char *path, char *list,
                         size_t size)
{
    bool any = false;
    list[0] = '\0';
    for (size_t i = 0; i < options->n_routes; i++) {
        const struct http_route *route = &options->routes[i];
        if (strcmp(path, "*") != 0 && !path_fits(route, path))
            continue;
        any = true;
        add_method(list, size, route->method);
        if (strcmp(route->method, "GET") == 0)
            add_method(list, size, "HEAD");
    }
    add_method(list, size, "OPTIONS");
    return any;
}

/* Paths that the message can show whole are the ones that somebody typed. */
static void answer_unknown(struct http_exchange *exchange)
{
    char message[256];
    snprintf(message, sizeof message, "%s %.150s: there is nothing at this URL", exchange->method,
             exchange->path);
    http_problem(exchange, 404, HTTP_INVALID, NULL, NULL, message);
}

static void answer_wrong_method(struct http_exchange *exchange, const char *methods)
{
    char message[256];
    snprintf(message, sizeof message, "%.20s %.100s: wanted one of the methods %.80s",
             exchange->method, exchange->path, methods);
    http_header(exchange, "Allow", methods);
    http_problem(exchange, 405, HTTP_INVALID, NULL, NULL, message);
}

static void answer_options(struct http_exchange *exchange)
{
    const struct http_server *server = exchange->connection->server;
    char methods[128];
    bool known = list_methods(&server->options, exchange->path, methods, sizeof methods);
    if (!known && !server->cors_origin) {
        answer_unknown(exchange);
        return;
    }
    http_header(exchange, "Allow", methods);
    http_cors_preflight(exchange, methods); /* unknown paths, too: pages then see the 404 itself */
    http_answer(exchange, 204, NULL, NULL, 0);
}

static void choose_route(struct http_exchange *exchange)
{
    const struct http_options *options = &exchange->connection->server->options;
    char methods[128];
    exchange->route = find_route(options, exchange->method, exchange->path);
    if (exchange->route)
        return;
    if (list_methods(options, exchange->path, methods, sizeof methods))
        answer_wrong_method(exchange, methods);
    else
        answer_unknown(exchange);
}

/* ---- the body's type and length -------------------------------------------------------------- */

/* No type, and text/plain, which browsers send without asking first, may well be JSON. */
static bool may_be_json(const char *type)
{
    static const char *const fine[] = {"", "application/json", "text/json", "text/plain",
                                       /* what curl -d says unless it is told otherwise */
                                       "application/x-www-form-urlencoded"};
    size_t length = type ? strcspn(type, ";") : 0;
    while (length > 0 && isspace((unsigned char)type[length - 1]))
        length--;
    if (length > 5 && strncasecmp(type + length - 5, "+json", 5) == 0)
        return true;
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        if (strlen(fine[i]) == length && strncasecmp(type ? type : "", fine[i], length) == 0)
            return true;
    return false;
}

static void check_body(struct http_exchange *exchange)
{
    size_t limit = exchange->connection->server->options.body_limit;
    uint64_t told = http_told_length(exchange);
    const char *type = http_request_header(exchange, "Content-Type");
    char message[256];
    if (told != UINT64_MAX && told > limit) {
        snprintf(message, sizeof message, "the request body has %llu bytes, wanted at most %zu",
                 (unsigned long long)told, limit);
        exchange->close = true;
        http_problem(exchange, 413, HTTP_INVALID, NULL, NULL, message);
    } else if (told > 0 && !may_be_json(type)) {
        snprintf(message, sizeof message, "Content-Type: found '%.100s', wanted application/json",
                 type);
        http_problem(exchange, 415, HTTP_INVALID, NULL, NULL, message);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void refuse_busy(struct http_exchange *exchange, const char *type, const char *message)
{
    exchange->close = true;
    http_header(exchange, "Retry-After", "1");
    http_problem(exchange, 503, type, NULL, NULL, message);
}

static void refuse_key(struct http_exchange *exchange, bool given)
{
    http_header(exchange, "WWW-Authenticate", "Bearer");
    http_problem(exchange, 401, HTTP_INVALID, NULL, "invalid_api_key",
                 given ? "Authorization: this is not a key of this server, wanted 'Bearer KEY'"
                       : "Authorization: found none, wanted 'Bearer KEY'");
}

/* Answers what is wrong with the request itself. */
static void check_request(struct http_exchange *exchange)
{
    const char *wrong = frame_problem(exchange);
    if (!is_token(exchange->method)) {
        wrong = "the request's method is not one";
        exchange->method = "?";
    } else if (!exchange->path && !exchange->path_valid) {
        wrong = "the request's path is not one: wanted a slash, then UTF-8 or %XX";
    }
    exchange->close = wrong != NULL;
    if (wrong) {
        http_problem(exchange, 400, HTTP_INVALID, NULL, NULL, wrong);
    } else if (!exchange->path) {
        http_problem(exchange, 500, HTTP_FAILED, NULL, NULL, "out of memory for the request");
    } else if (!headers_fit(exchange)) {
        exchange->close = true;
        http_problem(exchange, 431, HTTP_INVALID, NULL, NULL,
                     "the request's headers are longer than this server takes");
    }
}

void http_gate(struct http_exchange *exchange)
{
    struct http_server *server = exchange->connection->server;
    const char *authorization = http_request_header(exchange, "Authorization");
    check_request(exchange);
    if (exchange->answered)
        return;
    if (atomic_load(&server->stopping)) {
        refuse_busy(exchange, HTTP_FAILED, "the server is shutting down");
        return;
    }
    if (exchange->connection->refused) {
        refuse_busy(exchange, HTTP_OVERLOADED, "the server has too many connections");
        return;
    }
    if (strcmp(exchange->method, "OPTIONS") == 0) {
        answer_options(exchange);
        return;
    }
    const struct http_route *route = find_route(&server->options, exchange->method, exchange->path);
    if (!(route && route->open) && !http_key_fits(server, authorization)) {
        refuse_key(exchange, authorization != NULL);
        return;
    }
    choose_route(exchange);
    if (exchange->route)
        check_body(exchange);
}
