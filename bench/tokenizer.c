/* Times the tokenizer in its own process: tokenizer TOKENIZER.json TEXT…
 *
 * Loading, then each text file in documents of 64 KiB (cut at line ends), one thread, the best of
 * RUNS. One line of JSON each, read by bench/tokenizer.py. The ids go to TEXT.ids, 32 bits each, so
 * that another tokenizer's can be compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file_map.h"
#include "text/tokenizer.h"

#define RUNS 5
#define DOCUMENT_SIZE 65536

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The end of the document that begins at `at`: after the first line end past 64 KiB. */
static const char *document_end(const char *at, const char *end)
{
    if (end - at <= DOCUMENT_SIZE)
        return end;
    const char *line_end = memchr(at + DOCUMENT_SIZE, '\n', (size_t)(end - at) - DOCUMENT_SIZE);
    return line_end ? line_end + 1 : end;
}

static enum status encode_all(const struct tokenizer *tokenizer, const struct file_map *map,
                              struct token_list *ids, struct error *error)
{
    const char *at = (const char *)map->data, *end = at + map->size;
    ids->length = 0;
    while (at < end) {
        const char *next = document_end(at, end);
        struct text_span span = {.data = at, .length = (size_t)(next - at)};
        enum status status = tokenizer_encode(tokenizer, &span, 1, ids, error);
        if (status != STATUS_OK)
            return status;
        at = next;
    }
    return STATUS_OK;
}

static enum status write_ids(const char *text, const struct token_list *ids, struct error *error)
{
    char path[1000];
    snprintf(path, sizeof path, "%s.ids", text);
    FILE *file = fopen(path, "wb");
    if (!file)
        return error_set(error, STATUS_IO, "%s: cannot be written", path);
    size_t n = fwrite(ids->data, sizeof *ids->data, ids->length, file);
    if (fclose(file) != 0 || n != ids->length)
        return error_set(error, STATUS_IO, "%s: cannot be written", path);
    return STATUS_OK;
}

static enum status time_text(const struct tokenizer *tokenizer, const char *path,
                             struct error *error)
{
    struct file_map map;
    struct token_list ids = {0};
    enum status status = file_map_open(path, &map, error);
    if (status != STATUS_OK)
        return status;
    double best = 1e9;
    for (int i = 0; i < RUNS && status == STATUS_OK; i++) {
        double from = seconds();
        status = encode_all(tokenizer, &map, &ids, error);
        double took = seconds() - from;
        best = took < best ? took : best;
    }
    if (status == STATUS_OK) {
        status = write_ids(path, &ids, error);
        printf("{\"text\": \"%s\", \"bytes\": %zu, \"tokens\": %zu, \"seconds\": %.6f, "
               "\"mb_per_s\": %.1f}\n",
               path, map.size, ids.length, best, (double)map.size / best * 1e-6);
    }
    token_list_clear(&ids);
    file_map_close(&map);
    return status;
}

static enum status time_all(int argc, char **argv, struct error *error)
{
    struct tokenizer *tokenizer = NULL;
    double best = 1e9;
    for (int i = 0; i < RUNS; i++) {
        tokenizer_close(tokenizer);
        double from = seconds();
        enum status status = tokenizer_open(argv[1], &tokenizer, error);
        if (status != STATUS_OK)
            return status;
        double took = seconds() - from;
        best = took < best ? took : best;
    }
    printf("{\"load_seconds\": %.4f}\n", best);
    enum status status = STATUS_OK;
    for (int i = 2; i < argc && status == STATUS_OK; i++)
        status = time_text(tokenizer, argv[i], error);
    tokenizer_close(tokenizer);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: tokenizer TOKENIZER.json TEXT…\n");
        return 2;
    }
    struct error error;
    if (time_all(argc, argv, &error) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", error.message);
    return 1;
}
