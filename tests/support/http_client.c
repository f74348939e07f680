#include "support/http_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define PATIENCE 20000 /* ms */

struct http_client *http_connect(int port)
{
    struct http_client *client = calloc(1, sizeof *client);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    client->data = calloc(1, 1);
    assert_true(client->fd >= 0);
    assert_return_code(connect(client->fd, (struct sockaddr *)&to, sizeof to), 0);
    return client;
}

void http_close(struct http_client *client)
{
    close(client->fd);
    free(client->data);
    free(client);
}

void http_send(struct http_client *client, const void *data, size_t length)
{
    const char *from = data;
    while (length > 0) {
        ssize_t n = send(client->fd, from, length, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* the reply tells why */
        from += n;
        length -= (size_t)n;
    }
}

void http_say(struct http_client *client, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    http_send(client, text, (size_t)length);
    free(text);
}

bool http_more_bytes(struct http_client *client)
{
    char piece[16384];
    struct pollfd poller = {.fd = client->fd, .events = POLLIN};
    assert_int_equal(poll(&poller, 1, PATIENCE), 1);
    ssize_t n = recv(client->fd, piece, sizeof piece, 0);
    if (n <= 0)
        return false;
    client->data = realloc(client->data, client->length + (size_t)n + 1);
    memcpy(client->data + client->length, piece, (size_t)n);
    client->length += (size_t)n;
    client->data[client->length] = '\0';
    return true;
}

bool http_ends(struct http_client *client, double seconds)
{
    struct pollfd poller = {.fd = client->fd, .events = POLLIN};
    char byte;
    return client->length == 0 && poll(&poller, 1, (int)(seconds * 1000)) == 1 &&
           recv(client->fd, &byte, 1, 0) <= 0;
}

static void take(struct http_client *client, size_t n)
{
    memmove(client->data, client->data + n, client->length - n + 1);
    client->length -= n;
}

static bool wait_for(struct http_client *client, size_t n)
{
    while (client->length < n)
        if (!http_more_bytes(client))
            return false;
    return true;
}

static void add(struct http_reply *reply, const char *data, size_t length)
{
    reply->body = realloc(reply->body, reply->length + length + 1);
    memcpy(reply->body + reply->length, data, length);
    reply->length += length;
    reply->body[reply->length] = '\0';
}

static bool receive_chunks(struct http_client *client, struct http_reply *reply)
{
    for (;;) {
        char *end;
        while (!(end = strstr(client->data, "\r\n")))
            if (!http_more_bytes(client))
                return false;
        size_t size = strtoul(client->data, NULL, 16), line = (size_t)(end - client->data) + 2;
        if (!wait_for(client, line + size + 2))
            return false;
        add(reply, client->data + line, size);
        take(client, line + size + 2);
        if (size == 0)
            return true;
    }
}

static bool receive_body(struct http_client *client, struct http_reply *reply)
{
    const char *length = http_reply_header(reply, "Content-Length");
    if (length) {
        size_t wanted = strtoul(length, NULL, 10);
        bool whole = wait_for(client, wanted);
        size_t n = whole ? wanted : client->length;
        add(reply, client->data, n);
        take(client, n);
        return whole;
    }
    if (http_reply_header(reply, "Transfer-Encoding"))
        return receive_chunks(client, reply);
    while (http_more_bytes(client))
        ;
    add(reply, client->data, client->length);
    take(client, client->length);
    return false;
}

struct http_reply http_receive(struct http_client *client, bool bodiless)
{
    struct http_reply reply = {.body = calloc(1, 1)};
    char *end;
    while (!(end = strstr(client->data, "\r\n\r\n")))
        if (!http_more_bytes(client)) {
            reply.head = calloc(1, 1);
            return reply;
        }
    size_t length = (size_t)(end - client->data) + 4;
    reply.head = strndup(client->data, length - 2);
    take(client, length);
    assert_int_equal(sscanf(reply.head, "HTTP/1.%*c %u", &reply.status), 1);
    if (reply.status == 100) {
        http_reply_free(&reply);
        return http_receive(client, bodiless);
    }
    reply.whole = bodiless || reply.status == 204 || receive_body(client, &reply);
    return reply;
}

void http_reply_free(struct http_reply *reply)
{
    free(reply->head);
    free(reply->body);
}

const char *http_reply_header(const struct http_reply *reply, const char *name)
{
    static _Thread_local char value[512];
    size_t length = strlen(name);
    for (const char *line = strstr(reply->head, "\r\n"); line && line[2];
         line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':') {
            const char *from = line + 3 + length + strspn(line + 3 + length, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(from, "\r"), from);
            return value;
        }
    return NULL;
}
