/* libFuzzer: a safetensors header from hostile bytes. The input is the start of a file; its last
 * eight bytes say how much longer the file is than what is there. */
#include <assert.h>
#include <stdlib.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t more = 0;
    size_t available = size;
    if (size > 16) {
        available = size - 8;
        for (int i = 0; i < 8; i++)
            more = more << 8 | data[available + (size_t)i];
    }
    unsigned char *copy = malloc(available + 1); /* so that reading past the bytes is seen */
    if (!copy)
        return 0;
    for (size_t i = 0; i < available; i++)
        copy[1 + i] = data[i];
    uint64_t file_size = more > UINT64_MAX - available ? UINT64_MAX : available + more;
    struct safetensors file;
    struct error error = {.message = ""};
    if (safetensors_parse(copy + 1, available, file_size, "fuzz", &file, &error) == STATUS_OK) {
        for (size_t i = 0; i < file.n_tensors; i++) {
            assert(file.tensors[i].begin >= 8 && file.tensors[i].size >= 0);
            assert((uint64_t)file.tensors[i].begin + (uint64_t)file.tensors[i].size <= file_size);
        }
        safetensors_close(&file);
    } else {
        assert(error.message[0]);
    }
    free(copy);
    return 0;
}
