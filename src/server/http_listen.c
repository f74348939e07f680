#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/http_parts.h"

#define WAITING 128 /* connections that the kernel holds for us */

static enum status explain(struct error *error, const char *host, int port, int problem)
{
    const char *why = strerror(problem);
    switch (problem) {
    case EADDRINUSE:
        return error_set(error, STATUS_IO,
                         "--port %d: another program listens there, on %s; wanted a free one", port,
                         host);
    case EACCES:
        return error_set(error, STATUS_IO,
                         "--port %d: this user may not listen there, wanted 1024 to 65535", port);
    case EADDRNOTAVAIL:
        return error_set(error, STATUS_INVALID,
                         "--host %s: found no such address on this machine, wanted one of its own, "
                         "0.0.0.0 or ::",
                         host);
    default:
        return error_set(error, STATUS_IO, "--host %s --port %d: cannot listen: %s", host, port,
                         why);
    }
}

/* 0, or an errno. */
static int open_socket(const struct addrinfo *address, int *out)
{
    int on = 1, off = 0;
    int fd = socket(address->ai_family, SOCK_STREAM, IPPROTO_TCP);
    if (fd < 0)
        return errno;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6) /* [::] takes IPv4 too, on every system */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, WAITING) == 0) {
        *out = fd;
        return 0;
    }
    int problem = errno;
    close(fd);
    return problem;
}

static int port_of(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &length);
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* The first address that can be had; IPv4 first, since localhost has both and some clients try
 * but one. */
static int open_any(const struct addrinfo *found, int *out)
{
    int problem = EADDRNOTAVAIL;
    for (int other = 0; other < 2; other++)
        for (const struct addrinfo *at = found; at; at = at->ai_next) {
            if ((at->ai_family != AF_INET) != other)
                continue;
            int result = open_socket(at, out);
            if (result == 0)
                return 0;
            problem = result == EAFNOSUPPORT ? problem : result;
        }
    return problem;
}

enum status http_listen(const char *host, int port, int *out, int *out_port, struct error *error)
{
    char name[256], service[16];
    size_t length = strlen(host);
    bool bracketed = length > 2 && host[0] == '[' && host[length - 1] == ']';
    if (port < 0 || port > 65535)
        return error_set(error, STATUS_INVALID, "--port: found %d, wanted 0 to 65535", port);
    if (length == 0 || length >= sizeof name)
        return error_set(error, STATUS_INVALID, "--host: found '%s', wanted a name or an address",
                         host);
    snprintf(name, sizeof name, "%.*s", (int)(length - 2 * bracketed), host + bracketed);
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo wanted = {.ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    int failed = getaddrinfo(name, service, &wanted, &found);
    if (failed)
        return error_set(error, STATUS_INVALID,
                         "--host: found '%s', wanted a name or an address of this machine (%s)",
                         host, gai_strerror(failed));
    int problem = open_any(found, out);
    freeaddrinfo(found);
    if (problem)
        return explain(error, host, port, problem);
    *out_port = port_of(*out);
    return STATUS_OK;
}

void http_name_peer(const struct sockaddr *address, char out[HTTP_PEER_SIZE])
{
    char text[INET6_ADDRSTRLEN] = "?";
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        snprintf(out, HTTP_PEER_SIZE, "%s:%d", text, ntohs(in->sin_port));
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
        snprintf(out, HTTP_PEER_SIZE, mapped ? "%s:%d" : "[%s]:%d",
                 mapped ? text + strlen("::ffff:") : text, ntohs(in->sin6_port));
    } else {
        snprintf(out, HTTP_PEER_SIZE, "?");
    }
}
