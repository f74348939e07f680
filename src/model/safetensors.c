#include "model/safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {{"BF16", 2}, {"U32", 4}, {"F32", 4},     {"F16", 2},    {"F64", 8}, {"BOOL", 1},
              {"U8", 1},   {"I8", 1},  {"U16", 2},     {"I16", 2},    {"I32", 4}, {"U64", 8},
              {"I64", 8},  {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

void tensor_describe_shape(const int64_t *dims, int n_dims, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRId64, i ? ", " : "", dims[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
}

__attribute__((format(printf, 4, 5))) static enum status refuse(const struct safetensors *file,
                                                                const char *tensor,
                                                                struct error *error,
                                                                const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(error, STATUS_INVALID, "%s: tensor %.120s: %s", file->path, tensor, text);
}

static enum status read_dtype(const json_t *entry, struct tensor *tensor, int *bytes,
                              struct error *error)
{
    const char *found = json_string_value(json_object_get(entry, "dtype"));
    if (!found)
        return refuse(tensor->file, tensor->name, error, "dtype: wanted a string");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(found, dtypes[i].name) != 0)
            continue;
        tensor->dtype = dtypes[i].name;
        *bytes = dtypes[i].bytes;
        return STATUS_OK;
    }
    return refuse(tensor->file, tensor->name, error, "dtype: found %.40s, which is unknown", found);
}

/* Fills dims and size. */
static enum status read_shape(const json_t *entry, struct tensor *tensor, int bytes_per_value,
                              struct error *error)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_MAX_DIMS)
        return refuse(tensor->file, tensor->name, error,
                      "shape: wanted an array of at most %d integers", TENSOR_MAX_DIMS);
    tensor->n_dims = (int)json_array_size(shape);
    tensor->size = bytes_per_value;
    for (int i = 0; i < tensor->n_dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse(tensor->file, tensor->name, error,
                          "shape[%d]: wanted an integer that is not negative", i);
        tensor->dims[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(tensor->size, tensor->dims[i], &tensor->size))
            return refuse(tensor->file, tensor->name, error,
                          "shape: more bytes than 64 bits can count");
    }
    return STATUS_OK;
}

static enum status read_offsets(const json_t *entry, struct tensor *tensor, int64_t data_start,
                                int64_t data_size, struct error *error)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return refuse(tensor->file, tensor->name, error,
                      "data_offsets: wanted an array of two integers");
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin || end > data_size)
        return refuse(tensor->file, tensor->name, error,
                      "data_offsets: found [%" PRId64 ", %" PRId64 "], wanted a stretch of the "
                      "file's %" PRId64 " data bytes (is the file complete?)",
                      begin, end, data_size);
    if (end - begin != tensor->size) {
        char shape[160];
        tensor_describe_shape(tensor->dims, tensor->n_dims, shape, sizeof shape);
        return refuse(tensor->file, tensor->name, error,
                      "data_offsets: found %" PRId64 " bytes, wanted %" PRId64 " for %s %s",
                      end - begin, tensor->size, tensor->dtype, shape);
    }
    tensor->begin = data_start + begin;
    return STATUS_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct tensor *const *left = a, *const *right = b;
    if ((*left)->begin != (*right)->begin)
        return (*left)->begin < (*right)->begin ? -1 : 1;
    return ((*left)->size > (*right)->size) - ((*left)->size < (*right)->size);
}

static enum status check_overlap(const struct safetensors *file, struct error *error)
{
    const struct tensor **order = malloc((file->n_tensors + 1) * sizeof *order);
    if (!order)
        return error_no_memory(error, file->path);
    size_t n = 0;
    for (size_t i = 0; i < file->n_tensors; i++)
        if (file->tensors[i].size > 0)
            order[n++] = &file->tensors[i];
    qsort(order, n, sizeof *order, by_begin);
    enum status status = STATUS_OK;
    for (size_t i = 1; i < n && status == STATUS_OK; i++)
        if (order[i]->begin < order[i - 1]->begin + order[i - 1]->size)
            status = refuse(file, order[i]->name, error, "shares bytes with tensor %.120s",
                            order[i - 1]->name);
    free(order);
    return status;
}

static enum status read_tensors(struct safetensors *file, int64_t data_start, int64_t data_size,
                                struct error *error)
{
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return error_no_memory(error, file->path);
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct tensor *tensor = &file->tensors[file->n_tensors];
        tensor->name = name;
        tensor->file = file;
        if (!json_is_object(entry))
            return refuse(file, name, error, "wanted an object with dtype, shape and data_offsets");
        int bytes_per_value = 0;
        enum status status = read_dtype(entry, tensor, &bytes_per_value, error);
        if (status == STATUS_OK)
            status = read_shape(entry, tensor, bytes_per_value, error);
        if (status == STATUS_OK)
            status = read_offsets(entry, tensor, data_start, data_size, error);
        if (status != STATUS_OK)
            return status;
        file->n_tensors++;
    }
    return check_overlap(file, error);
}

/* file->path is set, the rest is empty. */
static enum status read_header(struct safetensors *file, const unsigned char *bytes,
                               size_t available, uint64_t file_size, struct error *error)
{
    if (available < 8 || file_size > INT64_MAX)
        return error_set(error, STATUS_INVALID,
                         "%s: found %" PRIu64 " bytes, wanted a safetensors file (is it complete?)",
                         file->path, file_size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > SAFETENSORS_MAX_HEADER)
        return error_set(error, STATUS_INVALID,
                         "%s: header length: found %" PRIu64 ", wanted at most %d: no safetensors "
                         "file, or a damaged one",
                         file->path, length, SAFETENSORS_MAX_HEADER);
    if (length > available - 8)
        return error_set(error, STATUS_INVALID,
                         "%s: header length: found %" PRIu64 ", but only %zu bytes follow (is the "
                         "file complete?)",
                         file->path, length, available - 8);
    enum status status = json_parse_strict((const char *)bytes + 8, (size_t)length, file->path,
                                           &file->header, error);
    if (status != STATUS_OK)
        return status;
    if (!json_is_object(file->header))
        return error_set(error, STATUS_INVALID, "%s: header: wanted a JSON object", file->path);
    int64_t data_start = 8 + (int64_t)length;
    return read_tensors(file, data_start, (int64_t)file_size - data_start, error);
}

enum status safetensors_parse(const unsigned char *bytes, size_t available, uint64_t file_size,
                              const char *name, struct safetensors *file, struct error *error)
{
    *file = (struct safetensors){.path = strdup(name)};
    if (!file->path)
        return error_no_memory(error, name);
    enum status status = read_header(file, bytes, available, file_size, error);
    if (status != STATUS_OK)
        safetensors_close(file);
    return status;
}

enum status safetensors_open(const char *path, struct safetensors *file, struct error *error)
{
    *file = (struct safetensors){0};
    struct file_map map;
    enum status status = file_map_open(path, &map, error);
    if (status != STATUS_OK)
        return status;
    status = safetensors_parse(map.data, map.size, map.size, path, file, error);
    if (status != STATUS_OK) {
        file_map_close(&map);
        return status;
    }
    file->map = map;
    for (size_t i = 0; i < file->n_tensors; i++)
        file->tensors[i].data = map.data + file->tensors[i].begin;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *file)
{
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    file_map_close(&file->map);
    *file = (struct safetensors){0};
}
