#include "cli/input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

const char *input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "stdin" : *path ? path : "''";
}

enum status input_check_size(const char *name, size_t length, struct error *error)
{
    if (length <= INPUT_MAX)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: found more than %zu bytes, wanted at most so many",
                     name, INPUT_MAX);
}

enum status input_read(const char *path, struct bytes *out, struct error *error)
{
    bool standard = strcmp(path, "-") == 0;
    const char *name = input_name(path);
    FILE *file = standard ? stdin : fopen(path, "re");
    if (!file)
        return error_set(error, STATUS_IO, "%s: %s", name, strerror(errno));
    char block[8192];
    size_t n, length = 0;
    while (!out->failed && length <= INPUT_MAX && (n = fread(block, 1, sizeof block, file)) > 0) {
        bytes_append(out, block, n);
        length += n;
    }
    enum status status = input_check_size(name, length, error);
    if (status == STATUS_OK && ferror(file))
        status = error_set(error, STATUS_IO, "%s: %s", name, strerror(errno));
    else if (status == STATUS_OK && out->failed)
        status = error_no_memory(error, name);
    if (!standard)
        fclose(file);
    return status;
}

enum status input_line(struct bytes *out, bool *found, struct error *error)
{
    char block[4096];
    size_t n = 0, length = 0;
    int c = 0;
    errno = 0;
    while (length <= INPUT_MAX && (c = getc_unlocked(stdin)) != EOF && c != '\n') {
        block[n++] = (char)c;
        length++;
        if (n == sizeof block) {
            bytes_append(out, block, n);
            n = 0;
        }
    }
    bytes_append(out, block, n);
    *found = length > 0 || c == '\n';
    if (c == EOF && ferror(stdin))
        return error_set(error, STATUS_IO, "cannot read stdin: %s", strerror(errno));
    if (out->failed)
        return error_no_memory(error, "a line of stdin");
    return input_check_size("a line of stdin", length, error);
}

enum status input_check_utf8(const char *name, const char *text, size_t length, struct error *error)
{
    size_t valid = utf8_valid_length(text, length);
    if (valid == length)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: not UTF-8 at byte %zu (0x%02x)", name, valid,
                     (unsigned char)text[valid]);
}

enum status input_read_json(const char *path, struct bytes *out, struct error *error)
{
    enum status status = input_read(path, out, error);
    if (status != STATUS_OK)
        return status;
    if (memchr(out->data ? out->data : "", '\0', out->length))
        return error_set(error, STATUS_INVALID, "%s: found a NUL byte, wanted JSON text", path);
    json_t *value;
    status = json_parse(out->data ? out->data : "", out->length, input_name(path), &value, error);
    if (status != STATUS_OK)
        return status;
    json_decref(value);
    return bytes_terminate(out) ? STATUS_OK : error_no_memory(error, path);
}

bool input_is_blank(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}
