/* Who is let in, and for how long: timeouts, keys, CORS, many connections, addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "support/http_expect.h"

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
        TEST(slow_requests_time_out),    TEST(idle_connections_are_closed),
        TEST(keys_are_asked_for),        TEST(origins_are_allowed_everywhere),
        TEST(connections_have_a_limit),  TEST(idle_connections_make_room),
        TEST(descriptors_stay_flat),     TEST(listens_where_it_is_told),
        TEST(wrong_addresses_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
