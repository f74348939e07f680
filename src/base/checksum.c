#include "base/checksum.h"

#include <string.h>

/* FNV-1a over 64-bit words. */
uint64_t checksum_add(uint64_t hash, const void *bytes, size_t size)
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
