#include "support/http_expect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct http_server *server;

void start(struct http_options options)
{
    server = http_fixture_start(options);
}

struct http_client *dial(void)
{
    return http_connect(http_server_port(server));
}

int stop_after(void **state)
{
    (void)state;
    http_server_stop(server, 5);
    server = NULL;
    return 0;
}

struct http_reply expect(struct http_client *client, unsigned status)
{
    struct http_reply reply = http_receive(client, false);
    assert_int_equal(reply.status, status);
    assert_true(reply.whole);
    assert_non_null(http_reply_header(&reply, "x-request-id"));
    if (status >= 400) {
        json_t *body = json_loads(reply.body, 0, NULL);
        json_t *error = json_object_get(body, "error");
        assert_int_equal(json_object_size(error), 4);
        assert_true(json_string_length(json_object_get(error, "message")) > 0);
        assert_true(json_is_string(json_object_get(error, "type")));
        assert_true(json_is_null(json_object_get(error, "param")));
        assert_non_null(json_object_get(error, "code"));
        json_decref(body);
    }
    return reply;
}

void expect_only(struct http_client *client, unsigned status)
{
    struct http_reply reply = expect(client, status);
    http_reply_free(&reply);
}

void expect_body(struct http_client *client, unsigned status, const char *body)
{
    struct http_reply reply = expect(client, status);
    assert_string_equal(reply.body, body);
    http_reply_free(&reply);
}

void expect_header(const struct http_reply *reply, const char *name, const char *value)
{
    const char *found = http_reply_header(reply, name);
    if (!value) {
        assert_null(found);
        return;
    }
    assert_non_null(found);
    assert_string_equal(found, value);
}

struct http_reply ask(unsigned status, const char *request)
{
    struct http_client *client = dial();
    http_say(client, "%s", request);
    struct http_reply reply = expect(client, status);
    http_close(client);
    return reply;
}

void ask_only(unsigned status, const char *request)
{
    struct http_reply reply = ask(status, request);
    http_reply_free(&reply);
}

char *repeat(const char *text, size_t n)
{
    size_t length = strlen(text);
    char *out = malloc(n * length + 1);
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * length, text, length);
    out[n * length] = '\0';
    return out;
}
