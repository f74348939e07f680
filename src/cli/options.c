#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option help_option = {.name = "help", .help = "this text"};

static void print_row(const char *kind, const char *name, const char *argument, const char *text)
{
    printf("%s\t%s\t%s\t%s\n", kind, name, argument ? argument : "", text);
}

void options_print_command(const char *name, const char *arguments, const char *summary,
                           const char *details)
{
    print_row("command", name, arguments, summary);
    for (const char *line = details; line && *line;) {
        int length = (int)strcspn(line, "\n");
        printf("detail\t%.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

void options_print_option(const struct option *option)
{
    print_row("option", option->name, option->argument, option->help);
}

static void print_table(const struct command *command, const struct option *options)
{
    options_print_command(command->name, command->arguments, command->summary, command->details);
    for (const struct option *option = options; option->name; option++)
        options_print_option(option);
    options_print_option(&help_option);
}

static void print_help(const struct command *command, const struct option *options)
{
    printf("usage: calla %s %s [options]\n%s\n%s%s\noptions:\n", command->name, command->arguments,
           command->summary, command->details ? "\n" : "",
           command->details ? command->details : "");
    for (const struct option *option = options; option->name; option++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", option->name, option->argument ? " " : "",
                 option->argument ? option->argument : "");
        printf("  %-28s %s\n", left, option->help);
    }
    printf("  --%-26s %s\n", help_option.name, help_option.help);
}

int options_usage(const struct command *command, const char *format, ...)
{
    struct error error; /* makes one line of it, whatever the arguments hold */
    va_list arguments;
    va_start(arguments, format);
    error_vset(&error, STATUS_INVALID, format, arguments);
    va_end(arguments);
    fprintf(stderr, "calla %s: %s (see calla %s --help)\n", command->name, error.message,
            command->name);
    return EXIT_USAGE;
}

static int set_number(const struct command *command, const struct option *option, const char *text)
{
    char *end;
    errno = 0;
    bool integer = option->kind == OPTION_INTEGER;
    long long whole = integer ? strtoll(text, &end, 10) : 0;
    double real = integer ? (double)whole : strtod(text, &end);
    if (end == text || *end || errno == ERANGE || !isfinite(real))
        return options_usage(command, "--%s: found '%s', wanted %s", option->name, text,
                             integer ? "an integer" : "a number");
    if (option->low < option->high && (real < option->low || real > option->high))
        return options_usage(command, "--%s: found %s, wanted %.10g to %.10g", option->name, text,
                             option->low, option->high);
    if (integer)
        *(int64_t *)option->value = whole;
    else
        *(double *)option->value = real;
    return -1;
}

static int set_value(const struct command *command, const struct option *option, const char *text)
{
    if (option->given)
        *option->given = true;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)option->value = true;
        return -1;
    case OPTION_NO_FLAG:
        *(bool *)option->value = false;
        return -1;
    case OPTION_TEXT:
        *(const char **)option->value = text;
        return -1;
    case OPTION_LIST: {
        struct option_list *list = option->value;
        if (list->n == OPTION_LIST_MAX)
            return options_usage(command, "--%s: given more than %d times", option->name,
                                 OPTION_LIST_MAX);
        list->values[list->n++] = text;
        return -1;
    }
    default:
        return set_number(command, option, text);
    }
}

/* `name` is what follows the dashes, with "=value" still attached when there is one. */
static const struct option *find(const struct option *options, const char *name, size_t length)
{
    for (const struct option *option = options; option->name; option++)
        if (strlen(option->name) == length && memcmp(option->name, name, length) == 0)
            return option;
    return NULL;
}

int options_parse(const struct command *command, int argc, char **argv,
                  const struct option *options, const char **positionals, int min_positionals,
                  int max_positionals)
{
    int n = 0;
    bool only_positionals = false;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (!only_positionals && strcmp(argument, "--") == 0) {
            only_positionals = true;
            continue;
        }
        if (only_positionals || argument[0] != '-' || argument[1] == '\0') {
            if (n == max_positionals)
                return options_usage(command, "found '%s', wanted no more than %d argument%s",
                                     argument, max_positionals, max_positionals == 1 ? "" : "s");
            positionals[n++] = argument;
            continue;
        }
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            print_help(command, options);
            return EXIT_DONE;
        }
        if (strcmp(argument, OPTIONS_TABLE) == 0) {
            print_table(command, options);
            return EXIT_DONE;
        }
        const char *name = argument + (argument[1] == '-' ? 2 : 1);
        size_t length = strcspn(name, "=");
        const struct option *option = argument[1] == '-' ? find(options, name, length) : NULL;
        if (!option)
            return options_usage(command, "unknown option '%s'", argument);
        bool takes_value = option->kind != OPTION_FLAG && option->kind != OPTION_NO_FLAG;
        const char *text = name[length] == '=' ? name + length + 1 : NULL;
        if (text && !takes_value)
            return options_usage(command, "--%s takes no value", option->name);
        if (takes_value && !text && ++i == argc)
            return options_usage(command, "--%s wants a value (%s)", option->name,
                                 option->argument);
        int code = set_value(command, option, text ? text : argv[i]);
        if (code >= 0)
            return code;
    }
    if (n < min_positionals)
        return options_usage(command, "found %d argument%s, wanted %s", n, n == 1 ? "" : "s",
                             command->arguments);
    if (n > 0 && !positionals[0][0]) { /* it would stand for the root folder */
        const char *name = command->arguments + (command->arguments[0] == '[');
        return options_usage(command, "%.*s: found an empty path", (int)strcspn(name, " ]"), name);
    }
    return -1;
}
