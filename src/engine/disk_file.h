/* One file of the disk cache: the token ids of a prefix, the KV rows of all of them, and the states
 * at some of its lengths. It has its name only when it is whole and on the disk; what it was made
 * by stands in its header, and every part has a checksum. Used by engine/disk_cache. */
#pragma once

#include "engine/engine.h"

#define DISK_BLOCK 256 /* KV rows with one checksum */
#define DISK_STATES 8  /* of a file, at most */
#define DISK_SUFFIX ".calla"
#define DISK_PART ".part" /* behind the name until the file is whole */

/* What a file must agree with to be of use: all of it is compared. */
struct disk_identity {
    char build[24], shape[16], backend[16];
    char weights[65]; /* a digest, in hex */
    char padding[7];
    int32_t context, page_rows;
    uint64_t state_size, row_size;
};
/* `weights`: see checkpoint_digest. */
void disk_identity_fill(struct disk_identity *identity, struct engine *engine, const char *weights);

struct disk_file {
    int descriptor;
    int32_t n_tokens;
    int n_states;
    int32_t *tokens;              /* [n_tokens] */
    int32_t lengths[DISK_STATES]; /* ascending */
    uint64_t state_sums[DISK_STATES];
    uint64_t *block_sums; /* [disk_file_blocks] */
    struct disk_identity identity;
    int64_t size; /* bytes */
};

/* Bytes of a file. */
int64_t disk_file_size(const struct disk_identity *identity, int32_t n_tokens, int n_states);
int disk_file_blocks(int32_t n_tokens);

/* Writing: create, every state and every block once, then commit. Errors: STATUS_IO with the path
 * and the reason. */
enum status disk_file_create(const char *path, const struct disk_identity *identity,
                             const int32_t *tokens, int32_t n_tokens, const int32_t *lengths,
                             int n_states, struct disk_file *file, struct error *error);
enum status disk_file_put_state(struct disk_file *file, int i, const void *state,
                                struct error *error);
enum status disk_file_put_block(struct disk_file *file, int block, const void *rows,
                                struct error *error);
/* Writes the header, waits for the disk and gives the file its name; closes it, also when that
 * fails. */
enum status disk_file_commit(struct disk_file *file, const char *path, struct error *error);
void disk_file_abandon(struct disk_file *file, const char *path);

/* Reading. STATUS_INVALID when the file is torn, or of another identity: the error says which. */
enum status disk_file_open(const char *path, const struct disk_identity *identity,
                           struct disk_file *file, struct error *error);
enum status disk_file_get_state(const struct disk_file *file, int i, void *state,
                                struct error *error);
enum status disk_file_get_block(const struct disk_file *file, int block, void *rows,
                                struct error *error);
void disk_file_close(struct disk_file *file);
