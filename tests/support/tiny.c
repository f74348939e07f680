#include "support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "base/json.h"

#define LONGEST 1025

struct checkpoint *tiny;
static int32_t ids[LONGEST];

/* Fills ids from the case that has that many. */
static int read_ids(const char *text, size_t length)
{
    size_t from = 0, found = 0;
    while (from < length) {
        size_t to = from;
        while (to < length && text[to] != '\n')
            to++;
        json_t *line;
        if (json_parse(text + from, to - from, "cases.jsonl", &line, NULL) != STATUS_OK)
            return -1;
        const json_t *array = json_object_get(line, "ids");
        if (json_array_size(array) == LONGEST)
            for (size_t i = 0; i < LONGEST; i++, found++)
                ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
        json_decref(line);
        from = to + 1;
    }
    return found == LONGEST ? 0 : -1;
}

int tiny_setup(void **state)
{
    (void)state;
    struct error error;
    struct file_map map;
    if (checkpoint_open("models/tiny", &tiny, &error) != STATUS_OK ||
        file_map_open("models/tiny/reference/cases.jsonl", &map, &error) != STATUS_OK) {
        print_error("%s\n", error.message);
        return -1;
    }
    int code = read_ids((const char *)map.data, map.size);
    file_map_close(&map);
    return code;
}

int tiny_teardown(void **state)
{
    (void)state;
    checkpoint_close(tiny);
    return 0;
}

struct backend *tiny_backend(const struct backend_ops *ops, int32_t context, int n_sequences)
{
    struct backend_options options = {.weights = checkpoint_weights(tiny),
                                      .n_valid_ids = TINY_N_VALID_IDS,
                                      .context = context,
                                      .n_sequences = n_sequences};
    struct backend *backend = NULL;
    struct error error;
    if (ops->open(&options, &backend, &error) != STATUS_OK)
        fail_msg("%s: %s", ops->name, error.message);
    return backend;
}

const int32_t *tiny_ids(void)
{
    return ids;
}
