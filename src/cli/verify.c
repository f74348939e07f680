#include "cli/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/json.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "model/config.h"
#include "model/known_files.h"

/* Bytes of one file, shown as bytes of all. */
struct position {
    struct progress progress;
    int64_t before;
};

static void file_progress(void *context, int64_t done)
{
    struct position *position = context;
    progress_update(&position->progress, position->before + done);
}

static void print_row(const struct known_file *file, const struct known_result *result, bool json,
                      const char *separator)
{
    const char *state = known_state_names[result->state];
    if (json) {
        printf("%s{\"name\": \"%s\", \"state\": \"%s\", \"bytes\": %" PRId64
               ", \"wanted_bytes\": %" PRId64 ", \"sha256\": \"%s\", \"wanted_sha256\": \"%s\"}",
               separator, file->name, state, result->size, file->size, result->sha256,
               file->sha256);
        return;
    }
    printf("%-34s %s", file->name, state);
    if (result->state == KNOWN_SIZE)
        printf(": found %" PRId64 " bytes, wanted %" PRId64, result->size, file->size);
    else if (result->state == KNOWN_DIFFERENT)
        printf(": found SHA-256 %s, wanted %s", result->sha256, file->sha256);
    else if (result->state == KNOWN_UNREADABLE)
        printf(": %s", result->error.message);
    printf("\n");
    fflush(stdout);
}

static int verify_all(const char *folder, bool json)
{
    int n = 0, good = 0;
    struct position position = {.before = 0};
    int64_t total = 0;
    for (const struct known_file *file = known_files; file->name; file++, n++)
        total += known_file_work(folder, file);
    if (json)
        printf("{\"checkpoint\": \"%s\", \"files\": [", known_checkpoint);
    progress_begin(&position.progress, "verifying", total);
    for (const struct known_file *file = known_files; file->name; file++) {
        struct known_result result;
        known_file_check(folder, file, file_progress, &position, &result);
        progress_end(&position.progress); /* the row must not follow it on the same line */
        print_row(file, &result, json, file == known_files ? "" : ", ");
        good += result.state == KNOWN_OK;
        position.before += result.sha256[0] ? file->size : 0;
    }
    if (json)
        printf("], \"ok\": %s}\n", good == n ? "true" : "false");
    else
        printf("%d of %d files are those of %s\n", good, n, known_checkpoint);
    return good == n ? EXIT_DONE : EXIT_FAILED;
}

int verify_run(const char *folder, bool json)
{
    struct error error;
    struct stat info;
    bool exists = stat(folder, &info) == 0;
    if (!exists || !S_ISDIR(info.st_mode)) {
        error_set(&error, STATUS_IO, "%s: found %s, wanted the folder of a checkpoint", folder,
                  exists ? "a file" : "nothing");
        return command_failed(&error);
    }
    struct config config; /* a damaged one is a row of the table, not a reason to stop */
    bool other = config_open(folder, &config, NULL) == STATUS_OK && config.shape != &shape_35b_a3b;
    if (other) {
        error_set(
            &error, STATUS_INVALID,
            "%s: nothing is known about the files of a checkpoint of shape %s: --verify knows "
            "those of %s",
            folder, config.shape->name, known_checkpoint);
        config_clear(&config);
        return command_failed(&error);
    }
    config_clear(&config);
    return verify_all(folder, json);
}
