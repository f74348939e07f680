#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "base/json.h"

int golden_each(const char *path, void (*each)(void *context, const struct golden_line *line),
                void *context)
{
    struct file_map map;
    struct error error;
    if (file_map_open(path, &map, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    const char *at = (const char *)map.data, *end = at + map.size;
    int count = 0;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            stop = end;
        struct golden_line line = {.number = ++count, .text = at, .length = (size_t)(stop - at)};
        if (json_parse(line.text, line.length, path, &line.object, NULL) != STATUS_OK)
            line.object = NULL;
        each(context, &line);
        json_decref(line.object);
        at = stop + 1;
    }
    file_map_close(&map);
    return count;
}
