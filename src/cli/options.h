/* Command-line options from a table: parsing, range checks and --help in one place. Accepts
 * `--name value`, `--name=value`, `--` and positionals anywhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "cli/command.h"

enum option_kind {
    OPTION_FLAG,    /* bool: sets true */
    OPTION_NO_FLAG, /* bool: sets false */
    OPTION_TEXT,    /* const char * */
    OPTION_INTEGER, /* int64_t, within [low, high] */
    OPTION_SIZE,    /* the same for tokens and bytes: 4K, 2M and 1G are multiples of 1,024 */
    OPTION_REAL,    /* double, within [low, high] */
    OPTION_LIST,    /* struct option_list: may be given several times */
    /* const char *, one of the names in cli/choices.h */
    OPTION_BACKEND,
    OPTION_LEVEL,
    OPTION_SHAPE,
    OPTION_PRESET,
};

#define OPTION_LIST_MAX 16
struct option_list {
    const char *values[OPTION_LIST_MAX];
    int n;
};

struct option {
    const char *name; /* without the dashes; NULL ends the table */
    enum option_kind kind;
    void *value;
    double low, high;     /* for numbers; low == high: unchecked */
    bool *given;          /* set when the option appears; may be NULL */
    const char *argument; /* the value's name in --help; NULL for flags */
    const char *help;
};

/* An option of every command, and of the program, that --help does not show: prints the tables for
 * the man page and the completions (packaging/), a row a line, its fields between tabs:
 *   command NAME ARGUMENTS SUMMARY, detail LINE, option NAME ARGUMENT HELP VALUES
 * VALUES, with spaces between, are all that an option takes; empty: anything. */
#define OPTIONS_TABLE "--help-table"
void options_print_command(const char *name, const char *arguments, const char *summary,
                           const char *details);
void options_print_option(const struct option *option);

/* Parses argv[1..]. Positionals are moved, in order, to positionals[0..max). Returns -1 when the
 * command should go on; otherwise the exit code to leave with (--help was printed, or one line
 * about a usage error). */
int options_parse(const struct command *command, int argc, char **argv,
                  const struct option *options, const char **positionals, int min_positionals,
                  int max_positionals);
/* Reads a whole number with an optional K, M or G (also k, m, g) from *at and moves it on. False
 * when there is none, or it is too large for int64_t. */
bool options_read_size(const char **at, int64_t *value);
/* "calla COMMAND: MESSAGE (see calla COMMAND --help)" on stderr; gives EXIT_USAGE. */
int options_usage(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
