#include "cli/line_input.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/file_write.h"
#include "cli/input.h"

#define REMEMBERED 1000 /* lines */
/* A key sequence that no terminal sends: libedit takes text to be edited only from its input. */
#define INITIAL_KEY "\033[calla~"

struct line_input {
    EditLine *edit; /* NULL: plain lines */
    History *history;
    const char *history_path; /* NULL: not kept */
    FILE *terminal;           /* where libedit writes */
    bool continued;           /* which prompt to show */
    const char *initial;
    enum { TYPED, CLEARED, INTERRUPTED } how; /* the last line ended */
};

/* ---- bracketed paste ------------------------------------------------------------------------- */

#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

/* The terminal that is to be put back; signal handlers reach nothing but globals. */
static atomic_int paste_terminal;

/* After libedit's own handler, which puts all else back: the signal then ends the program. */
static void on_signal(int number)
{
    ssize_t n = write(atomic_load(&paste_terminal), PASTE_OFF "\n", sizeof PASTE_OFF);
    (void)n;
    raise(number); /* SA_RESETHAND: by now it has its default action */
}

static const int ending_signals[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};
#define N_ENDING (sizeof ending_signals / sizeof ending_signals[0])

static void paste_begin(FILE *terminal, struct sigaction before[N_ENDING])
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    atomic_store(&paste_terminal, fileno(terminal));
    for (size_t i = 0; i < N_ENDING; i++) {
        sigaction(ending_signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) /* as nohup wants it */
            sigaction(ending_signals[i], &action, NULL);
    }
    fputs(PASTE_ON, terminal);
    fflush(terminal);
}

static void paste_end(FILE *terminal, const struct sigaction before[N_ENDING])
{
    fputs(PASTE_OFF, terminal);
    fflush(terminal);
    for (size_t i = 0; i < N_ENDING; i++)
        sigaction(ending_signals[i], &before[i], NULL);
}

/* ---- what libedit calls ---------------------------------------------------------------------- */

static struct line_input *of_edit(EditLine *edit)
{
    void *input = NULL;
    el_get(edit, EL_CLIENTDATA, &input);
    return input;
}

static char *give_prompt(EditLine *edit)
{
    static char first[] = "> ", continued[] = "| ";
    return of_edit(edit)->continued ? continued : first;
}

/* Ctrl-C: ends the line, which is not used. */
static unsigned char interrupt_line(EditLine *edit, int key)
{
    (void)key;
    const LineInfo *line = el_line(edit);
    struct line_input *input = of_edit(edit);
    bool empty = line->lastchar == line->buffer && !input->continued;
    input->how = empty ? INTERRUPTED : CLEARED;
    el_cursor(edit, (int)(line->lastchar - line->cursor));
    el_set(edit, EL_REFRESH);
    fputs("^C\n", input->terminal);
    return CC_NEWLINE;
}

/* Ctrl-Z, as the terminal would do it: the whole job stops. */
static unsigned char suspend(EditLine *edit, int key)
{
    (void)key;
    FILE *terminal = of_edit(edit)->terminal;
    fputs(PASTE_OFF, terminal);
    fflush(terminal);
    kill(0, SIGTSTP);
    fputs(PASTE_ON, terminal);
    fflush(terminal);
    return CC_REFRESH;
}

static void insert_character(EditLine *edit, wchar_t c)
{
    wchar_t text[2] = {c == L'\r' ? L'\n' : c, L'\0'};
    if (text[0] >= L' ' || text[0] == L'\n' || text[0] == L'\t')
        el_winsertstr(edit, text);
}

/* Bracketed paste: the text up to ESC [201~ goes into the line as it is, newlines too. */
static unsigned char insert_paste(EditLine *edit, int key)
{
    (void)key;
    static const wchar_t end[] = L"\033[201~";
    size_t matched = 0;
    wchar_t c;
    while (end[matched] && el_wgetc(edit, &c) == 1) {
        if (c == end[matched]) {
            matched++;
            continue;
        }
        for (size_t i = 0; i < matched; i++)
            insert_character(edit, end[i]);
        matched = c == end[0];
        if (!matched)
            insert_character(edit, c);
    }
    return CC_REFRESH;
}

static unsigned char insert_initial(EditLine *edit, int key)
{
    (void)key;
    struct line_input *input = of_edit(edit);
    if (input->initial)
        el_insertstr(edit, input->initial);
    input->initial = NULL;
    return CC_REFRESH;
}

/* ---- history --------------------------------------------------------------------------------- */

/* Makes the folders that a path lies in, for this user alone. */
static void make_folders(const char *path)
{
    char folder[4096];
    for (size_t i = 1; i < sizeof folder && path[i]; i++)
        if (path[i] == '/') {
            memcpy(folder, path, i);
            folder[i] = '\0';
            mkdir(folder, 0700);
        }
}

static void load_history(struct line_input *input, const char *path, struct error *note)
{
    HistEvent event;
    struct stat file;
    input->history_path = path;
    if (!path || stat(path, &file) != 0 || file.st_size == 0)
        return;
    if (!S_ISREG(file.st_mode) || history(input->history, &event, H_LOAD, path) < 0) {
        input->history_path = NULL; /* whatever it is, it is not ours to overwrite */
        error_set(note, STATUS_INVALID, "%s: found no history of calla chat; lines are not kept",
                  path);
    }
}

/* The whole file anew after each line: a program that is killed forgets nothing. */
static void remember(struct line_input *input, const char *line)
{
    HistEvent event;
    if (history(input->history, &event, H_ENTER, line) < 0 || !input->history_path)
        return;
    make_folders(input->history_path);
    struct file_writer file;
    if (file_writer_open(&file, input->history_path, 0600, NULL) != STATUS_OK)
        return;
    bool whole = history(input->history, &event, H_SAVE_FP, file.stream) >= 0;
    file_writer_close(&file, whole, NULL);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* libedit decodes what is typed as the locale says; messages are UTF-8 in any. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static enum status open_terminal(struct line_input *input, const char *history_path,
                                 struct error *note, struct error *error)
{
    HistEvent event;
    use_utf8();
    input->terminal = isatty(STDOUT_FILENO) ? stdout : stderr;
    input->edit = el_init("calla", stdin, input->terminal, stderr);
    input->history = history_init();
    if (!input->edit || !input->history)
        return error_no_memory(error, "the line editor");
    history(input->history, &event, H_SETSIZE, REMEMBERED);
    history(input->history, &event, H_SETUNIQUE, 1);
    load_history(input, history_path, note);
    el_set(input->edit, EL_CLIENTDATA, input);
    el_set(input->edit, EL_PROMPT, give_prompt);
    el_set(input->edit, EL_EDITOR, "emacs");
    el_set(input->edit, EL_HIST, history, input->history);
    el_set(input->edit, EL_SIGNAL, 1); /* it puts the terminal back before a signal acts */
    el_set(input->edit, EL_SETTY, "-d", "-isig", NULL); /* Ctrl-C and Ctrl-Z come as keys */
    el_set(input->edit, EL_ADDFN, "calla-interrupt", "drop the line", interrupt_line);
    el_set(input->edit, EL_ADDFN, "calla-paste", "take pasted text", insert_paste);
    el_set(input->edit, EL_ADDFN, "calla-initial", "take the text to edit", insert_initial);
    el_set(input->edit, EL_ADDFN, "calla-suspend", "stop the program", suspend);
    el_set(input->edit, EL_BIND, "^C", "calla-interrupt", NULL);
    el_set(input->edit, EL_BIND, "^Z", "calla-suspend", NULL);
    el_set(input->edit, EL_BIND, "\\e[200~", "calla-paste", NULL);
    el_set(input->edit, EL_BIND, "\\e[calla~", "calla-initial", NULL);
    el_set(input->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return STATUS_OK;
}

enum status line_input_open(const char *history, struct line_input **out, struct error *note,
                            struct error *error)
{
    struct line_input *input = calloc(1, sizeof *input);
    enum status status = input ? STATUS_OK : error_no_memory(error, "the line editor");
    note->message[0] = '\0';
    if (input && isatty(STDIN_FILENO) && (isatty(STDOUT_FILENO) || isatty(STDERR_FILENO)))
        status = open_terminal(input, history, note, error);
    if (status != STATUS_OK) {
        line_input_close(input);
        input = NULL;
    }
    *out = input;
    return status;
}

void line_input_close(struct line_input *input)
{
    if (!input)
        return;
    if (input->edit)
        el_end(input->edit); /* it never frees the names that EL_ADDFN gave it: 500 bytes, once */
    if (input->history)
        history_end(input->history);
    free(input);
}

bool line_input_is_terminal(const struct line_input *input)
{
    return input->edit != NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* One line without its newline; NULL at the end or when Ctrl-C came. */
static const char *read_terminal(struct line_input *input, size_t *length)
{
    int count = 0;
    input->how = TYPED;
    if (input->initial)
        el_push(input->edit, INITIAL_KEY);
    struct sigaction before[N_ENDING];
    paste_begin(input->terminal, before); /* off again for the answer */
    errno = 0;
    const char *line = el_gets(input->edit, &count);
    int problem = errno;
    paste_end(input->terminal, before);
    if (!line && input->how == TYPED)
        fputs("\n", input->terminal); /* Ctrl-D leaves the cursor behind the prompt */
    fflush(input->terminal);
    input->initial = NULL;
    errno = problem;
    if (!line || count < 1 || input->how != TYPED)
        return NULL;
    *length = (size_t)count - (line[count - 1] == '\n');
    return line;
}

/* Appends one line. */
static enum input_kind read_line(struct line_input *input, bool continued, struct bytes *text,
                                 struct error *error)
{
    size_t length = 0;
    if (!input->edit) {
        bool found;
        enum status status = input_line(text, &found, error);
        return status != STATUS_OK ? INPUT_FAILED : found ? INPUT_MESSAGE : INPUT_END;
    }
    input->continued = continued;
    const char *line = read_terminal(input, &length);
    if (line) {
        bytes_append(text, line, length);
        return INPUT_MESSAGE;
    }
    if (input->how == INTERRUPTED)
        return INPUT_INTERRUPT;
    if (input->how == CLEARED)
        return INPUT_CLEARED;
    return INPUT_END;
}

static bool ends_block(const struct bytes *text, size_t from)
{
    return text->length >= from + 3 && memcmp(text->data + text->length - 3, "\"\"\"", 3) == 0;
}

/* The rest of a message whose first line is in `text`: a block, or continued lines. */
static enum input_kind read_rest(struct line_input *input, struct bytes *text, struct error *error)
{
    enum input_kind kind = INPUT_MESSAGE;
    bool block = text->length >= 3 && memcmp(text->data, "\"\"\"", 3) == 0;
    size_t from = block ? 3 : 0; /* where the last line begins */
    while (kind == INPUT_MESSAGE && !text->failed) {
        if (block && ends_block(text, from)) {
            size_t end = text->length - 3;
            end -= end > 3 && text->data[end - 1] == '\n'; /* the marks on lines of their own */
            size_t start = end > 3 && text->data[3] == '\n' ? 4 : 3;
            memmove(text->data, text->data + start, end - start);
            text->length = end - start;
            return kind;
        }
        if (!block && !(text->length > from && text->data[text->length - 1] == '\\'))
            return kind;
        if (!block)
            text->length--;
        bytes_append_byte(text, '\n');
        from = text->length;
        if (input_check_size("the message", from, error) != STATUS_OK)
            return INPUT_FAILED;
        kind = read_line(input, true, text, error);
    }
    if (kind != INPUT_END)
        return kind;
    if (!block)
        return INPUT_MESSAGE; /* the end of the file ends the last line, too */
    error_set(error, STATUS_INVALID, "the block that \"\"\" began has no end: it is not sent");
    return INPUT_BAD;
}

enum input_kind line_input_read(struct line_input *input, const char *initial, struct bytes *text,
                                struct error *error)
{
    bytes_reset(text);
    input->initial = initial;
    enum input_kind kind = read_line(input, false, text, error);
    if (kind != INPUT_MESSAGE)
        return kind;
    bool typed_slash = text->length > 0 && text->data[0] == '/';
    kind = read_rest(input, text, error);
    if (kind != INPUT_MESSAGE)
        return kind;
    if (!bytes_terminate(text)) {
        error_no_memory(error, "the message");
        return INPUT_FAILED;
    }
    if (input_check_utf8("the message", text->data, text->length, error) != STATUS_OK)
        return INPUT_BAD;
    if (input_is_blank(text->data, text->length))
        return INPUT_EMPTY;
    if (input->edit)
        remember(input, text->data);
    if (!typed_slash || memchr(text->data, '\n', text->length))
        return INPUT_MESSAGE;
    if (text->length > 1 && text->data[1] == '/') {
        memmove(text->data, text->data + 1, text->length); /* with its NUL */
        text->length--;
        return INPUT_MESSAGE;
    }
    return INPUT_COMMAND;
}
