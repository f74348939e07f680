/* A thread that writes a file of the disk cache, a piece at a time, as another one hands them over:
 * one piece, then the next when that is done. What a piece points to is borrowed until then. */
#pragma once

#include "engine/disk_file.h"

struct disk_writer;

/* `wake` is called on the thread after each piece; it may be NULL. */
enum status disk_writer_new(const struct disk_identity *identity, void (*wake)(void *context),
                            void *context, struct disk_writer **out, struct error *error);
/* When no piece is under way. NULL is allowed. */
void disk_writer_free(struct disk_writer *writer);
bool disk_writer_is_busy(struct disk_writer *writer);
void disk_writer_wait(struct disk_writer *writer);
/* How the last piece ended; after a failure the file must be abandoned. */
enum status disk_writer_status(struct disk_writer *writer, struct error *error);

/* Each when the writer is not busy, in the order of disk_file.h. */
void disk_writer_create(struct disk_writer *writer, const char *path, const int32_t *tokens,
                        int32_t n_tokens, const int32_t *lengths, int n_states);
void disk_writer_put_state(struct disk_writer *writer, int i, const void *state);
void disk_writer_put_block(struct disk_writer *writer, int block, const void *rows);
void disk_writer_commit(struct disk_writer *writer);
/* Removes what is written, at once. */
void disk_writer_abandon(struct disk_writer *writer);
