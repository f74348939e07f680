/* The `calla` program: finds the subcommand and hands over. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"

#ifndef CALLA_VERSION
#error "CALLA_VERSION comes from the Makefile"
#endif

static const struct command *const commands[] = {
    &command_run,    &command_score, &command_inspect, &command_tokenize, &command_detokenize,
    &command_render, &command_parse, &command_bench,   &command_doctor,   NULL,
};

int command_failed(const struct error *error)
{
    fprintf(stderr, "calla: %s\n", error->message);
    return EXIT_FAILED;
}

static void print_help(FILE *out)
{
    fprintf(out, "usage: calla COMMAND …\nAn inference engine for one model, "
                 "Qwen3.6-35B-A3B.\n\ncommands:\n");
    for (const struct command *const *command = commands; *command; command++)
        fprintf(out, "  %-11s %-16s %s\n", (*command)->name, (*command)->arguments,
                (*command)->summary);
    fprintf(out, "\ncalla COMMAND --help lists a command's options; calla --version.\n");
}

static int dispatch(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return EXIT_DONE;
    }
    if (strcmp(name, "--version") == 0) {
        printf("calla %s\n", CALLA_VERSION);
        return EXIT_DONE;
    }
    for (const struct command *const *command = commands; *command; command++)
        if (strcmp(name, (*command)->name) == 0)
            return (*command)->run(argc - 1, argv + 1);
    struct error error;
    error_set(&error, STATUS_INVALID, "unknown command '%.100s' (see calla --help)", name);
    if (*name)
        command_failed(&error);
    else
        print_help(stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves shows as a write error */
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (code == EXIT_DONE && errno != EPIPE)
            fprintf(stderr, "calla: cannot write to stdout: %s\n", strerror(errno));
        if (code == EXIT_DONE)
            code = EXIT_FAILED;
    }
    return code;
}
