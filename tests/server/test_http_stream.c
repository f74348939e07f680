/* Streams, clients that leave, readers that do not read, and the server's end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/http_client.h"
#include "support/http_fixture.h"
#include "support/sanitized.h"

#define HOST "Host: localhost\r\n"

static struct http_server *server;

static void start(struct http_options options)
{
    server = http_fixture_start(options);
}

static int stop_after(void **state)
{
    (void)state;
    http_server_stop(server, 0);
    server = NULL;
    return 0;
}

static struct http_client *dial(void)
{
    return http_connect(http_server_port(server));
}

/* A new connection with a request of this body. */
static struct http_client *ask(const char *path, const char *body)
{
    struct http_client *client = dial();
    http_say(client, "POST %s HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n%s", path,
             strlen(body), body);
    return client;
}

/* Waits for the headers of a stream. */
static void await_head(struct http_client *client)
{
    while (!strstr(client->data, "\r\n\r\n"))
        assert_true(http_more_bytes(client));
}

/* ---- what comes ------------------------------------------------------------------------------ */

static void streams_are_whole(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = ask("/stream", "count 3");
    struct http_reply reply = http_receive(client, false);
    assert_int_equal(reply.status, 200);
    assert_true(reply.whole);
    assert_string_equal(reply.body, "line 0\nline 1\nline 2\n");
    assert_string_equal(http_reply_header(&reply, "Transfer-Encoding"), "chunked");
    assert_string_equal(http_reply_header(&reply, "Content-Type"), "text/event-stream");
    assert_string_equal(http_reply_header(&reply, "Cache-Control"), "no-cache");
    assert_string_equal(http_reply_header(&reply, "X-Accel-Buffering"), "no");
    assert_non_null(http_reply_header(&reply, "x-request-id"));
    http_reply_free(&reply);
    http_await(&http_notes.logged, 1);
    assert_int_equal(http_notes.last.bytes, 21);
    assert_false(http_notes.last.client_gone);
    http_say(client, "POST /stream HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nempty");
    reply = http_receive(client, false); /* on the same connection */
    assert_true(reply.whole && reply.length == 0);
    http_reply_free(&reply);
    http_close(client);
    client = dial();
    http_say(client, "POST /stream HTTP/1.0\r\nContent-Length: 9\r\n\r\ncount 900");
    reply = http_receive(client, false);
    assert_null(http_reply_header(&reply, "Transfer-Encoding"));
    assert_int_equal(reply.length, 10 * 7 + 90 * 8 + 800 * 9);
    assert_non_null(strstr(reply.body, "line 899\n"));
    http_reply_free(&reply);
    http_close(client);
    http_await(&http_notes.released, 3);
    assert_int_equal(atomic_load(&http_notes.released_gone), 0);
}

/* Each line goes out when it is made, and the headers before any. */
static void nothing_waits(void **state)
{
    (void)state;
    start((struct http_options){0});
    for (int i = 0; i < 5; i++) { /* a lucky packet proves nothing */
        double begin = clock_seconds();
        struct http_client *client = ask("/stream", "silent");
        await_head(client);
        double head = clock_seconds() - begin;
        http_close(client);
        begin = clock_seconds();
        client = ask("/stream", "first");
        while (!strstr(client->data, "line\n"))
            assert_true(http_more_bytes(client));
        double line = clock_seconds() - begin;
        http_close(client);
        assert_true(head < 0.1 && line < 0.1);
        if (i == 0)
            print_message("headers after %.1f ms, a line after %.1f ms\n", head * 1e3, line * 1e3);
    }
}

static void *read_stream(void *argument)
{
    struct http_client *client = ask("/stream", "pace 30");
    struct http_reply reply = http_receive(client, false);
    *(bool *)argument = reply.whole && strstr(reply.body, "line 29\n");
    http_reply_free(&reply);
    http_close(client);
    return NULL;
}

static void many_streams_at_once(void **state)
{
    (void)state;
    enum { N = 64 };
    pthread_t threads[N];
    bool whole[N] = {0};
    start((struct http_options){0});
    double begin = clock_seconds();
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_stream, &whole[i]), 0);
    unsigned most = 0;
    while (atomic_load(&http_notes.released) < N && clock_seconds() - begin < 30) {
        unsigned now = http_server_running(server);
        most = now > most ? now : most;
        usleep(1000);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_true(whole[i]);
    }
    assert_true(most > N / 2);
    assert_int_equal(atomic_load(&http_notes.released_gone), 0);
    assert_true(clock_seconds() - begin < (SANITIZED ? 10 : 5)); /* 0.6 s each */
}

/* ---- clients that leave ---------------------------------------------------------------------- */

enum leaving { CLOSES, RESETS, HALF_CLOSES, SENDS_AND_CLOSES, N_LEAVINGS };

static void leave(struct http_client *client, enum leaving how)
{
    struct linger none = {.l_onoff = 1};
    if (how == SENDS_AND_CLOSES) /* the end is behind bytes that nobody has read */
        http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n");
    if (how == RESETS)
        setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    if (how == HALF_CLOSES)
        shutdown(client->fd, SHUT_WR);
    else
        close(client->fd);
}

static void free_left(struct http_client *client, enum leaving how)
{
    if (how == HALF_CLOSES)
        close(client->fd);
    free(client->data);
    free(client);
}

static void a_silent_stream_notices_who_left(void **state)
{
    (void)state;
    start((struct http_options){0});
    for (unsigned how = 0; how < N_LEAVINGS; how++) {
        struct http_client *client = ask("/stream", "silent");
        await_head(client);
        usleep(150000);
        assert_int_equal(atomic_load(&http_notes.released), how);
        double left = clock_seconds();
        leave(client, how);
        http_await(&http_notes.released, how + 1);
        double noticed = atomic_load(&http_notes.noticed) - left;
        print_message("noticed after %.0f ms\n", noticed * 1e3);
        assert_true(noticed < 1);
        http_await(&http_notes.logged, how + 1);
        assert_true(http_notes.last.client_gone);
        free_left(client, how);
    }
    assert_int_equal(atomic_load(&http_notes.released_gone), N_LEAVINGS);
}

static void a_blocked_handler_notices_who_left(void **state)
{
    (void)state;
    start((struct http_options){0});
    for (unsigned how = 0; how < N_LEAVINGS; how++) {
        struct http_client *client = ask("/block", "");
        http_await(&http_notes.blocked, 1);
        usleep(150000);
        assert_int_equal(atomic_load(&http_notes.blocked), 1);
        double left = clock_seconds();
        leave(client, how);
        http_await(&http_notes.blocked, 0);
        double noticed = atomic_load(&http_notes.noticed) - left;
        assert_true(noticed > 0 && noticed < 1);
        free_left(client, how);
    }
}

static void waiting_bytes_are_not_a_farewell(void **state)
{
    (void)state;
    start((struct http_options){0});
    struct http_client *client = ask("/stream", "pace 20");
    await_head(client);
    http_say(client, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nnext");
    struct http_reply reply = http_receive(client, false);
    assert_true(reply.whole && strstr(reply.body, "line 19\n"));
    http_reply_free(&reply);
    reply = http_receive(client, false);
    assert_string_equal(reply.body, "next");
    http_reply_free(&reply);
    http_close(client);
    assert_int_equal(atomic_load(&http_notes.released_gone), 0);
}

static void clients_leave_at_any_moment(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_DFL);
    start((struct http_options){0});
    unsigned seed = 7, n = 40;
    for (unsigned i = 0; i < n; i++) {
        struct http_client *client = ask("/stream", i % 2 ? "flood" : "pace 1000");
        await_head(client);
        for (int reads = rand_r(&seed) % 20; reads > 0; reads--)
            assert_true(http_more_bytes(client));
        usleep((unsigned)rand_r(&seed) % 20000);
        enum leaving how = (enum leaving)(rand_r(&seed) % 2);
        leave(client, how);
        free_left(client, how);
    }
    http_await(&http_notes.released, n);
    assert_int_equal(atomic_load(&http_notes.released_gone), n);
    http_await(&http_notes.logged, n);
    assert_int_equal(http_server_running(server), 0);
}

/* ---- readers that do not read ---------------------------------------------------------------- */

static void who_does_not_read_holds_up_the_producer(void **state)
{
    (void)state;
    start((struct http_options){.idle_seconds = 1.5});
    struct http_client *client = ask("/stream", "flood");
    http_await(&http_notes.released, 1); /* cut, when nothing has moved for so long */
    unsigned long long bytes = atomic_load(&http_notes.bytes);
    print_message("%llu KB were taken\n", bytes >> 10);
    assert_in_range(bytes, 1, 32 << 20); /* the kernel's buffers; a flood is gigabytes by then */
    assert_int_equal(atomic_load(&http_notes.released_gone), 1);
    http_await(&http_notes.logged, 1);
    assert_true(http_notes.last.client_gone && http_notes.last.timed_out);
    http_close(client);
}

static void slow_streams_and_readers_are_not_cut(void **state)
{
    (void)state;
    start((struct http_options){.idle_seconds = 0.4});
    struct http_client *client = ask("/stream", "pace 50"); /* 1 s in all */
    struct http_reply reply = http_receive(client, false);
    assert_true(reply.whole);
    http_reply_free(&reply);
    http_close(client);
    client = ask("/stream", "first"); /* silence is the server's own */
    await_head(client);
    usleep(1000000);
    assert_int_equal(atomic_load(&http_notes.released), 1);
    http_close(client);
}

/* ---- the ends of a stream -------------------------------------------------------------------- */

static void each_end_releases_once(void **state)
{
    (void)state;
    start((struct http_options){0});
    static const struct {
        const char *body;
        unsigned gone;
    } cases[] = {{"count 5", 0}, {"empty", 0}, {"fail", 1}};
    unsigned gone = 0;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_client *client = ask("/stream", cases[i].body);
        struct http_reply reply = http_receive(client, false);
        assert_int_equal(reply.whole, !cases[i].gone);
        http_reply_free(&reply);
        http_await(&http_notes.released, i + 1);
        gone += cases[i].gone;
        assert_int_equal(atomic_load(&http_notes.released_gone), gone);
        http_await(&http_notes.logged, i + 1);
        http_close(client);
    }
    unsigned calls = atomic_load(&http_notes.produced);
    struct http_client *client = ask("/stream", "silent"); /* and the server's end */
    await_head(client);
    for (int i = 0; i < 5000 && atomic_load(&http_notes.produced) == calls; i++)
        usleep(1000);
    http_server_stop(server, 0);
    server = NULL;
    assert_true(atomic_load(&http_notes.produced) > calls);
    assert_int_equal(atomic_load(&http_notes.released), sizeof cases / sizeof cases[0] + 1);
    assert_int_equal(atomic_load(&http_notes.released_gone), gone + 1);
    http_close(client);
}

/* ---- the server's end ------------------------------------------------------------------------ */

static void *stop_gently(void *argument)
{
    http_server_stop(server, 10);
    *(double *)argument = clock_seconds();
    return NULL;
}

static bool is_refused(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool refused = connect(fd, (struct sockaddr *)&to, sizeof to) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

static void what_runs_may_finish(void **state)
{
    (void)state;
    start((struct http_options){0});
    int port = http_server_port(server);
    struct http_client *idle = dial(), *used = ask("/echo", "1"),
                       *client = ask("/stream", "pace 50");
    struct http_reply reply = http_receive(used, false);
    http_reply_free(&reply);
    await_head(client);
    pthread_t thread;
    double begin = clock_seconds(), ended = 0;
    pthread_create(&thread, NULL, stop_gently, &ended);
    assert_true(http_ends(idle, 0.5)); /* at once, long before the stream's end */
    assert_true(http_ends(used, 0.5));
    assert_true(is_refused(port));
    assert_true(clock_seconds() - begin < 0.8);
    http_say(client, "GET /health HTTP/1.1\r\n" HOST "\r\n"); /* too late */
    reply = http_receive(client, false);
    assert_true(reply.whole && strstr(reply.body, "line 49\n"));
    http_reply_free(&reply);
    reply = http_receive(client, false);
    assert_true(reply.status == 0 || reply.status == 503);
    http_reply_free(&reply);
    pthread_join(thread, NULL);
    server = NULL;
    assert_true(ended - begin > 0.5 && ended - begin < 5); /* no longer than it took */
    assert_int_equal(atomic_load(&http_notes.released_gone), 0);
    http_close(idle);
    http_close(used);
    http_close(client);
}

static void what_takes_too_long_is_cut(void **state)
{
    (void)state;
    enum { N = 12 };
    static const char *const paths[] = {"/stream", "/stream", "/block", "/stream"};
    static const char *const bodies[] = {"silent", "flood", "", "pace 100000"};
    struct http_client *clients[N];
    start((struct http_options){0});
    for (int i = 0; i < N; i++) {
        clients[i] = ask(paths[i % 4], bodies[i % 4]);
        if (i % 4 != 2)
            await_head(clients[i]);
    }
    http_await(&http_notes.blocked, N / 4);
    assert_int_equal(http_server_running(server), N);
    double begin = clock_seconds();
    http_server_stop(server, 0.3);
    server = NULL;
    double took = clock_seconds() - begin;
    assert_true(took >= 0.3 && took < 2);
    assert_int_equal(atomic_load(&http_notes.blocked), 0);
    assert_int_equal(atomic_load(&http_notes.released), N - N / 4);
    assert_int_equal(atomic_load(&http_notes.released_gone), N - N / 4);
    assert_int_equal(atomic_load(&http_notes.logged), N);
    for (int i = 0; i < N; i++)
        http_close(clients[i]);
}

static void a_server_stops_at_once_and_starts_again(void **state)
{
    (void)state;
    int port = 0;
    unsigned before = http_descriptors();
    for (int i = 0; i < 5; i++) {
        start((struct http_options){.port = port});
        port = http_server_port(server);
        struct http_client *client = ask("/echo", "[]");
        struct http_reply reply = http_receive(client, false);
        assert_string_equal(reply.body, "[]");
        http_reply_free(&reply);
        double begin = clock_seconds();
        http_server_stop(server, 10); /* nothing runs, so nothing is waited for */
        server = NULL;
        assert_true(clock_seconds() - begin < 1);
        http_close(client);
    }
    assert_int_equal(http_descriptors(), before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, stop_after)
    const struct CMUnitTest tests[] = {
        TEST(streams_are_whole),
        TEST(nothing_waits),
        TEST(many_streams_at_once),
        TEST(a_silent_stream_notices_who_left),
        TEST(a_blocked_handler_notices_who_left),
        TEST(waiting_bytes_are_not_a_farewell),
        TEST(clients_leave_at_any_moment),
        TEST(who_does_not_read_holds_up_the_producer),
        TEST(slow_streams_and_readers_are_not_cut),
        TEST(each_end_releases_once),
        TEST(what_runs_may_finish),
        TEST(what_takes_too_long_is_cut),
        TEST(a_server_stops_at_once_and_starts_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
