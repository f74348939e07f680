/* The `calla` program: finds the subcommand and hands over. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/options.h"

#ifndef CALLA_VERSION
#error "CALLA_VERSION comes from the Makefile"
#endif

static const struct command *const commands[] = {
    &command_run,        &command_chat,   &command_serve, &command_bench,   &command_perplexity,
    &command_compare,    &command_doctor, &command_score, &command_inspect, &command_tokenize,
    &command_detokenize, &command_render, &command_parse, &command_synth,   NULL,
};

void command_complain(const char *message)
{
    static const struct {
        const char *field, *option;
    } names[] = {{"max_context: ", "--max-context: "},
                 {"cache: ", "--cache: "},
                 {"cache_ram: ", "--cache-ram: "},
                 {"parallel: ", "--parallel: "}};
    const char *option = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i].field);
        if (strncmp(message, names[i].field, length) == 0) {
            option = names[i].option;
            message += length;
        }
    }
    fprintf(stderr, "calla: %s%s\n", option, message);
}

int command_failed(const struct error *error)
{
    if (error->status != STATUS_CANCELLED)
        command_complain(error->message);
    return EXIT_FAILED;
}

static const char summary[] = "An inference engine for one model, Qwen3.6-35B-A3B.";
static const char details[] =
    "MODEL is the folder of a checkpoint. Options may stand anywhere, as --name value or "
    "--name=value; what\n"
    "follows -- is no option. Numbers of tokens and bytes may end with K, M or G, multiples of "
    "1,024.\n"
    "Exit codes: 0 done; 1 failed, with one line on stderr; 2 wrong usage. The filters (JSONL) "
    "read JSON\n"
    "objects from stdin, one a line, and answer one that they refuse with {\"error\": \"…\"} in "
    "its place:\n"
    "  echo '{\"text\": \"hot\"}' | calla tokenize MODEL\n";
static const struct option program_options[] = {
    {.name = "help", .help = "lists the commands; calla COMMAND --help lists a command's options"},
    {.name = "version", .help = "prints the version"},
    {0},
};

static void print_help(FILE *out)
{
    fprintf(out, "usage: calla COMMAND …\n%s\n\ncommands:\n", summary);
    for (const struct command *const *command = commands; *command; command++)
        fprintf(out, "  %-11s %-16s %s\n", (*command)->name, (*command)->arguments,
                (*command)->summary);
    fprintf(out, "\noptions:\n");
    for (const struct option *option = program_options; option->name; option++)
        fprintf(out, "  --%-26s %s\n", option->name, option->help);
    fprintf(out, "\n%s", details);
}

/* The rows of the program, whose name as a command is empty, and of all commands. */
static int print_table(void)
{
    int code = EXIT_DONE;
    options_print_command("", "COMMAND …", summary, details);
    for (const struct option *option = program_options; option->name; option++)
        options_print_option(option);
    for (const struct command *const *command = commands; *command && code == EXIT_DONE;
         command++) {
        char name[] = "calla", option[] = OPTIONS_TABLE;
        code = (*command)->run(2, (char *[]){name, option, NULL});
    }
    return code;
}

static int dispatch(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return EXIT_DONE;
    }
    if (strcmp(name, OPTIONS_TABLE) == 0)
        return print_table();
    if (strcmp(name, "--version") == 0) {
        printf("calla %s\n", CALLA_VERSION);
        return EXIT_DONE;
    }
    for (const struct command *const *command = commands; *command; command++)
        if (strcmp(name, (*command)->name) == 0)
            return (*command)->run(argc - 1, argv + 1);
    struct error error;
    error_set(&error, STATUS_INVALID, "unknown %s '%.100s' (see calla --help)",
              *name == '-' ? "option" : "command", name);
    if (*name)
        command_failed(&error);
    else
        print_help(stderr);
    return EXIT_USAGE;
}

/* A standard stream that is closed must not become the number of a socket or a file, which would
 * then get what is meant for the stream. Reading and writing still fail. */
static void occupy_standard_streams(void)
{
    for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
        if (fcntl(i, F_GETFD) < 0 && open("/dev/null", i == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return;
}

int main(int argc, char **argv)
{
    occupy_standard_streams();
    /* a reader that leaves and a file that the system limits show as write errors */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (code == EXIT_DONE && errno != EPIPE)
            fprintf(stderr, "calla: cannot write to stdout: %s\n", strerror(errno));
        if (code == EXIT_DONE)
            code = EXIT_FAILED;
    }
    return code;
}
