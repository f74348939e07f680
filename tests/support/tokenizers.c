#include "support/tokenizers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "base/json.h"

static struct tokenizer *open_tokenizer(const char *path)
{
    struct tokenizer *tokenizer;
    struct error error;
    if (tokenizer_open(path, &tokenizer, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return tokenizer;
}

struct tokenizer *tokenizer_tiny(void)
{
    return open_tokenizer("models/tiny/tokenizer.json");
}

struct tokenizer *tokenizer_target(void)
{
    const char *path = getenv("CALLA_TOKENIZER");
    if (!path || !*path) {
        print_message("CALLA_TOKENIZER names no tokenizer.json of the target\n");
        skip();
    }
    return open_tokenizer(path);
}

struct token_list encode_text(const struct tokenizer *tokenizer, const char *text, size_t length,
                              bool trusted)
{
    struct token_list ids = {0};
    struct text_span span = {.data = text, .length = length, .trusted = trusted};
    struct error error;
    if (tokenizer_encode(tokenizer, &span, 1, &ids, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return ids;
}

void assert_ids(const struct token_list *found, const json_t *wanted, const char *what)
{
    size_t n = json_array_size(wanted), at = 0;
    while (at < n && at < found->length &&
           json_integer_value(json_array_get(wanted, at)) == found->data[at])
        at++;
    if (at < n || at < found->length)
        fail_msg("%s: found %zu ids, wanted %zu; at index %zu found %d, wanted %d", what,
                 found->length, n, at, at < found->length ? found->data[at] : -1,
                 at < n ? (int)json_integer_value(json_array_get(wanted, at)) : -1);
}

void assert_encodes(const struct tokenizer *tokenizer, const char *text, bool trusted,
                    const char *ids)
{
    struct token_list found = encode_text(tokenizer, text, strlen(text), trusted);
    struct bytes words = {0};
    for (size_t i = 0; i < found.length; i++)
        bytes_format(&words, i ? " %d" : "%d", found.data[i]);
    assert_non_null(bytes_terminate(&words));
    assert_string_equal(words.data, ids);
    bytes_clear(&words);
    token_list_clear(&found);
}

int for_each_line(const char *path, void (*each)(void *context, const json_t *line), void *context)
{
    struct file_map map;
    struct error error;
    if (file_map_open(path, &map, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    const char *at = (const char *)map.data, *end = at + map.size;
    int n = 0;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((line_end ? line_end : end) - at);
        json_t *line;
        if (json_parse(at, length, path, &line, &error) != STATUS_OK)
            fail_msg("line %d: %s", n + 1, error.message);
        each(context, line);
        json_decref(line);
        at += length + 1;
        n++;
    }
    file_map_close(&map);
    return n;
}
