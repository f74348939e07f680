/* Requests and answers over bare sockets: every status the HTTP layer gives by itself, keep-alive,
 * pipelining, paths, bodies in all forms, headers. test_http_gate.c has limits of time and number,
 * keys, CORS and addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "support/http_expect.h"
#include "support/sanitized.h"

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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
