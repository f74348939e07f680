/* One file of the safetensors container (spec 4.3), mapped read-only: 8 bytes of header length, the
 * header as JSON, then the tensors' bytes. Opening reads the header alone and proves that every
 * tensor lies inside the file, has the size of its dtype and shape, and shares no byte with
 * another. The model's own demands (names, shapes) are model/checkpoint's business. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file_map.h"

#define TENSOR_MAX_DIMS 8
#define SAFETENSORS_MAX_HEADER (100 << 20) /* bytes; the target's headers have about 0.1 MB */

struct tensor {
    const char *name;  /* lives as long as the file */
    const char *dtype; /* static: "BF16", "U32", … */
    const struct safetensors *file;
    int n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
    int64_t begin, size;       /* bytes, begin counted from the start of the file */
    const unsigned char *data; /* at any alignment; NULL after safetensors_parse */
};

struct safetensors {
    char *path; /* owned, for messages */
    struct file_map map;
    json_t *header; /* owns the names */
    struct tensor *tensors;
    size_t n_tensors;
};

/* On success the struct must stay where it is until closed: its tensors point back to it. */
enum status safetensors_open(const char *path, struct safetensors *file, struct error *error);
/* The header alone, from the first `available` bytes of a file of `file_size` bytes that is not
 * mapped (tests, fuzzing). */
enum status safetensors_parse(const unsigned char *bytes, size_t available, uint64_t file_size,
                              const char *name, struct safetensors *file, struct error *error);
void safetensors_close(struct safetensors *file);

/* "[256, 512, 32]" into `out`, cut when it does not fit. */
void tensor_describe_shape(const int64_t *dims, int n_dims, char *out, size_t size);
