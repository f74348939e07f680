#include "cli/tensor_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file_write.h"
#include "base/json.h"

struct tensor {
    char *name;
    const char *dtype;
    int64_t dimensions[3];
    int n_dimensions;
    struct bytes data;
};

struct tensor_file {
    const struct shape *shape;
    struct probe probe;
    struct bytes prefix;
    struct tensor *tensors;
    size_t n, capacity;
    size_t first; /* of the current prefix */
    bool failed;
};

static struct tensor *add_tensor(struct tensor_file *file, const char *name, const char *dtype)
{
    if (file->n == file->capacity) {
        size_t capacity = file->capacity ? 2 * file->capacity : 64;
        struct tensor *tensors = realloc(file->tensors, capacity * sizeof *tensors);
        if (!tensors) {
            file->failed = true;
            return NULL;
        }
        file->tensors = tensors;
        file->capacity = capacity;
    }
    const char *prefix = bytes_terminate(&file->prefix);
    size_t size = file->prefix.length + strlen(name) + 2;
    struct tensor *tensor = &file->tensors[file->n];
    *tensor = (struct tensor){.dtype = dtype, .name = prefix ? malloc(size) : NULL};
    if (!tensor->name) {
        file->failed = true;
        return NULL;
    }
    snprintf(tensor->name, size, "%s%s%s", prefix, *prefix ? "." : "", name);
    file->n++;
    return tensor;
}

static struct tensor *find_tensor(struct tensor_file *file, const char *name)
{
    size_t skip = file->prefix.length + (file->prefix.length > 0);
    for (size_t i = file->first; i < file->n; i++)
        if (strcmp(file->tensors[i].name + skip, name) == 0)
            return &file->tensors[i];
    return add_tensor(file, name, "F32");
}

/* The recurrent states of the first and of the last deltanet layer are kept, no others. */
static bool is_kept_state(const struct shape *shape, int layer)
{
    int last = shape->num_hidden_layers - 1;
    while (shape_is_full_attention(shape, last))
        last--;
    return layer == 0 || layer == last;
}

static void see_tensor(void *context, const char *name, const float *values, int64_t rows,
                       int64_t columns)
{
    struct tensor_file *file = context;
    int layer, end = 0;
    bool is_state = sscanf(name, "layer.%d.recurrent_state%n", &layer, &end) == 1 && end > 0;
    bool is_logits = strcmp(name, "logits") == 0;
    if (is_state && !is_kept_state(file->shape, layer))
        return;
    struct tensor *tensor = find_tensor(file, name);
    if (!tensor)
        return;
    if (is_state || is_logits) /* only the last of them is asked for */
        bytes_reset(&tensor->data);
    if (is_logits) {
        values += (rows - 1) * columns;
        rows = 1;
    }
    bytes_append(&tensor->data, values, (size_t)(rows * columns) * sizeof *values);
    int64_t held = (int64_t)(tensor->data.length / sizeof *values);
    if (is_state) {
        int64_t dk = file->shape->linear_key_head_dim;
        tensor->n_dimensions = 3;
        tensor->dimensions[0] = rows / dk;
        tensor->dimensions[1] = dk;
        tensor->dimensions[2] = columns;
    } else if (is_logits) {
        tensor->n_dimensions = 1;
        tensor->dimensions[0] = columns;
    } else {
        tensor->n_dimensions = 2;
        tensor->dimensions[0] = held / columns;
        tensor->dimensions[1] = columns;
    }
}

struct tensor_file *tensor_file_new(const struct shape *shape)
{
    struct tensor_file *file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->shape = shape;
    file->probe = (struct probe){see_tensor, file};
    return file;
}

void tensor_file_free(struct tensor_file *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < file->n; i++) {
        free(file->tensors[i].name);
        bytes_clear(&file->tensors[i].data);
    }
    free(file->tensors);
    bytes_clear(&file->prefix);
    free(file);
}

enum status tensor_file_begin(struct tensor_file *file, const char *prefix, const int32_t *ids,
                              int64_t n_ids, struct error *error)
{
    bytes_reset(&file->prefix);
    bytes_append_text(&file->prefix, prefix);
    file->first = file->n;
    struct tensor *tensor = add_tensor(file, "ids", "I32");
    if (!tensor)
        return error_no_memory(error, "--hidden");
    for (size_t i = 0; i < file->first; i++)
        if (strcmp(file->tensors[i].name, tensor->name) == 0) {
            free(tensor->name);
            file->n--;
            return error_set(error, STATUS_INVALID,
                             "name: found '%s', which an earlier line has already", prefix);
        }
    bytes_append(&tensor->data, ids, (size_t)n_ids * sizeof *ids);
    tensor->n_dimensions = 1;
    tensor->dimensions[0] = n_ids;
    return STATUS_OK;
}

void tensor_file_drop(struct tensor_file *file)
{
    while (file->n > file->first) {
        struct tensor *tensor = &file->tensors[--file->n];
        free(tensor->name);
        bytes_clear(&tensor->data);
    }
}

const struct probe *tensor_file_probe(struct tensor_file *file)
{
    return &file->probe;
}

static void describe(const struct tensor *tensor, size_t offset, struct bytes *header)
{
    json_print_string(tensor->name, strlen(tensor->name), header);
    bytes_format(header, ":{\"dtype\":\"%s\",\"shape\":[", tensor->dtype);
    for (int d = 0; d < tensor->n_dimensions; d++)
        bytes_format(header, "%s%lld", d ? "," : "", (long long)tensor->dimensions[d]);
    bytes_format(header, "],\"data_offsets\":[%zu,%zu]}", offset, offset + tensor->data.length);
}

static void write_all(const struct tensor_file *file, const struct bytes *header, FILE *out)
{
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header->length >> (8 * i));
    bool good = fwrite(length, 1, 8, out) == 8 &&
                fwrite(header->data, 1, header->length, out) == header->length;
    for (size_t i = 0; i < file->n && good; i++) {
        const struct bytes *data = &file->tensors[i].data;
        good = fwrite(data->data, 1, data->length, out) == data->length;
    }
}

enum status tensor_file_write(struct tensor_file *file, const char *path, struct error *error)
{
    struct bytes header = {0};
    size_t offset = 0;
    for (size_t i = 0; i < file->n; i++) {
        bytes_append_text(&header, i ? "," : "{");
        describe(&file->tensors[i], offset, &header);
        offset += file->tensors[i].data.length;
        file->failed |= file->tensors[i].data.failed;
    }
    bytes_append_text(&header, file->n ? "}" : "{}");
    while (header.length % 8) /* the data begin aligned */
        bytes_append_byte(&header, ' ');
    enum status status = STATUS_OK;
    if (file->failed || header.failed) {
        status = error_no_memory(error, "--hidden");
    } else {
        struct file_writer out;
        status = file_writer_open(&out, path, 0, error);
        if (status == STATUS_OK) {
            write_all(file, &header, out.stream); /* close says what went wrong */
            status = file_writer_close(&out, true, error);
        }
    }
    bytes_clear(&header);
    return status;
}
