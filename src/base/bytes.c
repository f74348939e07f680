#include "base/bytes.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct bytes *bytes, size_t more)
{
    if (bytes->failed)
        return false;
    if (more <= bytes->capacity - bytes->length)
        return true;
    size_t capacity = bytes->capacity < 64 ? 64 : bytes->capacity;
    while (capacity - bytes->length < more) {
        if (capacity > SIZE_MAX / 2) {
            bytes->failed = true;
            return false;
        }
        capacity *= 2;
    }
    char *data = realloc(bytes->data, capacity);
    if (!data) {
        bytes->failed = true;
        return false;
    }
    bytes->data = data;
    bytes->capacity = capacity;
    return true;
}

void bytes_append(struct bytes *bytes, const void *data, size_t length)
{
    if (length == 0 || !reserve(bytes, length))
        return;
    memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

void bytes_append_text(struct bytes *bytes, const char *text)
{
    bytes_append(bytes, text, strlen(text));
}

void bytes_append_byte(struct bytes *bytes, char byte)
{
    bytes_append(bytes, &byte, 1);
}

void bytes_format(struct bytes *bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) { /* longer than INT_MAX */
        bytes->failed = true;
    } else if (reserve(bytes, (size_t)length + 1)) {
        vsnprintf(bytes->data + bytes->length, (size_t)length + 1, format, again);
        bytes->length += (size_t)length;
    }
    va_end(again);
}

const char *bytes_terminate(struct bytes *bytes)
{
    if (!reserve(bytes, 1))
        return NULL;
    bytes->data[bytes->length] = '\0';
    return bytes->data;
}

void bytes_reset(struct bytes *bytes)
{
    bytes->length = 0;
    bytes->failed = false;
}

void bytes_clear(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}
