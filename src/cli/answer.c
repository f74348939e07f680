#include "cli/answer.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/terminal.h"
#include "text/json_text.h"

/* The session that SIGINT cancels, and whether it came; signal handlers reach nothing but globals.
 */
static struct calla_session *volatile running;
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
    if (running)
        calla_cancel(running);
}

bool answer_may_dim(const char *no_color)
{
    return isatty(STDERR_FILENO) && !(no_color && *no_color); /* an empty one asks for nothing */
}

void answer_reset(struct answer *answer)
{
    bytes_reset(&answer->text);
    bytes_reset(&answer->reasoning);
    bytes_reset(&answer->calls);
    bytes_reset(&answer->arguments);
    answer->n_calls = 0;
    answer->call_start = 0;
}

void answer_clear(struct answer *answer)
{
    bytes_clear(&answer->text);
    bytes_clear(&answer->reasoning);
    bytes_clear(&answer->calls);
    bytes_clear(&answer->arguments);
}

static void write_out(struct answer *answer, const char *text, size_t length)
{
    if (length == 0)
        return;
    if (!terminal_write(stdout, text, length) || fflush(stdout) != 0)
        answer->write_failed = true;
    answer->line_open = text[length - 1] != '\n';
}

static void show_reasoning(struct answer *answer, const char *text, size_t length)
{
    fputs(answer->dim ? "\033[2m" : "", stderr);
    terminal_write(stderr, text, length);
    fputs(answer->dim ? "\033[0m" : "", stderr);
    answer->in_reasoning = true;
}

static void end_reasoning(struct answer *answer)
{
    if (answer->in_reasoning)
        fprintf(stderr, "\n\n");
    answer->in_reasoning = false;
}

/* Tool calls are gathered as JSON objects; only complete ones count. */
static void gather_call(struct answer *answer, const struct calla_event *event)
{
    struct bytes *calls = &answer->calls;
    if (event->kind == CALLA_CALL_BEGIN) {
        calls->length = answer->call_start; /* drops a call that never ended */
        answer->arguments.length = 0;
        bytes_append_text(calls, answer->n_calls ? ", {\"name\": " : "{\"name\": ");
        json_print_string(event->text, event->length, calls);
        bytes_append_text(calls, ", \"arguments\": ");
    } else if (event->kind == CALLA_ARGUMENTS) {
        bytes_append(&answer->arguments, event->text, event->length);
    } else {
        json_text_print_unique(answer->arguments.data, answer->arguments.length, calls);
        bytes_append_byte(calls, '}');
        size_t from = answer->call_start + (answer->n_calls++ ? 2 : 0);
        answer->call_start = calls->length;
        if (answer->silent || calls->failed)
            return;
        if (answer->line_open)
            write_out(answer, "\n", 1);
        write_out(answer, calls->data + from, calls->length - from);
        write_out(answer, "\n", 1);
    }
}

static void on_progress(void *context, int32_t read, int32_t total)
{
    struct answer *answer = context;
    if (read == 0)
        progress_begin(&answer->progress, "reading the prompt", total);
    else
        progress_update(&answer->progress, read);
    if (read == total)
        progress_end(&answer->progress);
}

static int on_event(void *context, const struct calla_event *event)
{
    struct answer *answer = context;
    if (event->kind == CALLA_REASONING) {
        bytes_append(&answer->reasoning, event->text, event->length);
        if (!answer->silent)
            show_reasoning(answer, event->text, event->length);
        return 0;
    }
    end_reasoning(answer);
    if (event->kind != CALLA_CONTENT) {
        gather_call(answer, event);
    } else {
        bytes_append(&answer->text, event->text, event->length);
        if (!answer->silent)
            write_out(answer, event->text, event->length);
    }
    return answer->write_failed;
}

enum calla_status answer_generate(struct answer *answer, struct calla_session *session,
                                  struct calla_request *request, bool twice_ends,
                                  struct calla_result *result, struct calla_error *error)
{
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    enum calla_status status;
    action.sa_flags = twice_ends ? (int)SA_RESETHAND : SA_RESTART;
    request->progress = on_progress;
    interrupted = 0;
    running = session;
    sigaction(SIGINT, &action, &before);
    status = calla_generate(session, request, on_event, answer, result, error);
    /* a Ctrl-C that came just after an earlier generation ended was not meant for this one */
    if (status == CALLA_CANCELLED && !interrupted && !answer->write_failed)
        status = calla_generate(session, request, on_event, answer, result, error);
    sigaction(SIGINT, &before, NULL);
    running = NULL;
    answer->calls.length = answer->call_start;
    progress_end(&answer->progress); /* a prompt that was not read to its end leaves it open */
    end_reasoning(answer);
    if (answer->line_open)
        write_out(answer, "\n", 1);
    return status;
}

bool answer_is_whole(const struct answer *answer)
{
    return !(answer->text.failed | answer->reasoning.failed | answer->calls.failed |
             answer->arguments.failed);
}

double per_second(int32_t tokens, double seconds)
{
    return seconds > 0 ? tokens / seconds : 0;
}

const char *finish_name(enum calla_finish finish)
{
    static const char *const names[] = {
        [CALLA_FINISH_STOP] = "stop",
        [CALLA_FINISH_LENGTH] = "length",
        [CALLA_FINISH_TOOL_CALLS] = "tool_calls",
        [CALLA_FINISH_CANCELLED] = "cancelled",
    };
    return names[finish];
}
