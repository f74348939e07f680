#include "cli/choices.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option help_option = {.name = "help", .help = "this text"};

void options_print_command(const char *name, const char *arguments, const char *summary,
                           const char *details)
{
    printf("command\t%s\t%s\t%s\n", name, arguments, summary);
    for (const char *line = details; line && *line;) {
        int length = (int)strcspn(line, "\n");
        printf("detail\t%.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
}

void options_print_option(const struct option *option)
{
    const char *name;
    printf("option\t%s\t%s\t%s\t", option->name, option->argument ? option->argument : "",
           option->help);
    for (int i = 0; (name = choice_name(option->kind, i)); i++)
        printf("%s%s", i ? " " : "", name);
    putchar('\n');
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
        printf("  %-28s %s", left, option->help);
        const char *name;
        for (int i = 0; (name = choice_name(option->kind, i)); i++)
            printf("%s%s", i ? ", " : ": ", name);
        putchar('\n');
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

bool options_read_size(const char **at, int64_t *value)
{
    static const char units[] = "kKmMgG";
    char *end;
    const char *digits = *at + (**at == '-');
    errno = 0;
    long long number = strtoll(*at, &end, 10);
    if (*digits < '0' || *digits > '9' || errno == ERANGE)
        return false;
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)((unit - units) / 2 + 1) : 0;
    if (number > INT64_MAX >> shift || number < -(INT64_MAX >> shift))
        return false;
    *value = number * ((int64_t)1 << shift);
    *at = end + (unit != NULL);
    return true;
}

/* The whole text as a number of that kind; *whole is set for those without a fraction. */
static bool read_number(enum option_kind kind, const char *text, int64_t *whole, double *real)
{
    const char *at = text;
    char *end;
    errno = 0;
    if (kind == OPTION_REAL) {
        *real = strtod(text, &end);
        return end > text && !*end && errno != ERANGE && isfinite(*real);
    }
    if (kind == OPTION_SIZE && !options_read_size(&at, whole))
        return false;
    if (kind == OPTION_INTEGER) {
        *whole = strtoll(text, &end, 10);
        at = end;
    }
    *real = (double)*whole;
    return at > text && !*at && errno != ERANGE;
}

static int set_number(const struct command *command, const struct option *option, const char *text)
{
    int64_t whole = 0;
    double real, low = option->low, high = option->high;
    if (!read_number(option->kind, text, &whole, &real))
        return options_usage(command, "--%s: found '%s', wanted %s", option->name, text,
                             option->kind == OPTION_REAL   ? "a number"
                             : option->kind == OPTION_SIZE ? "an integer such as 4096 or 4K"
                                                           : "an integer");
    if (low < high && real < low && high >= 0x1p62)
        return options_usage(command, "--%s: found %s, wanted %.10g or more", option->name, text,
                             low);
    if (low < high && (real < low || real > high))
        return options_usage(command, "--%s: found %s, wanted %.10g to %.10g", option->name, text,
                             low, high);
    if (option->kind == OPTION_REAL)
        *(double *)option->value = real;
    else
        *(int64_t *)option->value = whole;
    return -1;
}

static int refuse_choice(const struct command *command, const struct option *option,
                         const char *text)
{
    struct bytes names = {0};
    choice_print(option->kind, " or ", &names);
    const char *wanted = bytes_terminate(&names);
    int code = options_usage(command, "--%s: found '%s', wanted %s", option->name, text,
                             wanted && *wanted ? wanted : "nothing: there is none to choose");
    bytes_clear(&names);
    return code;
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
    case OPTION_BACKEND:
    case OPTION_LEVEL:
    case OPTION_SHAPE:
    case OPTION_PRESET:
        if (!choice_has(option->kind, text))
            return refuse_choice(command, option, text);
        *(const char **)option->value = text;
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
