/* Allocations fail one by one while a server starts, answers, refuses, streams and stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http.h"
#include "support/alloc.h"

#define HOST "Host: localhost\r\n"

static unsigned begun, released; /* streams */

static void echo(void *context, struct http_exchange *exchange)
{
    struct bytes copy = {0};
    size_t length;
    const char *body = http_body(exchange, &length);
    (void)context;
    bytes_append(&copy, body, length);
    http_header(exchange, "X-Extra", "yes");
    http_answer_bytes(exchange, 200, "application/json", &copy);
}

static enum http_more produce(void *context, struct bytes *out)
{
    bytes_append_text(out, context);
    return HTTP_END;
}

static void count_release(void *context, bool gone)
{
    (void)context, (void)gone;
    released++;
}

static void stream(void *context, struct http_exchange *exchange)
{
    static char text[] = "data: 1\n\n";
    (void)context;
    begun++;
    http_stream(exchange, "text/event-stream", produce, text, count_release);
}

/* Sends a request; whether all that is wanted comes back before anything else. */
static bool ask(int fd, const char *request, const char *begins, const char *ends)
{
    char data[2048] = "";
    size_t length = 0;
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0)
        return false;
    while (length + 1 < sizeof data) {
        ssize_t n = recv(fd, data + length, sizeof data - 1 - length, 0);
        if (n <= 0)
            return false;
        length += (size_t)n;
        data[length] = '\0';
        if (strncmp(data, begins, strlen(begins)) != 0)
            return false;
        if (strstr(data, ends))
            return strstr(data, "x-request-id") != NULL;
    }
    return false;
}

static bool talk(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool good =
        connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        ask(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\n\"12\"", "HTTP/1.1 200",
            "\r\n\r\n\"12\"") &&
        ask(fd, "GET /other HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404", "\"code\": null}}") &&
        ask(fd, "POST /stream HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 200", "\n\n\r\n0\r\n\r\n");
    close(fd);
    return good;
}

static enum status serve(void *context, struct error *error)
{
    static const struct http_route routes[] = {
        {"POST", "/echo", .handler = echo},
        {"POST", "/stream", .handler = stream},
    };
    struct http_options options = {
        .routes = routes, .n_routes = 2, .cors_origin = "*", .idle_seconds = 0.3};
    struct http_server *server;
    (void)context;
    enum status status = http_server_start(&options, &server, error);
    if (status != STATUS_OK)
        return status;
    bool good = talk(http_server_port(server));
    http_server_stop(server, 5);
    return good ? STATUS_OK : error_no_memory(error, "an answer");
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    begun = released = 0;
    size_t n = alloc_sweep(serve, NULL, 0);
    assert_true(n > 10);
    assert_true(begun > 0);
    assert_int_equal(released, begun);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
