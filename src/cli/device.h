/* The options by which commands choose and set up a backend, in one place. */
#pragma once

#include "base/threads.h"
#include "cli/options.h"
#include "engine/engine.h"

struct device_options {
    const char *backend; /* NULL: the best one */
    int64_t threads;     /* 0: the physical cores */
    const char *cpu;     /* level of the cpu backend's kernels, NULL: the best */
};

/* Rows for a command's table of options. */
#define DEVICE_OPTIONS(device)                                                                     \
    {"backend",                                                                                    \
     OPTION_BACKEND,                                                                               \
     &(device).backend,                                                                            \
     0,                                                                                            \
     0,                                                                                            \
     NULL,                                                                                         \
     "NAME",                                                                                       \
     "the backend to use (the best one)"},                                                         \
        {"threads",                                                                                \
         OPTION_INTEGER,                                                                           \
         &(device).threads,                                                                        \
         1,                                                                                        \
         THREADS_MAX,                                                                              \
         NULL,                                                                                     \
         "N",                                                                                      \
         "threads of the cpu backend (the physical cores)"},                                       \
    {                                                                                              \
        "cpu", OPTION_LEVEL, &(device).cpu, 0, 0, NULL, "LEVEL",                                   \
            "instructions of the cpu backend's kernels (the best)"                                 \
    }

/* After parsing: whether the backend takes the threads and level that were chosen. Returns -1, or
 * the exit code after a line about a usage error; `prefix` stands before the options' names. */
int device_check(const struct command *command, const struct device_options *device,
                 const char *prefix);
/* Fills what the options decide. */
enum status device_choose(const struct device_options *device, struct engine_options *options,
                          struct error *error);
int device_threads(const struct device_options *device);
