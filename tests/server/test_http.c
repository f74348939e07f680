/* Requests and answers over bare sockets: every status the HTTP layer gives by itself, keep-alive,
 * pipelining, bodies in all forms, limits, keys and CORS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <jansson.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "support/http_client.h"
#include "support/http_fixture.h"
#include "support/sanitized.h"

#define HOST "Host: localhost\r\n"

static struct http_server *server;

static void start(struct http_options options)
{
    server = http_fixture_start(options);
}

static struct http_client *dial(void)
{
    return http_connect(http_server_port(server));
}

static int stop_after(void **state)
{
    (void)state;
    http_server_stop(server, 5);
    server = NULL;
    return 0;
}

/* A reply of this status on the connection, whose body is an error unless it is a 2xx. */
static struct http_reply expect(struct http_client *client, unsigned status)
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

static void expect_only(struct http_client *client, unsigned status)
{
    struct http_reply reply = expect(client, status);
    http_reply_free(&reply);
}

static void expect_body(struct http_client *client, unsigned status, const char *body)
{
    struct http_reply reply = expect(client, status);
    assert_string_equal(reply.body, body);
    http_reply_free(&reply);
}

static void expect_header(const struct http_reply *reply, const char *name, const char *value)
{
    const char *found = http_reply_header(reply, name);
    if (!value) {
        assert_null(found);
        return;
    }
    assert_non_null(found);
    assert_string_equal(found, value);
}

/* A request of its own connection. */
static struct http_reply ask(unsigned status, const char *request)
{
    struct http_client *client = dial();
    http_say(client, "%s", request);
    struct http_reply reply = expect(client, status);
    http_close(client);
    return reply;
}

static void ask_only(unsigned status, const char *request)
{
    struct http_reply reply = ask(status, request);
    http_reply_free(&reply);
}

static char *repeat(const char *text, size_t n)
{
    size_t length = strlen(text);
    char *out = malloc(n * length + 1);
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * length, text, length);
    out[n * length] = '\0';
    return out;
}

/* ---- plain requests -------------------------------------------------------------------------- */

static void answers_and_keeps_alive(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = dial();
    for (int i = 0; i < 3; i++) {
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n");
        expect_body(client, 200, "ok");
        http_say(client,
                 "POST /echo?x=1 HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\n{\"a\": %d}\n", i);
        struct http_reply reply = expect(client, 200);
        assert_int_equal(reply.length, 9);
        expect_header(&reply, "X-Extra", "yes");
        expect_header(&reply, "X-Bad", NULL);
        expect_header(&reply, "Content-Type", "application/json");
        http_reply_free(&reply);
        /* errors keep the connection, also with a body that nobody wants */
        http_say(client, "POST /nothing HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc");
        expect_only(client, 404);
    }
    http_close(client);
    http_await(&http_notes.logged, 9);
    assert_int_equal(atomic_load(&http_notes.handled), 6);
}

static void tells_what_happened(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = dial();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST
                     "X-Request-Id: mine-1\r\nContent-Length: 4\r\n\r\ntrue");
    struct http_reply reply = expect(client, 200);
    expect_header(&reply, "x-request-id", "mine-1");
    http_reply_free(&reply);
    http_await(&http_notes.logged, 1);
    assert_string_equal(http_notes.last.id, "mine-1");
    assert_string_equal(http_notes.last.path, "/echo");
    assert_string_equal(http_notes.last.method, "POST");
    assert_memory_equal(http_notes.last.peer, "127.0.0.1:", 10);
    assert_int_equal(http_notes.last.status, 200);
    assert_int_equal(http_notes.last.bytes, 4);
    assert_false(http_notes.last.client_gone || http_notes.last.timed_out);
    /* ids that are long or no plain text are not taken over, and ours differ */
    char *longer = repeat("i", 65), ids[3][80];
    const char *given[] = {"a b", longer, "\x01"};
    for (int i = 0; i < 3; i++) {
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "X-Request-Id: %s\r\n\r\n", given[i]);
        reply = expect(client, 200);
        snprintf(ids[i], sizeof ids[i], "%s", http_reply_header(&reply, "x-request-id"));
        assert_memory_equal(ids[i], "req_", 4);
        http_reply_free(&reply);
    }
    assert_string_not_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[1], ids[2]);
    free(longer);
    http_close(client);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = dial();
    http_say(client, "POST /stream HTTP/1.1\r\n" HOST "Content-Length: 8\r\n\r\ncount 40"
                     "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\n2"
                     "GET /items/3 HTTP/1.1\r\n" HOST "\r\n"
                     "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                     "1\r\n4\r\n0\r\n\r\n"
                     "GET /health HTTP/1.1\r\n" HOST "\r\n");
    struct http_reply reply = expect(client, 200);
    assert_non_null(strstr(reply.body, "line 39\n"));
    http_reply_free(&reply);
    expect_body(client, 200, "2");
    expect_body(client, 200, "/items/3");
    expect_body(client, 200, "4");
    expect_body(client, 200, "ok");
    http_close(client);
    assert_int_equal(atomic_load(&http_notes.released_gone), 0);
}

static void old_clients_and_head(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = dial();
    http_say(client, "GET /health HTTP/1.0\r\n\r\n");
    expect_body(client, 200, "ok");
    assert_true(http_ends(client, 5));
    http_close(client);
    client = dial();
    http_say(client, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    expect_body(client, 200, "ok");
    http_say(client, "HEAD /health HTTP/1.1\r\n" HOST "\r\n"
                     "HEAD /nothing HTTP/1.1\r\n" HOST "\r\n"
                     "HEAD /stream HTTP/1.1\r\n" HOST "\r\n"
                     "GET /health HTTP/1.1\r\n" HOST "\r\n");
    struct http_reply reply = http_receive(client, true);
    assert_int_equal(reply.status, 200);
    expect_header(&reply, "Content-Length", "2");
    http_reply_free(&reply);
    reply = http_receive(client, true);
    assert_int_equal(reply.status, 404);
    http_reply_free(&reply);
    reply = http_receive(client, true);
    assert_int_equal(reply.status, 200);
    expect_header(&reply, "Content-Type", "text/event-stream");
    http_reply_free(&reply);
    expect_body(client, 200, "ok"); /* none of them had a body */
    http_close(client);
    assert_int_equal(atomic_load(&http_notes.released), 1);
    assert_int_equal(atomic_load(&http_notes.produced), 0);
}

/* ---- paths and methods ----------------------------------------------------------------------- */

static void paths_are_decoded_or_refused(void **state)
{
    (void)state;
    start((struct http_options){0});
    static const struct {
        const char *target, *path; /* NULL: 400 */
    } cases[] = {
        {"/items/a%2Fb%20c", "/items/a/b c"},
        {"/items/x?y=%zz&/items/z", "/items/x"},
        {"/items/%e2%82%ac+", "/items/€+"},
        {"http://localhost:1/items/q?http://", "/items/q"},
        {"/items?", "/items"},
        {"/items/a%00b", NULL},
        {"/items/%", NULL},
        {"/items/%4", NULL},
        {"/items/%g0", NULL},
        {"/items/%ff", NULL},
        {"/items/a%0d%0ab", NULL},
        {"/items/%c2%9b", NULL},
        {"items", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_client *client = dial();
        http_say(client, "GET %s HTTP/1.1\r\n" HOST "\r\n", cases[i].target);
        if (cases[i].path)
            expect_body(client, 200, cases[i].path);
        else
            expect_only(client, 400);
        http_close(client);
    }
    ask_only(404, "GET /items/ HTTP/1.1\r\n" HOST "\r\n"); /* a prefix wants more */
    ask_only(404, "GET http://localhost HTTP/1.1\r\n" HOST "\r\n");
    ask_only(404, "GET /Health HTTP/1.1\r\n" HOST "\r\n");
    struct http_reply reply = ask(404, "GET /\"quoted\\ HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(reply.body, "\"code\": null"));
    http_reply_free(&reply);
}

static void wrong_methods_say_which_are_right(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_reply reply =
        ask(405, "POST /items/1 HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}");
    expect_header(&reply, "Allow", "GET, HEAD, DELETE, OPTIONS");
    http_reply_free(&reply);
    reply = ask(405, "BREW /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_header(&reply, "Allow", "POST, OPTIONS");
    http_reply_free(&reply);
    reply = ask(204, "OPTIONS /echo HTTP/1.1\r\n" HOST "Origin: http://a\r\n"
                     "Access-Control-Request-Method: POST\r\n\r\n");
    expect_header(&reply, "Allow", "POST, OPTIONS");
    assert_null(strstr(reply.head, "Access-Control"));
    http_reply_free(&reply);
    ask_only(204, "OPTIONS * HTTP/1.1\r\n" HOST "\r\n");
    ask_only(404, "OPTIONS /nothing HTTP/1.1\r\n" HOST "\r\n");
    ask_only(400, "G@T /echo HTTP/1.1\r\n" HOST "\r\n");
    ask_only(500, "GET /silent HTTP/1.1\r\n" HOST "\r\n");
}

static void garbage_is_survived(void **state)
{
    (void)state;
    start((struct http_options){0});
    unsigned seed = 1;
    for (int round = 0; round < 40; round++) {
        char noise[600];
        size_t length = 1 + (size_t)rand_r(&seed) % sizeof noise;
        for (size_t i = 0; i < length; i++)
            noise[i] =
                (char)(rand_r(&seed) % 4 ? rand_r(&seed) % 256 : " \r\n:/"[rand_r(&seed) % 5]);
        struct http_client *client = dial();
        http_send(client, noise, length);
        http_say(client, "\r\n\r\n\r\n");
        shutdown(client->fd, SHUT_WR);
        struct http_reply reply = http_receive(client, false);
        assert_true(reply.status == 0 || (reply.status >= 400 && reply.status != 500));
        http_reply_free(&reply);
        http_close(client);
    }
    static const char *const odd[] = {
        "\x16\x03\x01\x02\r\n\r\n",
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        struct http_client *client = dial();
        http_say(client, "%s", odd[i]);
        struct http_reply reply = http_receive(client, false);
        assert_true(reply.status == 0 || (reply.status >= 400 && reply.status != 500));
        http_reply_free(&reply);
        http_close(client);
    }
    ask_only(200, "GET /health HTTP/1.1\r\n" HOST "\r\n");
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static void bodies_come_in_pieces(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = dial();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        http_say(client, "3;note=1\r\n%03d\r", i);
        usleep(2000);
        http_say(client, "\n");
    }
    http_say(client, "0\r\nTrailer: x\r\n\r\n");
    expect_body(client, 200, "000001002003004005006007008009010011012013014015016017018019");
    /* a megabyte, every byte */
    char *body = malloc(1 << 20);
    for (size_t i = 0; i < 1 << 20; i++)
        body[i] = (char)(i * 7 >> 3);
    http_say(client,
             "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: %d\r\n\r\n",
             1 << 20);
    while (!strstr(client->data, "100 Continue\r\n\r\n"))
        assert_true(http_more_bytes(client));
    http_send(client, body, 1 << 20);
    struct http_reply reply = expect(client, 200);
    assert_int_equal(reply.length, 1 << 20);
    assert_memory_equal(reply.body, body, 1 << 20);
    http_reply_free(&reply);
    free(body);
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n");
    expect_body(client, 200, "");
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_body(client, 200, "");
    http_close(client);
}

static void bodies_over_the_limit_are_refused(void **state)
{
    (void)state;
    start((struct http_options){.body_limit = 100000});
    /* told: at once, though not a byte of it came */
    struct http_client *client = dial();
    double begin = clock_seconds();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000000000000\r\n\r\n");
    struct http_reply reply = expect(client, 413);
    assert_true(clock_seconds() - begin < 0.5);
    expect_header(&reply, "Connection", "close");
    http_reply_free(&reply);
    assert_true(http_ends(client, 5));
    http_close(client);
    ask_only(413, "POST /echo HTTP/1.1\r\n" HOST
                  "Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n");
    /* told, and sent: the answer is seen behind all the bytes; memory stays as it is */
    char *much = repeat("0123456789abcdef", 1 << 16);
    bool measured = memory_peak_reset();
    int64_t before = memory_peak();
    client = dial();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000000000000\r\n\r\n");
    for (int i = 0; i < 4; i++)
        http_send(client, much, 1 << 20);
    expect_only(client, 413);
    for (int i = 0; i < 4; i++) { /* nor does who still sends meet a reset connection at once */
        assert_int_equal(send(client->fd, "more", 4, MSG_NOSIGNAL), 4);
        usleep(20000);
    }
    http_close(client);
    /* not told */
    client = dial();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 8; i++) {
        http_say(client, "100000\r\n");
        http_send(client, much, 1 << 20);
        http_say(client, "\r\n");
    }
    expect_only(client, 413);
    http_close(client);
    if (measured && !SANITIZED)
        assert_in_range(memory_peak() - before, 0, 4 << 20);
    /* the limit itself is fine, both ways */
    client = dial();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n%.100000s",
             much);
    expect_only(client, 200);
    http_say(client,
             "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
             "186a0\r\n%.100000s\r\n0\r\n\r\n",
             much);
    expect_only(client, 200);
    http_close(client);
    free(much);
    assert_int_equal(atomic_load(&http_notes.handled), 2);
}

static void frames_are_unambiguous(void **state)
{
    (void)state;
    start((struct http_options){0});
    ask_only(400,
             "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12");
    ask_only(400, "POST /echo HTTP/1.1\r\n" HOST
                  "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    ask_only(400,
             "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n");
    static const char *const refused[] = {
        "Content-Length: -1\r\n\r\n",
        "Content-Length: 1x\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "Content-Length: 99999999999999999999999999\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct http_client *client = dial();
        http_say(client, "POST /echo HTTP/1.1\r\n" HOST "%s", refused[i]);
        struct http_reply reply = http_receive(client, false);
        assert_int_equal(reply.status, i == 3 ? 413 : 400);
        http_reply_free(&reply);
        http_close(client);
    }
    assert_int_equal(atomic_load(&http_notes.handled), 0);
}

static void bodies_that_are_not_json_are_refused(void **state)
{
    (void)state;
    start((struct http_options){0});
    static const struct {
        const char *type;
        unsigned status;
    } cases[] = {
        {"application/json", 200},
        {"Application/JSON ; charset=utf-8", 200},
        {"text/plain;charset=UTF-8", 200},
        {"application/vnd.api+json", 200},
        {"application/x-www-form-urlencoded", 200},
        {"multipart/form-data; boundary=x", 415},
        {"application/jsonish", 415},
        {"+json", 415},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_client *client = dial();
        http_say(client,
                 "POST /echo HTTP/1.1\r\n" HOST "Content-Type: %s\r\nContent-Length: 2\r\n\r\n{}",
                 cases[i].type);
        expect_only(client, cases[i].status);
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n");
        expect_only(client, 200);
        http_close(client);
    }
}

/* ---- headers --------------------------------------------------------------------------------- */

static void headers_have_a_limit(void **state)
{
    (void)state;
    start((struct http_options){0});
    char *many = repeat("X-Stainless-Something: a value of middling length\r\n", 100);
    char *half = repeat("h", 60000), *more = repeat("h", 66000), *huge = repeat("h", 300000);
    char *thousands = repeat("a:b\r\n", 12000);
    struct http_client *client = dial();
    http_say(client, "GET /health HTTP/1.1\r\n" HOST "%s\r\n", many);
    expect_only(client, 200);
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "X-Long: %s\r\nContent-Length: 3\r\n\r\n[1]",
             half);
    expect_body(client, 200, "[1]");
    http_say(client, "GET /health HTTP/1.1\r\n" HOST "X-Long: %s\r\n\r\n", more);
    expect_only(client, 431); /* ours */
    assert_true(http_ends(client, 5));
    http_close(client);
    const char *beyond[] = {huge, thousands}; /* libmicrohttpd's */
    for (int i = 0; i < 2; i++) {
        client = dial();
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "X-Long: %s\r\n\r\n", beyond[i]);
        struct http_reply reply = http_receive(client, false);
        assert_int_equal(reply.status, 431);
        http_reply_free(&reply);
        http_close(client);
    }
    client = dial();
    http_say(client, "GET /%s HTTP/1.1\r\n" HOST "\r\n", huge);
    struct http_reply reply = http_receive(client, false);
    assert_int_equal(reply.status, 414);
    http_reply_free(&reply);
    http_close(client);
    free(many);
    free(half);
    free(more);
    free(huge);
    free(thousands);
    assert_int_equal(atomic_load(&http_notes.handled), 2);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void slow_requests_time_out(void **state)
{
    (void)state;
    start((struct http_options){.request_seconds = 0.5, .idle_seconds = 20});
    static const char *const beginnings[] = {
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100\r\n\r\n",  /* a body, not a byte */
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100\r\n\r\n{", /* and a byte */
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n2", /* a chunk's length */
        "POST /nothing HTTP/1.1\r\n" HOST "Content-Length: 100\r\n\r\n", /* one to be dropped */
        "POST /echo HTTP/1.1\r\n" HOST "X-Some: ",                       /* headers */
    };
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        struct http_client *client = dial();
        double begin = clock_seconds();
        http_say(client, "%s", beginnings[i]);
        expect_only(client, 408);
        assert_in_range((clock_seconds() - begin) * 1000, 400, 1500);
        assert_true(http_ends(client, 5));
        http_close(client);
        http_await(&http_notes.logged, (unsigned)i + 1);
        assert_int_equal(http_notes.last.status, 408);
        assert_true(http_notes.last.timed_out);
    }
    /* a byte now and then keeps nothing open */
    struct http_client *client = dial();
    double begin = clock_seconds();
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1000\r\n\r\n");
    while (clock_seconds() - begin < 1.2) {
        http_say(client, " ");
        usleep(50000);
    }
    expect_only(client, 408);
    http_close(client);
    assert_int_equal(atomic_load(&http_notes.handled), 0);
}

static void idle_connections_are_closed(void **state)
{
    (void)state;
    start((struct http_options){.idle_seconds = 0.5});
    struct http_client *silent = dial(), *client = dial();
    double begin = clock_seconds();
    assert_true(http_ends(silent, 5));
    assert_in_range((clock_seconds() - begin) * 1000, 300, 1500);
    http_close(client);
    client = dial();
    for (int i = 0; i < 4; i++) { /* longer than the limit in all */
        usleep(250000);
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n");
        expect_only(client, 200);
    }
    begin = clock_seconds();
    assert_true(http_ends(client, 5));
    assert_in_range((clock_seconds() - begin) * 1000, 300, 1500);
    http_close(client);
    http_close(silent);
    assert_int_equal(atomic_load(&http_notes.logged), 4);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void keys_are_asked_for(void **state)
{
    (void)state;
    char first[] = "sk-right";
    const char *keys[] = {first, "other key"};
    start((struct http_options){.keys = keys, .n_keys = 2});
    memset(first, 'x', sizeof first - 1); /* copied */
    static const struct {
        const char *header;
        unsigned status;
    } cases[] = {
        {"Authorization: Bearer sk-right\r\n", 200},
        {"authorization: bearer   sk-right \r\n", 200},
        {"Authorization: Bearer other key\r\n", 200},
        {"", 401},
        {"Authorization: Bearer\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Bearer s\r\n", 401},
        {"Authorization: Bearer sk-righ\r\n", 401},
        {"Authorization: Bearer sk-rightt\r\n", 401},
        {"Authorization: Bearer sk-rightsk-right\r\n", 401},
        {"Authorization: Bearer sk-Right\r\n", 401},
        {"Authorization: Basic sk-right\r\n", 401},
        {"Authorization: Bearer xxxxxxxx\r\n", 401},
        {"X-Api-Key: sk-right\r\n", 401},
    };
    struct http_client *client = dial();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        http_say(client, "POST /echo HTTP/1.1\r\n" HOST "%sContent-Length: 2\r\n\r\n{}",
                 cases[i].header);
        struct http_reply reply = expect(client, cases[i].status);
        if (cases[i].status == 401) {
            assert_non_null(strstr(reply.body, "\"code\": \"invalid_api_key\""));
            expect_header(&reply, "WWW-Authenticate", "Bearer");
        }
        http_reply_free(&reply);
    }
    http_say(client,
             "GET /nothing HTTP/1.1\r\n" HOST "\r\n"); /* what there is, is no one's business */
    expect_only(client, 401);
    http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\nOPTIONS /echo HTTP/1.1\r\n" HOST "\r\n");
    expect_only(client, 200);
    expect_only(client, 204);
    http_close(client);
    /* a long body is not waited for, nor one that the client would rather not send */
    ask_only(401, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9000000\r\n\r\n");
    ask_only(401,
             "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9\r\nExpect: 100-continue\r\n\r\n");
    ask_only(401, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
}

/* ---- CORS ------------------------------------------------------------------------------------ */

static void expect_cors(struct http_reply *reply)
{
    expect_header(reply, "Access-Control-Allow-Origin", "https://app.example");
    expect_header(reply, "Access-Control-Expose-Headers", "x-request-id");
    expect_header(reply, "Vary", "Origin");
    http_reply_free(reply);
}

static void origins_are_allowed_everywhere(void **state)
{
    (void)state;
    const char *keys[] = {"k"};
    start((struct http_options){.cors_origin = "https://app.example",
                                .keys = keys,
                                .n_keys = 1,
                                .body_limit = 1000,
                                .request_seconds = 0.5});
    struct http_reply reply =
        ask(204, "OPTIONS /echo HTTP/1.1\r\n" HOST "Origin: https://app.example\r\n"
                 "Access-Control-Request-Method: POST\r\n"
                 "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n");
    expect_header(&reply, "Access-Control-Allow-Methods", "POST, OPTIONS");
    expect_header(&reply, "Access-Control-Allow-Headers", "authorization,x-stainless-os");
    expect_header(&reply, "Access-Control-Max-Age", "86400");
    expect_cors(&reply);
#define KEY "Authorization: Bearer k\r\n"
    static const struct {
        unsigned status;
        const char *request;
    } cases[] = {
        {200, "GET /health HTTP/1.1\r\n" HOST "\r\n"},
        {200, "POST /stream HTTP/1.1\r\n" HOST KEY "Content-Length: 7\r\n\r\ncount 3"},
        {204, "OPTIONS /nothing HTTP/1.1\r\n" HOST "\r\n"},
        {400, "GET /%00 HTTP/1.1\r\n" HOST KEY "\r\n"},
        {401, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}"},
        {404, "GET /nothing HTTP/1.1\r\n" HOST KEY "\r\n"},
        {405, "GET /echo HTTP/1.1\r\n" HOST KEY "\r\n"},
        {408, "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: 2\r\n\r\n"},
        {413, "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: 2000\r\n\r\n"},
        {415, "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Type: a/b\r\nContent-Length: 1\r\n\r\n1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply = ask(cases[i].status, cases[i].request);
        expect_cors(&reply);
    }
}

/* ---- many connections ------------------------------------------------------------------------ */

static void connections_have_a_limit(void **state)
{
    (void)state;
    start((struct http_options){.connection_limit = 4});
    struct http_client *clients[60], *busy[4];
    unsigned answered[3] = {0};   /* 200, 503, closed */
    for (int i = 0; i < 4; i++) { /* a request under way keeps its connection */
        busy[i] = dial();
        http_say(busy[i], "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nnu");
    }
    for (double until = clock_seconds() + 5; http_server_running(server) < 4;)
        assert_true(clock_seconds() < until);
    for (int i = 0; i < 60; i++)
        clients[i] = dial();
    for (int i = 0; i < 60; i++) {
        http_say(clients[i], "GET /health HTTP/1.1\r\n" HOST "\r\n");
        struct http_reply reply = http_receive(clients[i], false);
        if (reply.status == 503)
            expect_header(&reply, "Retry-After", "1");
        answered[reply.status == 200 ? 0 : reply.status == 503 ? 1 : 2]++;
        http_reply_free(&reply);
    }
    for (int i = 0; i < 60; i++)
        http_close(clients[i]);
    assert_int_equal(answered[0], 0);
    assert_in_range(answered[1], 32, 60); /* those that got it make room for others */
    for (int i = 0; i < 4; i++) {
        http_say(busy[i], "ll");
        expect_body(busy[i], 200, "null");
        http_close(busy[i]);
    }
    http_await(&http_notes.logged, 4 + answered[1]);
    for (double until = clock_seconds() + 5;;) { /* and afterwards there is room */
        struct http_client *client = dial();
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n");
        struct http_reply reply = http_receive(client, false);
        http_reply_free(&reply);
        http_close(client);
        if (reply.status == 200)
            break;
        assert_true(clock_seconds() < until);
    }
}

static void idle_connections_make_room(void **state)
{
    (void)state;
    start((struct http_options){.connection_limit = 4});
    struct http_client *clients[12];
    for (int i = 0; i < 12; i++) {
        clients[i] = dial();
        http_say(clients[i], "GET /health HTTP/1.1\r\n" HOST "\r\n");
        expect_only(clients[i], 200);
        usleep(20000); /* by now its connection is idle */
    }
    for (int i = 0; i < 8; i++) /* the oldest were closed */
        assert_false(http_more_bytes(clients[i]));
    for (int i = 8; i < 12; i++) {
        http_say(clients[i], "GET /health HTTP/1.1\r\n" HOST "\r\n");
        expect_only(clients[i], 200);
    }
    for (int i = 0; i < 12; i++)
        http_close(clients[i]);
}

static void descriptors_stay_flat(void **state)
{
    (void)state;
    start((struct http_options){0});
    ask_only(200, "GET /health HTTP/1.1\r\n" HOST "\r\n");
    usleep(100000);
    unsigned before = http_descriptors(), after = 0;
    for (int i = 0; i < 200; i++) {
        struct http_client *client = dial();
        switch (i % 4) {
        case 0:
            http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n");
            expect_only(client, 200);
            break;
        case 1: /* leaves in the middle of a body */
            http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\n123");
            break;
        case 2: /* leaves in the middle of a line */
            http_say(client, "POST /ec");
            break;
        case 3: /* leaves before the answer */
            http_say(client, "POST /stream HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nflood");
            break;
        }
        http_close(client);
    }
    for (double until = clock_seconds() + 5; clock_seconds() < until; usleep(10000))
        if ((after = http_descriptors()) <= before)
            break;
    assert_int_equal(after, before);
    assert_int_equal(http_server_running(server), 0);
    http_await(&http_notes.released, 50);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static bool reaches_ipv6(int port)
{
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    to.sin6_addr = in6addr_loopback;
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool reached = fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0;
    if (fd >= 0)
        close(fd);
    return reached;
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 own = {.sin6_family = AF_INET6};
    own.sin6_addr = in6addr_loopback;
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&own, sizeof own) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

static void listens_where_it_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        bool ipv4, ipv6;
    } cases[] = {
        {"127.0.0.1", true, false}, {"localhost", true, false}, {"0.0.0.0", true, false},
        {"[::]", true, true},       {"::1", false, true},       {"[::1]", false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].ipv6 && !has_ipv6())
            continue;
        start((struct http_options){.host = cases[i].host});
        assert_true(http_server_port(server) > 0);
        assert_int_equal(reaches_ipv6(http_server_port(server)), cases[i].ipv6);
        if (cases[i].ipv4) {
            ask_only(200, "GET /health HTTP/1.1\r\n" HOST "\r\n");
            http_await(&http_notes.logged, 1);
            assert_memory_equal(http_notes.last.peer, "127.0.0.1:", 10);
        }
        http_server_stop(server, 0);
    }
    start((struct http_options){0});
}

static void wrong_addresses_are_named(void **state)
{
    (void)state;
    struct http_server *other = server;
    struct error error;
    start((struct http_options){0});
    static const struct {
        const char *host;
        int port;
        const char *said;
    } cases[] = {
        {"127.0.0.1", 0, "--port"},     {"192.0.2.7", 1, "--host 192.0.2.7"},
        {"no such host", 1, "--host"},  {"", 1, "--host"},
        {"[::1", 1, "--host"},          {"127.0.0.1", -1, "--port"},
        {"127.0.0.1", 65536, "--port"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_options options = {.host = cases[i].host, .port = cases[i].port};
        if (i == 0)
            options.port = http_server_port(server); /* taken */
        other = server;
        assert_int_not_equal(http_server_start(&options, &other, &error), STATUS_OK);
        assert_null(other);
        assert_memory_equal(error.message, cases[i].said, strlen(cases[i].said));
        assert_null(strchr(error.message, '\n'));
    }
    http_server_stop(NULL, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, stop_after)
    const struct CMUnitTest tests[] = {
        TEST(answers_and_keeps_alive),
        TEST(tells_what_happened),
        TEST(pipelined_requests_are_answered_in_order),
        TEST(old_clients_and_head),
        TEST(paths_are_decoded_or_refused),
        TEST(wrong_methods_say_which_are_right),
        TEST(garbage_is_survived),
        TEST(bodies_come_in_pieces),
        TEST(bodies_over_the_limit_are_refused),
        TEST(frames_are_unambiguous),
        TEST(bodies_that_are_not_json_are_refused),
        TEST(headers_have_a_limit),
        TEST(slow_requests_time_out),
        TEST(idle_connections_are_closed),
        TEST(keys_are_asked_for),
        TEST(origins_are_allowed_everywhere),
        TEST(connections_have_a_limit),
        TEST(idle_connections_make_room),
        TEST(descriptors_stay_flat),
        TEST(listens_where_it_is_told),
        TEST(wrong_addresses_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
