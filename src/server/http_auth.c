#include <string.h>
#include <strings.h>

#include "server/http_parts.h"

/* Takes as long for every `given` of a length, whatever is in it. */
static bool equal(const char *given, size_t length, const char *key)
{
    size_t n = strlen(key);
    volatile unsigned char differs = length != n || n == 0;
    for (size_t i = 0; i < length; i++)
        differs |= (unsigned char)(given[i] ^ key[n > 0 ? i % n : 0]);
    return !differs;
}

bool http_key_fits(const struct http_server *server, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (server->options.n_keys == 0)
        return true;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *given = authorization + sizeof scheme - 1;
    given += strspn(given, " \t");
    size_t length = strlen(given);
    while (length > 0 && (given[length - 1] == ' ' || given[length - 1] == '\t'))
        length--;
    bool fits = false;
    for (size_t i = 0; i < server->options.n_keys; i++)
        fits |= equal(given, length, server->keys[i]);
    return fits;
}
