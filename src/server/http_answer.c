#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/utf8.h"
#include "server/http_parts.h"

/* A client reads an answer at this many bytes a second, or is cut. */
#define SLOWEST 8192.0

/* ---- headers --------------------------------------------------------------------------------- */

void http_header(struct http_exchange *exchange, const char *name, const char *value)
{
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return;
    bytes_append(&exchange->fields, name, strlen(name) + 1);
    bytes_append(&exchange->fields, value, strlen(value) + 1);
}

/* Steps through the fields, none when one is torn; *at begins at 0. */
static bool next_field(const struct bytes *fields, size_t *at, const char **name,
                       const char **value)
{
    if (fields->failed || *at >= fields->length)
        return false;
    *name = fields->data + *at;
    *value = *name + strlen(*name) + 1;
    *at = (size_t)(*value - fields->data) + strlen(*value) + 1;
    return true;
}

static void common_fields(struct http_exchange *exchange)
{
    http_header(exchange, "x-request-id", exchange->id);
    http_cors_fields(exchange);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Takes the response, NULL when there was no memory for it, as the exchange's answer. */
static void take_response(struct http_exchange *exchange, unsigned status, const char *content_type,
                          struct MHD_Response *response)
{
    if (exchange->answered) { /* the first one holds */
        if (response)
            MHD_destroy_response(response);
        return;
    }
    exchange->answered = true;
    exchange->status = status;
    exchange->response = response;
    if (content_type)
        http_header(exchange, "Content-Type", content_type);
}

void http_answer(struct http_exchange *exchange, unsigned status, const char *content_type,
                 const void *body, size_t length)
{
    exchange->sent = exchange->answered ? exchange->sent : length;
    take_response(exchange, status, content_type,
                  MHD_create_response_from_buffer(length, length > 0 ? (void *)(uintptr_t)body : "",
                                                  MHD_RESPMEM_MUST_COPY));
}

void http_answer_bytes(struct http_exchange *exchange, unsigned status, const char *content_type,
                       struct bytes *body)
{
    if (body->failed) {
        bytes_clear(body);
        http_problem(exchange, 500, HTTP_FAILED, NULL, NULL, "out of memory for the answer");
        return;
    }
    exchange->sent = exchange->answered ? exchange->sent : body->length;
    struct MHD_Response *response =
        body->data
            ? MHD_create_response_from_buffer_with_free_callback(body->length, body->data, free)
            : MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!response)
        bytes_clear(body);
    *body = (struct bytes){0};
    take_response(exchange, status, content_type, response);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void put_text(struct bytes *out, const char *key, const char *text)
{
    bytes_format(out, "\"%s\": ", key);
    if (!text) {
        bytes_append_text(out, "null");
        return;
    }
    size_t length = strlen(text), size;
    bytes_append_byte(out, '"');
    for (size_t at = 0; at < length; at += size) {
        size = utf8_valid_length(text + at, length - at);
        json_print_escaped(text + at, size, out);
        if (size == 0) {
            utf8_examine(text + at, length - at, &size);
            bytes_append_byte(out, '?');
        }
    }
    bytes_append_byte(out, '"');
}

static struct bytes problem_body(const char *type, const char *param, const char *code,
                                 const char *message)
{
    struct bytes body = {0};
    bytes_append_text(&body, "{\"error\": {");
    put_text(&body, "message", message);
    bytes_append_text(&body, ", ");
    put_text(&body, "type", type);
    bytes_append_text(&body, ", ");
    put_text(&body, "param", param);
    bytes_append_text(&body, ", ");
    put_text(&body, "code", code);
    bytes_append_text(&body, "}}");
    return body;
}

void http_problem(struct http_exchange *exchange, unsigned status, const char *type,
                  const char *param, const char *code, const char *message)
{
    struct bytes body = problem_body(type, param, code, message);
    if (body.failed) { /* the status alone says most of it */
        bytes_clear(&body);
        body = (struct bytes){0};
    }
    http_answer_bytes(exchange, status, "application/json", &body);
}

/* ---- giving them to the connection ----------------------------------------------------------- */

enum MHD_Result http_answer_queue(struct http_exchange *exchange)
{
    const struct http_server *server = exchange->connection->server;
    struct MHD_Response *response = exchange->response;
    exchange->response = NULL;
    if (!response)
        return MHD_NO;
    common_fields(exchange);
    if (exchange->close || atomic_load(&server->stopping))
        http_header(exchange, "Connection", "close");
    const char *name, *value;
    size_t at = 0;
    while (next_field(&exchange->fields, &at, &name, &value))
        MHD_add_response_header(response, name, value);
    enum MHD_Result result = MHD_NO; /* better no answer than one that lacks headers */
    if (!exchange->fields.failed)
        result = MHD_queue_response(exchange->mhd, exchange->status, response);
    MHD_destroy_response(response);
    http_watch(exchange->connection, false,
               server->options.idle_seconds + (double)exchange->sent / SLOWEST);
    return result;
}

void http_problem_now(struct http_exchange *exchange, unsigned status, const char *code,
                      const char *message)
{
    struct bytes body = problem_body(HTTP_INVALID, NULL, code, message), text = {0};
    const char *name, *value;
    size_t at = 0;
    common_fields(exchange);
    bytes_format(&text, "HTTP/1.1 %u %s\r\n", status, MHD_get_reason_phrase_for(status));
    while (next_field(&exchange->fields, &at, &name, &value))
        bytes_format(&text, "%s: %s\r\n", name, value);
    bytes_format(
        &text, "Content-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
        body.length);
    bytes_append(&text, body.data, body.length);
    exchange->answered = exchange->linger = true;
    exchange->status = status;
    exchange->sent = body.length;
    if (!body.failed && !text.failed && !exchange->fields.failed) {
        /* the socket's buffer is empty, but perhaps for a 100 Continue: it takes all of it */
        ssize_t n =
            send(exchange->connection->fd, text.data, text.length, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)n;
    }
    bytes_clear(&body);
    bytes_clear(&text);
}
