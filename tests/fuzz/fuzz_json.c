/* Any bytes into json_parse; what is accepted is printed, and must read back as the same value. */
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error error;
    json_t *value, *again;
    if (json_parse((const char *)data, size, "input", &value, &error) != STATUS_OK)
        return 0;
    struct bytes out = {0};
    json_print(value, &out);
    if (!bytes_terminate(&out) ||
        json_parse(out.data, out.length, "output", &again, &error) != STATUS_OK)
        abort();
    if (!json_equal(value, again))
        abort();
    json_decref(value);
    json_decref(again);
    bytes_clear(&out);
    return 0;
}
