/* What main.c and the subcommands share. */
#pragma once

#include "base/error.h"

/* Exit codes of every command. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* One subcommand. run gets argv from the command's own name on and returns an exit code. */
struct command {
    const char *name;
    const char *arguments; /* "MODEL [PROMPT]" */
    const char *summary;
    int (*run)(int argc, char **argv);
    const char *details; /* more for --help: lines that end with a newline, or NULL */
};

extern const struct command command_run, command_chat, command_serve, command_bench,
    command_perplexity, command_compare, command_doctor, command_score, command_inspect,
    command_tokenize, command_detokenize, command_render, command_parse, command_synth;

/* "calla: MESSAGE" on stderr. A message of the library that begins with the name of a field begins
 * with its option here. */
void command_complain(const char *message);
/* command_complain, but nothing for STATUS_CANCELLED: a reader that left has seen what it
 * wanted. Gives EXIT_FAILED. */
int command_failed(const struct error *error);
