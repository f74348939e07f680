#include <string.h>

#include "server/http_parts.h"

void http_cors_fields(struct http_exchange *exchange)
{
    const char *origin = exchange->connection->server->cors_origin;
    if (!origin)
        return;
    http_header(exchange, "Access-Control-Allow-Origin", origin);
    http_header(exchange, "Access-Control-Expose-Headers", "x-request-id");
    http_header(exchange, "Vary", "Origin");
}

void http_cors_preflight(struct http_exchange *exchange, const char *methods)
{
    if (!exchange->connection->server->cors_origin)
        return;
    /* the SDK's x-stainless-* are many, and grow: what is asked for is allowed */
    const char *wanted = http_request_header(exchange, "Access-Control-Request-Headers");
    http_header(exchange, "Access-Control-Allow-Methods", methods);
    http_header(exchange, "Access-Control-Allow-Headers",
                wanted ? wanted : "authorization, content-type");
    http_header(exchange, "Access-Control-Max-Age", "86400");
}
