#include "engine/snapshot.h"

#include <string.h>

#define MAGIC "CALLASNP"
#define VERSION 1

/* All fields are little-endian; no padding. */
struct header {
    char magic[8];
    uint32_t version;
    int32_t position;
    char shape[16];
    char backend[16];
    uint64_t state_size;
    uint64_t checksum; /* of the header with this field 0, then of the state */
};
_Static_assert(sizeof(struct header) == 64, "no padding");

/* FNV-1a over 64-bit words: finds torn and flipped bytes, not forgery. */
static uint64_t checksum(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x100000001b3;
        hash ^= hash >> 32; /* multiplication alone never moves high bits down */
    }
    for (; size > 0; at++, size--)
        hash = (hash ^ *at) * 0x100000001b3;
    return hash;
}

static uint64_t header_checksum(struct header header, const void *state)
{
    header.checksum = 0;
    return checksum(checksum(0xcbf29ce484222325, &header, sizeof header), state, header.state_size);
}

size_t snapshot_size(struct backend *backend)
{
    return sizeof(struct header) + backend->ops->state_size(backend);
}

enum status snapshot_save(struct backend *backend, const struct shape *shape,
                          struct sequence *sequence, void *out, struct error *error)
{
    struct header header = {.magic = MAGIC, .version = VERSION, .position = sequence->position};
    char *state = (char *)out + sizeof header;
    enum status status = backend->ops->state_read(backend, sequence, state, error);
    if (status != STATUS_OK)
        return status;
    strncpy(header.shape, shape->name, sizeof header.shape - 1);
    strncpy(header.backend, backend->ops->name, sizeof header.backend - 1);
    header.state_size = backend->ops->state_size(backend);
    header.checksum = header_checksum(header, state);
    memcpy(out, &header, sizeof header);
    return STATUS_OK;
}

enum status snapshot_restore(struct backend *backend, const struct shape *shape,
                             struct sequence *sequence, const void *bytes, size_t size,
                             struct error *error)
{
    struct header header;
    if (size < sizeof header)
        return error_set(error, STATUS_INVALID, "snapshot: found %zu bytes, wanted %zu", size,
                         snapshot_size(backend));
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.magic, MAGIC, sizeof header.magic) != 0 || header.version != VERSION)
        return error_set(error, STATUS_INVALID, "snapshot: another format or version, wanted %d",
                         VERSION);
    if (strncmp(header.shape, shape->name, sizeof header.shape) != 0 ||
        strncmp(header.backend, backend->ops->name, sizeof header.backend) != 0)
        return error_set(error, STATUS_INVALID,
                         "snapshot: found shape %.16s of backend %.16s, wanted %s of %s",
                         header.shape, header.backend, shape->name, backend->ops->name);
    if (size != snapshot_size(backend) || header.state_size != size - sizeof header)
        return error_set(error, STATUS_INVALID, "snapshot: found %zu bytes, wanted %zu", size,
                         snapshot_size(backend));
    const char *state = (const char *)bytes + sizeof header;
    if (header.checksum != header_checksum(header, state))
        return error_set(error, STATUS_INVALID, "snapshot: the checksum does not match");
    return backend->ops->state_write(backend, sequence, header.position, state, error);
}
