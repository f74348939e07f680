#include "model/synth_write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "model/synth_files.h"

#define MAX_THREADS                                                                                \
    8 /* more only wait for each other: writes to one file come one after another                  \
       */
#define PIECE ((int64_t)4 << 20) /* bytes of a shard that one thread makes and writes at a time */
#define MAX_FILES (SYNTH_MAX_SHARDS + 5)

/* A file of the checkpoint: text, or text and then the weights of a shard. */
struct out_file {
    char *path, *part; /* its name, and the one that it has while it is written */
    struct bytes text;
    const struct synth_shard *shard; /* NULL: text alone */
    int descriptor;                  /* -1: not open */
    bool made;                       /* `part` is there */
    bool named;                      /* `path` is there */
};

struct writer {
    const struct synth *synth;
    const struct synth_write_options *options;
    const char *folder;
    struct synth_layout layout;
    struct out_file files[MAX_FILES]; /* the shards, small files, and last the index */
    int n_files;
    bool folder_made;
    unsigned char *buffers; /* PIECE for each thread */
    int n_threads;
    /* shared by the threads */
    _Atomic int64_t next, done; /* piece that nobody took, bytes written */
    atomic_bool stop;
    pthread_mutex_t lock; /* of what follows: the first failure */
    enum status status;
    struct error *error;
};

struct worker {
    struct writer *writer;
    unsigned char *buffer;
};

/* Keeps the first failure, from any thread, and stops all. */
static void fail(struct writer *writer, const struct out_file *file, const char *what, int code)
{
    pthread_mutex_lock(&writer->lock);
    if (writer->status == STATUS_OK)
        writer->status = error_set(writer->error, STATUS_IO, "%s: %s%s; nothing was kept",
                                   file->path, what, strerror(code));
    pthread_mutex_unlock(&writer->lock);
    atomic_store(&writer->stop, true);
}

/* ---- preparing: all that can fail before a byte of weights is written ------------------------ */

static struct out_file *add_file(struct writer *writer, const char *name)
{
    struct out_file *file = &writer->files[writer->n_files++];
    *file = (struct out_file){.descriptor = -1};
    if (asprintf(&file->path, "%s/%s", writer->folder, name) < 0)
        file->path = NULL;
    if (asprintf(&file->part, "%s/%s.part", writer->folder, name) < 0)
        file->part = NULL;
    if (!file->path || !file->part)
        file->text.failed = true;
    return file;
}

static enum status make_texts(struct writer *writer)
{
    const struct synth *synth = writer->synth;
    synth_cut(synth, &writer->layout);
    for (int i = 0; i < writer->layout.n; i++) {
        struct out_file *file = add_file(writer, writer->layout.shards[i].name);
        file->shard = &writer->layout.shards[i];
        synth_shard_header(synth, file->shard, &file->text);
    }
    synth_config(synth, &add_file(writer, "config.json")->text);
    synth_generation_config(synth, &add_file(writer, "generation_config.json")->text);
    synth_tokenizer_config(synth, &add_file(writer, "tokenizer_config.json")->text);
    bytes_append(&add_file(writer, "tokenizer.json")->text, writer->options->tokenizer,
                 writer->options->tokenizer_length);
    synth_index(synth, &writer->layout, &add_file(writer, "model.safetensors.index.json")->text);
    bool failed = false;
    for (int i = 0; i < writer->n_files; i++)
        failed |= writer->files[i].text.failed;
    long processors = writer->options->n_threads;
    if (processors == 0)
        processors = sysconf(_SC_NPROCESSORS_ONLN);
    writer->n_threads = processors < 1             ? 1
                        : processors > MAX_THREADS ? MAX_THREADS
                                                   : (int)processors;
    writer->buffers = malloc((size_t)writer->n_threads * PIECE);
    return failed || !writer->buffers ? error_no_memory(writer->error, writer->folder) : STATUS_OK;
}

/* Counts what is in it; -1 when it cannot be read. */
static int count_entries(const char *folder)
{
    DIR *stream = opendir(folder);
    if (!stream)
        return -1;
    int n = 0;
    while (readdir(stream))
        n++;
    closedir(stream);
    return n - 2; /* "." and ".." */
}

static enum status make_folder(struct writer *writer)
{
    const char *folder = writer->folder;
    if (mkdir(folder, 0777) == 0) {
        writer->folder_made = true;
        return STATUS_OK;
    }
    if (errno != EEXIST)
        return error_set(writer->error, STATUS_IO, "%s: cannot make this folder: %s", folder,
                         strerror(errno));
    int n = count_entries(folder);
    if (n < 0)
        return error_set(writer->error, STATUS_IO, "%s: %s", folder, strerror(errno));
    if (n > 0)
        return error_set(writer->error, STATUS_INVALID,
                         "%s: found a folder that is not empty, wanted a new or an empty one",
                         folder);
    return STATUS_OK;
}

static enum status check_room(struct writer *writer)
{
    struct statvfs info;
    if (statvfs(writer->folder, &info) != 0)
        return error_set(writer->error, STATUS_IO, "%s: %s", writer->folder, strerror(errno));
    double room = (double)info.f_bavail * (double)info.f_frsize;
    double wanted = (double)synth_bytes(writer->synth);
    for (int i = 0; i < writer->n_files; i++)
        wanted += (double)writer->files[i].text.length;
    if (wanted <= room)
        return STATUS_OK;
    return error_set(writer->error, STATUS_IO,
                     "%s: the checkpoint takes %.2f GB, but only %.2f GB are free there",
                     writer->folder, wanted / 1e9, room / 1e9);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* False after a failure, errno saying which. */
static bool write_at(int descriptor, const void *data, size_t length, int64_t offset)
{
    for (const char *at = data; length > 0;) {
        ssize_t n = pwrite(descriptor, at, length, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? EIO : errno;
            return false;
        }
        at += n;
        offset += n;
        length -= (size_t)n;
    }
    return true;
}

/* Opens all of them: a shard's weights may be written before the text of the next file. */
static void write_texts(struct writer *writer)
{
    for (int i = 0; i < writer->n_files && !writer->stop; i++) {
        struct out_file *file = &writer->files[i];
        file->descriptor = open(file->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        file->made = file->descriptor >= 0;
        if (!file->made || !write_at(file->descriptor, file->text.data, file->text.length, 0))
            fail(writer, file, "", errno);
    }
}

static bool cancelled(const struct writer *writer)
{
    return writer->options->cancel && atomic_load(writer->options->cancel);
}

/* Takes pieces of the shards, in order, until all are written. */
static void write_pieces(struct worker *worker, bool report)
{
    struct writer *writer = worker->writer;
    const struct synth_write_options *options = writer->options;
    int64_t first = 0; /* piece of the shard that the last one was in */
    const struct out_file *file = writer->files;
    while (!atomic_load(&writer->stop) && !cancelled(writer)) {
        int64_t piece = atomic_fetch_add(&writer->next, 1), pieces;
        while (pieces = (file->shard->size + PIECE - 1) / PIECE, piece >= first + pieces) {
            first += pieces;
            if (!(++file)->shard) /* the small files come after the shards */
                return;
        }
        int64_t from = (piece - first) * PIECE, left = file->shard->size - from;
        int64_t n = left < PIECE ? left : PIECE;
        synth_fill(writer->synth, file->shard->from + from, n, worker->buffer);
        if (!write_at(file->descriptor, worker->buffer, (size_t)n,
                      (int64_t)file->text.length + from)) {
            fail(writer, file, "", errno);
            return;
        }
        int64_t done = atomic_fetch_add(&writer->done, n) + n;
        if (report && options->progress)
            options->progress(options->context, done);
    }
}

static void *run_worker(void *context)
{
    write_pieces(context, false);
    return NULL;
}

/* The calling thread works too, so a thread that cannot be had costs time only. */
static void write_weights(struct writer *writer)
{
    pthread_t threads[MAX_THREADS];
    struct worker own = {writer, writer->buffers}, others[MAX_THREADS];
    int n = 0;
    while (n < writer->n_threads - 1) {
        others[n] = (struct worker){writer, writer->buffers + (n + 1) * PIECE};
        if (pthread_create(&threads[n], NULL, run_worker, &others[n]) != 0)
            break;
        n++;
    }
    write_pieces(&own, true);
    while (n > 0)
        pthread_join(threads[--n], NULL);
}

static void close_files(struct writer *writer)
{
    for (int i = 0; i < writer->n_files; i++) {
        struct out_file *file = &writer->files[i];
        if (file->descriptor < 0)
            continue;
        /* a full disk may show only now */
        bool good = writer->stop || cancelled(writer) || fsync(file->descriptor) == 0;
        if (!good)
            fail(writer, file, "", errno);
        if (close(file->descriptor) != 0 && good)
            fail(writer, file, "", errno);
        file->descriptor = -1;
    }
}

static void name_files(struct writer *writer)
{
    for (int i = 0; i < writer->n_files && !writer->stop; i++) {
        struct out_file *file = &writer->files[i];
        file->named = rename(file->part, file->path) == 0;
        file->made = !file->named;
        if (!file->named)
            fail(writer, file, "cannot rename: ", errno);
    }
}

static enum status write_all(struct writer *writer)
{
    write_texts(writer);
    if (!writer->stop)
        write_weights(writer);
    close_files(writer);
    if (!writer->stop && !cancelled(writer))
        name_files(writer);
    else if (writer->status == STATUS_OK)
        writer->status = error_set(writer->error, STATUS_CANCELLED,
                                   "%s: interrupted; nothing was kept", writer->folder);
    return writer->status;
}

static void remove_all(struct writer *writer)
{
    for (int i = writer->n_files - 1; i >= 0; i--) { /* the index first */
        if (writer->files[i].named)
            unlink(writer->files[i].path);
        if (writer->files[i].made)
            unlink(writer->files[i].part);
    }
    if (writer->folder_made)
        rmdir(writer->folder);
}

static void writer_clear(struct writer *writer)
{
    for (int i = 0; i < writer->n_files; i++) {
        free(writer->files[i].path);
        free(writer->files[i].part);
        bytes_clear(&writer->files[i].text);
    }
    free(writer->buffers);
    pthread_mutex_destroy(&writer->lock);
}

enum status synth_write(const struct synth *synth, const char *folder,
                        const struct synth_write_options *options, struct error *error)
{
    if (synth_first_added_id(synth_shape(synth)) < 0)
        return error_set(error, STATUS_UNSUPPORTED, "shape %s: there are no such checkpoints",
                         synth_shape(synth)->name);
    struct writer writer = {.synth = synth, .options = options, .folder = folder, .error = error};
    pthread_mutex_init(&writer.lock, NULL);
    enum status status = make_texts(&writer);
    if (status == STATUS_OK)
        status = make_folder(&writer);
    if (status == STATUS_OK)
        status = check_room(&writer);
    if (status == STATUS_OK)
        status = write_all(&writer);
    if (status != STATUS_OK)
        remove_all(&writer);
    writer_clear(&writer);
    return status;
}
