/* For tests of HTTP by its answers: the fixture's server, requests as they are written, and what
 * must come back. */
#pragma once

#include "support/http_client.h"
#include "support/http_fixture.h"

#define HOST "Host: localhost\r\n"

extern struct http_server *server;

void start(struct http_options options);
struct http_client *dial(void);
int stop_after(void **state); /* a test's teardown */

/* A reply of this status on the connection, whose body is an error unless it is a 2xx. */
struct http_reply expect(struct http_client *client, unsigned status);
void expect_only(struct http_client *client, unsigned status);
void expect_body(struct http_client *client, unsigned status, const char *body);
/* NULL: it has no such header. */
void expect_header(const struct http_reply *reply, const char *name, const char *value);
/* The same for a request on a connection of its own. */
struct http_reply ask(unsigned status, const char *request);
void ask_only(unsigned status, const char *request);

char *repeat(const char *text, size_t n); /* free it */
