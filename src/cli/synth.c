/* `calla synth DIR`: a checkpoint of random weights in a real one's shape and form, for measuring
 * and testing where the real one is not at hand. Goes below the library: an engine has no use for
 * weights that mean nothing. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/synth_files.h"
#include "model/synth_write.h"
#include "text/tokenizer.h"

#define TINY_TOKENIZER "models/tiny/tokenizer.json"

/* What SIGINT, SIGTERM and SIGHUP set; signal handlers reach nothing but globals. */
static atomic_bool interrupted;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&interrupted, true);
}

/* A tokenizer of another model would make a checkpoint that no loader takes. */
static enum status check_tokenizer(const struct file_map *map, const char *path,
                                   const struct shape *shape, struct error *error)
{
    struct tokenizer *tokenizer;
    enum status status = tokenizer_parse(map->data ? (const char *)map->data : "", map->size, path,
                                         &tokenizer, error);
    if (status != STATUS_OK)
        return status;
    int32_t found = tokenizer_added_id(tokenizer, "<|endoftext|>");
    int32_t wanted = synth_first_added_id(shape);
    if (found != wanted || tokenizer_size(tokenizer) > shape->vocab_size)
        status = error_set(error, STATUS_INVALID,
                           "%s: <|endoftext|>: found id %d, wanted %d as in shape %s", path, found,
                           wanted, shape->name);
    tokenizer_close(tokenizer);
    return status;
}

static void show_progress(void *context, int64_t done)
{
    progress_update(context, done);
}

/* Runs with the signals caught, so that what was written is removed; a second one ends at once. */
static enum status write_checkpoint(const struct synth *synth, const char *folder,
                                    const struct file_map *tokenizer, struct error *error)
{
    static const int signals[3] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, before[3];
    struct progress progress;
    struct synth_write_options options = {.tokenizer = tokenizer->data,
                                          .tokenizer_length = tokenizer->size,
                                          .progress = show_progress,
                                          .context = &progress,
                                          .cancel = &interrupted};
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) /* as nohup wants it */
            sigaction(signals[i], &action, NULL);
    }
    progress_begin(&progress, "writing", synth_bytes(synth));
    enum status status = synth_write(synth, folder, &options, error);
    progress_end(&progress);
    for (int i = 0; i < 3; i++)
        sigaction(signals[i], &before[i], NULL);
    return status;
}

static enum status make(const struct shape *shape, uint64_t seed, bool vision,
                        const char *tokenizer, const char *folder, struct error *error)
{
    struct file_map map = {0};
    struct synth *synth = NULL;
    double started = clock_seconds();
    enum status status = file_map_open(tokenizer, &map, error);
    if (status == STATUS_OK)
        status = check_tokenizer(&map, tokenizer, shape, error);
    if (status == STATUS_OK)
        status = synth_plan(shape, seed, vision, &synth, error);
    if (status == STATUS_OK)
        status = write_checkpoint(synth, folder, &map, error);
    if (status == STATUS_OK) {
        struct synth_layout layout;
        int n;
        synth_tensors(synth, &n);
        synth_cut(synth, &layout);
        double seconds = clock_seconds() - started, gigabytes = (double)synth_bytes(synth) / 1e9;
        printf("%s: shape %s, seed %" PRIu64 ", %d tensors in %d files, %.2f GB in %.2f s, %.2f "
               "GB/s\n",
               folder, shape->name, seed, n, layout.n, gigabytes, seconds, gigabytes / seconds);
    }
    synth_close(synth);
    file_map_close(&map);
    return status;
}

static int run(int argc, char **argv)
{
    const char *folder, *name = NULL, *tokenizer = NULL;
    int64_t seed = 0;
    bool vision = false;
    const struct option options[] = {
        {.name = "shape",
         .kind = OPTION_SHAPE,
         .value = &name,
         .argument = "NAME",
         .help = "the real model's (19.5 GB) or that of models/tiny (23 MB)"},
        {.name = "seed",
         .kind = OPTION_INTEGER,
         .value = &seed,
         .low = 0,
         .high = (double)INT64_MAX,
         .argument = "N",
         .help = "another one gives other weights (0)"},
        {.name = "vision",
         .kind = OPTION_FLAG,
         .value = &vision,
         .help = "also the vision tower's tensors, which loaders skip"},
        {.name = "tokenizer",
         .kind = OPTION_TEXT,
         .value = &tokenizer,
         .argument = "FILE",
         .help = "the tokenizer.json to copy (for tiny " TINY_TOKENIZER ")"},
        {0},
    };
    int code = options_parse(&command_synth, argc, argv, options, &folder, 1, 1);
    if (code >= 0)
        return code;
    if (!name)
        return options_usage(&command_synth, "--shape: found nothing, wanted 35b-a3b or tiny");
    const struct shape *shape = shape_find(name);
    if (!tokenizer && shape == &shape_tiny && !file_is_absent(TINY_TOKENIZER))
        tokenizer = TINY_TOKENIZER;
    if (!tokenizer)
        return options_usage(
            &command_synth, "--tokenizer: found nothing, wanted the tokenizer.json %s",
            shape == &shape_tiny ? "of models/tiny, which is not here" : "of the real model");
    struct error error;
    enum status status = make(shape, (uint64_t)seed, vision, tokenizer, folder, &error);
    if (status == STATUS_CANCELLED) /* not by a reader that left, so it is said */
        fprintf(stderr, "calla: %s\n", error.message);
    return status == STATUS_OK ? EXIT_DONE : command_failed(&error);
}

const struct command command_synth = {
    .name = "synth",
    .arguments = "DIR",
    .summary = "writes a checkpoint of random weights, for measuring and testing",
    .run = run,
    .details = "The tensors, files and form of the published checkpoint of that shape. The model\n"
               "answers with noise, as fast as a real one. DIR must be new or empty.\n",
};
