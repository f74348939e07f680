#include "engine/disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"

#define VERSION 1
static const char magic[8] = "CALLAKV";

/* All fields are little-endian and there is no padding. Then follow tokens, lengths, state sums,
 * block sums (the tables), states, rows. */
struct header {
    char magic[8];
    uint32_t version, n_states;
    int64_t n_tokens, size;
    struct disk_identity identity;
    uint64_t tables; /* checksum of the tables */
    uint64_t sum;    /* of the header, with this field 0 */
};
_Static_assert(sizeof(struct disk_identity) == 152 && sizeof(struct header) == 200, "no padding");

void disk_identity_fill(struct disk_identity *identity, struct engine *engine, const char *weights)
{
    struct backend *backend = engine->backend;
    struct kv_usage usage;
    *identity = (struct disk_identity){.context = engine->options.context,
                                       .state_size = backend->ops->state_size(backend),
                                       .row_size = backend->ops->kv_row_size(backend)};
    backend->ops->kv_usage(backend, &usage);
    identity->page_rows = usage.page_rows;
    snprintf(identity->build, sizeof identity->build, "%s", CALLA_VERSION);
    snprintf(identity->shape, sizeof identity->shape, "%s", engine->shape->name);
    snprintf(identity->backend, sizeof identity->backend, "%s", backend->ops->name);
    snprintf(identity->weights, sizeof identity->weights, "%s", weights);
}

/* ---- layout ---------------------------------------------------------------------------------- */

int disk_file_blocks(int32_t n_tokens)
{
    return (n_tokens + DISK_BLOCK - 1) / DISK_BLOCK;
}

static int64_t tables_size(int32_t n_tokens, int n_states)
{
    return 4 * (int64_t)n_tokens + 12 * (int64_t)n_states + 8 * disk_file_blocks(n_tokens);
}

static int64_t state_at(const struct disk_file *file, int i)
{
    return (int64_t)sizeof(struct header) + tables_size(file->n_tokens, file->n_states) +
           i * (int64_t)file->identity.state_size;
}

static int64_t block_at(const struct disk_file *file, int block)
{
    return state_at(file, file->n_states) +
           (int64_t)block * DISK_BLOCK * (int64_t)file->identity.row_size;
}

static size_t block_size(const struct disk_file *file, int block)
{
    int32_t rows = file->n_tokens - block * DISK_BLOCK;
    return (size_t)(rows < DISK_BLOCK ? rows : DISK_BLOCK) * file->identity.row_size;
}

int64_t disk_file_size(const struct disk_identity *identity, int32_t n_tokens, int n_states)
{
    return (int64_t)sizeof(struct header) + tables_size(n_tokens, n_states) +
           n_states * (int64_t)identity->state_size + n_tokens * (int64_t)identity->row_size;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static enum status failed(const char *path, const char *what, struct error *error)
{
    return error_set(error, STATUS_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

static bool put(int descriptor, const void *data, size_t size, int64_t at)
{
    for (const char *from = data; size > 0;) {
        ssize_t n = pwrite(descriptor, from, size, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        from += n;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static bool get(int descriptor, void *data, size_t size, int64_t at)
{
    for (char *to = data; size > 0;) {
        ssize_t n = pread(descriptor, to, size, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        to += n;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

/* The tables as they lie in the file; NULL when out of memory. */
static char *gather_tables(const struct disk_file *file)
{
    size_t tokens = 4 * (size_t)file->n_tokens, lengths = 4 * (size_t)file->n_states;
    size_t sums = 8 * (size_t)file->n_states;
    char *tables = malloc((size_t)tables_size(file->n_tokens, file->n_states) + 1);
    if (!tables)
        return NULL;
    memcpy(tables, file->tokens, tokens);
    memcpy(tables + tokens, file->lengths, lengths);
    memcpy(tables + tokens + lengths, file->state_sums, sums);
    memcpy(tables + tokens + lengths + sums, file->block_sums,
           8 * (size_t)disk_file_blocks(file->n_tokens));
    return tables;
}

static void spread_tables(struct disk_file *file, const char *tables)
{
    size_t tokens = 4 * (size_t)file->n_tokens, lengths = 4 * (size_t)file->n_states;
    size_t sums = 8 * (size_t)file->n_states;
    memcpy(file->tokens, tables, tokens);
    memcpy(file->lengths, tables + tokens, lengths);
    memcpy(file->state_sums, tables + tokens + lengths, sums);
    memcpy(file->block_sums, tables + tokens + lengths + sums,
           8 * (size_t)disk_file_blocks(file->n_tokens));
}

static bool allocate(struct disk_file *file)
{
    file->tokens = malloc(4 * (size_t)file->n_tokens + 1);
    file->block_sums = calloc((size_t)disk_file_blocks(file->n_tokens) + 1, 8);
    return file->tokens && file->block_sums;
}

void disk_file_close(struct disk_file *file)
{
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->tokens);
    free(file->block_sums);
    *file = (struct disk_file){.descriptor = -1};
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The name until the file is whole. */
static void part_name(const char *path, char *out, size_t size)
{
    snprintf(out, size, "%s" DISK_PART, path);
}

enum status disk_file_create(const char *path, const struct disk_identity *identity,
                             const int32_t *tokens, int32_t n_tokens, const int32_t *lengths,
                             int n_states, struct disk_file *file, struct error *error)
{
    char part[PATH_MAX];
    part_name(path, part, sizeof part);
    *file = (struct disk_file){.descriptor = -1,
                               .n_tokens = n_tokens,
                               .n_states = n_states,
                               .identity = *identity,
                               .size = disk_file_size(identity, n_tokens, n_states)};
    if (!allocate(file)) {
        disk_file_close(file);
        return error_no_memory(error, "a file of the disk cache");
    }
    memcpy(file->tokens, tokens, 4 * (size_t)n_tokens);
    memcpy(file->lengths, lengths, 4 * (size_t)n_states);
    file->descriptor = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file->descriptor >= 0)
        return STATUS_OK;
    failed(part, "be written", error);
    disk_file_close(file);
    return STATUS_IO;
}

enum status disk_file_put_state(struct disk_file *file, int i, const void *state,
                                struct error *error)
{
    size_t size = file->identity.state_size;
    file->state_sums[i] = checksum_add(CHECKSUM_START, state, size);
    return put(file->descriptor, state, size, state_at(file, i))
               ? STATUS_OK
               : failed("the disk cache", "be written", error);
}

enum status disk_file_put_block(struct disk_file *file, int block, const void *rows,
                                struct error *error)
{
    size_t size = block_size(file, block);
    file->block_sums[block] = checksum_add(CHECKSUM_START, rows, size);
    return put(file->descriptor, rows, size, block_at(file, block))
               ? STATUS_OK
               : failed("the disk cache", "be written", error);
}

static bool put_header(struct disk_file *file)
{
    size_t size = (size_t)tables_size(file->n_tokens, file->n_states);
    char *tables = gather_tables(file);
    errno = ENOMEM;
    if (!tables)
        return false;
    struct header header = {.version = VERSION,
                            .n_states = (uint32_t)file->n_states,
                            .n_tokens = file->n_tokens,
                            .size = file->size,
                            .identity = file->identity,
                            .tables = checksum_add(CHECKSUM_START, tables, size)};
    memcpy(header.magic, magic, sizeof magic);
    header.sum = checksum_add(CHECKSUM_START, &header, sizeof header);
    bool done = put(file->descriptor, tables, size, sizeof header) &&
                put(file->descriptor, &header, sizeof header, 0);
    free(tables);
    return done;
}

/* A name lasts only when its folder is on the disk. */
static bool sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int descriptor = open(folder[0] ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool done = fsync(descriptor) == 0;
    close(descriptor);
    return done;
}

enum status disk_file_commit(struct disk_file *file, const char *path, struct error *error)
{
    char part[PATH_MAX];
    part_name(path, part, sizeof part);
    if (!put_header(file) || fsync(file->descriptor) != 0 || rename(part, path) != 0) {
        failed(path, "be written", error);
        disk_file_abandon(file, path);
        return STATUS_IO;
    }
    disk_file_close(file);
    return sync_folder(path) ? STATUS_OK : failed(path, "be synced", error);
}

void disk_file_abandon(struct disk_file *file, const char *path)
{
    char part[PATH_MAX];
    part_name(path, part, sizeof part);
    unlink(part);
    disk_file_close(file);
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum status differs(const char *path, const char *what, struct error *error)
{
    return error_set(error, STATUS_INVALID, "%s: of another %s", path, what);
}

static enum status check_identity(const char *path, const struct disk_identity *found,
                                  const struct disk_identity *wanted, struct error *error)
{
    if (memcmp(found, wanted, sizeof *found) == 0)
        return STATUS_OK;
    return differs(path,
                   memcmp(found->weights, wanted->weights, sizeof found->weights) != 0   ? "model"
                   : memcmp(found->build, wanted->build, sizeof found->build) != 0       ? "version"
                   : memcmp(found->backend, wanted->backend, sizeof found->backend) != 0 ? "backend"
                   : found->context != wanted->context ? "context size"
                                                       : "form",
                   error);
}

static enum status torn(const char *path, struct error *error)
{
    return error_set(error, STATUS_INVALID, "%s: torn or damaged", path);
}

static enum status check_header(const char *path, struct header *header, int64_t size,
                                const struct disk_identity *identity, struct error *error)
{
    uint64_t sum = header->sum;
    header->sum = 0;
    if (memcmp(header->magic, magic, sizeof magic) != 0 ||
        checksum_add(CHECKSUM_START, header, sizeof *header) != sum)
        return torn(path, error);
    if (header->version != VERSION)
        return differs(path, "version", error);
    enum status status = check_identity(path, &header->identity, identity, error);
    if (status != STATUS_OK)
        return status;
    if (header->n_states < 1 || header->n_states > DISK_STATES || header->n_tokens < 1 ||
        header->n_tokens > identity->context || header->size != size ||
        size != disk_file_size(identity, (int32_t)header->n_tokens, (int)header->n_states))
        return torn(path, error);
    return STATUS_OK;
}

static bool lengths_are_right(const struct disk_file *file)
{
    int32_t before = 0;
    for (int i = 0; i < file->n_states; before = file->lengths[i++])
        if (file->lengths[i] <= before || file->lengths[i] > file->n_tokens)
            return false;
    return true;
}

static enum status read_tables(const char *path, const struct header *header,
                               struct disk_file *file, struct error *error)
{
    file->n_tokens = (int32_t)header->n_tokens;
    file->n_states = (int)header->n_states;
    file->identity = header->identity;
    file->size = header->size;
    size_t size = (size_t)tables_size(file->n_tokens, file->n_states);
    char *tables = malloc(size + 1);
    enum status status = STATUS_OK;
    if (!tables || !allocate(file))
        status = error_no_memory(error, "a file of the disk cache");
    else if (!get(file->descriptor, tables, size, sizeof *header) ||
             checksum_add(CHECKSUM_START, tables, size) != header->tables)
        status = torn(path, error);
    if (status == STATUS_OK) {
        spread_tables(file, tables);
        status = lengths_are_right(file) ? STATUS_OK : torn(path, error);
    }
    free(tables);
    return status;
}

enum status disk_file_open(const char *path, const struct disk_identity *identity,
                           struct disk_file *file, struct error *error)
{
    struct header header;
    struct stat there;
    *file = (struct disk_file){.descriptor = open(path, O_RDONLY | O_CLOEXEC)};
    if (file->descriptor < 0)
        return failed(path, "be read", error);
    enum status status = STATUS_OK;
    if (fstat(file->descriptor, &there) != 0 || !S_ISREG(there.st_mode) ||
        !get(file->descriptor, &header, sizeof header, 0))
        status = torn(path, error);
    if (status == STATUS_OK)
        status = check_header(path, &header, there.st_size, identity, error);
    if (status == STATUS_OK)
        status = read_tables(path, &header, file, error);
    if (status != STATUS_OK)
        disk_file_close(file);
    return status;
}

enum status disk_file_get_state(const struct disk_file *file, int i, void *state,
                                struct error *error)
{
    size_t size = file->identity.state_size;
    return get(file->descriptor, state, size, state_at(file, i)) &&
                   checksum_add(CHECKSUM_START, state, size) == file->state_sums[i]
               ? STATUS_OK
               : torn("a state", error);
}

enum status disk_file_get_block(const struct disk_file *file, int block, void *rows,
                                struct error *error)
{
    size_t size = block_size(file, block);
    return get(file->descriptor, rows, size, block_at(file, block)) &&
                   checksum_add(CHECKSUM_START, rows, size) == file->block_sums[block]
               ? STATUS_OK
               : torn("KV rows", error);
}
