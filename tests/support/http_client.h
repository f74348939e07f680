/* An HTTP client of bare sockets, for what no library would send. Every function fails the cmocka
 * test when the system refuses or 20 seconds pass. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct http_client {
    int fd;
    char *data; /* read and not yet taken, NUL-terminated */
    size_t length;
};

struct http_reply {
    unsigned status; /* 0: the connection ended before one came */
    char *head;      /* status line and headers, each line with its CR LF */
    char *body;      /* decoded when chunked; NUL-terminated */
    size_t length;
    bool whole; /* the body ended as it said it would; false: by the end of the connection */
};

struct http_client *http_connect(int port);
void http_close(struct http_client *client);
void http_send(struct http_client *client, const void *data, size_t length);
void http_say(struct http_client *client, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Waits for more bytes; false at the end of the connection, also a reset one. */
bool http_more_bytes(struct http_client *client);
/* True when the connection ends within `seconds` and nothing more came. */
bool http_ends(struct http_client *client, double seconds);
/* The next reply; `bodiless` when it answers HEAD. 100 Continue is skipped. */
struct http_reply http_receive(struct http_client *client, bool bodiless);
void http_reply_free(struct http_reply *reply);
/* A header's value, in the thread's static memory; NULL: absent. */
const char *http_reply_header(const struct http_reply *reply, const char *name);
