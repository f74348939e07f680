/* A snapshot of a sequence: recurrent and conv state at one position as flat bytes with a header,
 * fit to be kept in memory or in a file. The KV rows are not in it: they stay in the sequence (or
 * travel by kv_read and kv_write), and restoring at position p needs rows 0..p-1 of the same
 * tokens. */
#pragma once

#include <stddef.h>

#include "backend/backend.h"

/* Bytes of any snapshot of this backend. */
size_t snapshot_size(struct backend *backend);
/* Writes snapshot_size bytes to `out`. */
enum status snapshot_save(struct backend *backend, const struct shape *shape,
                          struct sequence *sequence, void *out, struct error *error);
/* Brings the sequence to the snapshot's position. Refuses bytes of another format version, shape or
 * backend, of the wrong size, damaged bytes (checksum), and a position whose KV rows are not there;
 * the sequence is then as before. */
enum status snapshot_restore(struct backend *backend, const struct shape *shape,
                             struct sequence *sequence, const void *bytes, size_t size,
                             struct error *error);
