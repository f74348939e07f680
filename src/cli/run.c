/* `calla run`: one answer to one prompt, streamed. The answer goes to stdout; reasoning, warnings
 * and the line of timings go to stderr, so a pipe gets the answer alone. Uses nothing but calla.h.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "calla.h"
#include "cli/filter.h"
#include "cli/input.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "text/json_text.h"

struct run {
    struct calla_request request;
    const char *model, *prompt, *system, *tools_path, *messages_path, *preset;
    struct bytes input; /* the prompt from stdin */
    struct bytes messages, tools;
    bool json, raw;
    double load_seconds;
    /* while streaming */
    struct progress progress;
    bool dim;          /* reasoning is shown dimmed */
    bool in_reasoning; /* the last thing on the terminal was reasoning */
    bool line_open;    /* stdout is not at the start of a line */
    bool write_failed;
    int n_calls;                         /* complete ones */
    size_t call_start;                   /* where the open call begins in calls */
    struct bytes text, reasoning, calls; /* for --json; calls: finished JSON objects */
    struct bytes arguments;              /* of the open call */
};

/* The session that SIGINT cancels; signal handlers reach nothing but globals. */
static struct calla_session *volatile running;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (running)
        calla_cancel(running);
}

static int failed(const struct calla_error *error)
{
    fprintf(stderr, "calla: %s\n", error->message);
    return EXIT_FAILED;
}

/* ---- input ----------------------------------------------------------------------------------- */

/* A file that holds JSON. */
static enum status read_file(const char *path, struct bytes *out, struct error *error)
{
    enum status status = input_read(path, out, error);
    if (status != STATUS_OK)
        return status;
    if (memchr(out->data ? out->data : "", '\0', out->length))
        return error_set(error, STATUS_INVALID, "%s: found a NUL byte, wanted JSON text", path);
    return bytes_terminate(out) ? STATUS_OK : error_no_memory(error, path);
}

static bool is_blank(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}

static void append_message(struct bytes *messages, const char *role, const char *content,
                           size_t length)
{
    bytes_format(messages, "%s{\"role\": \"%s\", \"content\": ", messages->length ? ", " : "[",
                 role);
    json_print_string(content, length, messages);
    bytes_append_byte(messages, '}');
}

/* The prompt from the argument or stdin, and the messages around it. What the model could never
 * write ends no answer, so stop texts are checked as well. */
static enum status read_prompt(struct run *run, const struct option_list *stop, struct error *error)
{
    enum status status = STATUS_OK;
    const char *text = run->prompt, *name = "PROMPT";
    for (int i = 0; i < stop->n && status == STATUS_OK; i++)
        status = input_check_utf8("--stop", stop->values[i], strlen(stop->values[i]), error);
    if (status != STATUS_OK)
        return status;
    if (run->messages_path) {
        status = read_file(run->messages_path, &run->messages, error);
        run->request.messages = run->messages.data;
        return status;
    }
    size_t length = text ? strlen(text) : 0;
    if (!text || strcmp(text, "-") == 0) {
        if (isatty(STDIN_FILENO))
            fprintf(stderr,
                    "the prompt comes from the terminal; Ctrl-D on a line of its own ends it\n");
        status = input_read("-", &run->input, error);
        text = run->input.data ? run->input.data : "";
        length = run->input.length;
        name = "stdin";
    }
    if (status == STATUS_OK)
        status = input_check_utf8(name, text, length, error);
    if (status == STATUS_OK && !run->raw && is_blank(text, length))
        status = error_set(error, STATUS_INVALID, "%s: found no text, wanted a prompt", name);
    if (status == STATUS_OK && run->system)
        status = input_check_utf8("--system", run->system, strlen(run->system), error);
    if (status != STATUS_OK)
        return status;
    if (run->raw) {
        run->request.prompt = text;
        run->request.prompt_length = length;
        return STATUS_OK;
    }
    if (run->system)
        append_message(&run->messages, "system", run->system, strlen(run->system));
    append_message(&run->messages, "user", text, length);
    bytes_append_byte(&run->messages, ']');
    run->request.messages = bytes_terminate(&run->messages);
    return run->request.messages ? STATUS_OK : error_no_memory(error, "the prompt");
}

/* ---- output ---------------------------------------------------------------------------------- */

static void write_out(struct run *run, const char *text, size_t length)
{
    if (length == 0)
        return;
    if (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0)
        run->write_failed = true;
    run->line_open = text[length - 1] != '\n';
}

static void show_reasoning(struct run *run, const char *text, size_t length)
{
    fputs(run->dim ? "\033[2m" : "", stderr);
    fwrite(text, 1, length, stderr); /* it may hold U+0000 */
    fputs(run->dim ? "\033[0m" : "", stderr);
    run->in_reasoning = true;
}

static void end_reasoning(struct run *run)
{
    if (run->in_reasoning)
        fprintf(stderr, "\n\n");
    run->in_reasoning = false;
}

/* Tool calls are gathered as JSON objects; only complete ones count. */
static void gather_call(struct run *run, const struct calla_event *event)
{
    struct bytes *calls = &run->calls;
    if (event->kind == CALLA_CALL_BEGIN) {
        calls->length = run->call_start; /* drops a call that never ended */
        run->arguments.length = 0;
        bytes_append_text(calls, run->n_calls ? ", {\"name\": " : "{\"name\": ");
        json_print_string(event->text, event->length, calls);
        bytes_append_text(calls, ", \"arguments\": ");
    } else if (event->kind == CALLA_ARGUMENTS) {
        bytes_append(&run->arguments, event->text, event->length);
    } else {
        json_text_print_unique(run->arguments.data, run->arguments.length, calls);
        bytes_append_byte(calls, '}');
        size_t from = run->call_start + (run->n_calls++ ? 2 : 0);
        run->call_start = calls->length;
        if (run->json || calls->failed)
            return;
        if (run->line_open)
            write_out(run, "\n", 1);
        write_out(run, calls->data + from, calls->length - from);
        write_out(run, "\n", 1);
    }
}

static void on_progress(void *context, int32_t read, int32_t total)
{
    struct run *run = context;
    if (read == 0)
        progress_begin(&run->progress, "reading the prompt", total);
    else
        progress_update(&run->progress, read);
    if (read == total)
        progress_end(&run->progress);
}

static int on_event(void *context, const struct calla_event *event)
{
    struct run *run = context;
    if (event->kind == CALLA_REASONING) {
        if (run->json)
            bytes_append(&run->reasoning, event->text, event->length);
        else
            show_reasoning(run, event->text, event->length);
        return 0;
    }
    end_reasoning(run);
    if (event->kind != CALLA_CONTENT)
        gather_call(run, event);
    else if (run->json)
        bytes_append(&run->text, event->text, event->length);
    else
        write_out(run, event->text, event->length);
    return run->write_failed;
}

static double per_second(int32_t tokens, double seconds)
{
    return seconds > 0 ? tokens / seconds : 0;
}

static const char *const finish_names[] = {
    [CALLA_FINISH_STOP] = "stop",
    [CALLA_FINISH_LENGTH] = "length",
    [CALLA_FINISH_TOOL_CALLS] = "tool_calls",
    [CALLA_FINISH_CANCELLED] = "cancelled",
};

static int print_json(struct run *run, const struct calla_result *result)
{
    struct bytes out = {0};
    bytes_append_text(&out, "{\"text\": ");
    json_print_string(run->text.data, run->text.length, &out);
    bytes_append_text(&out, ", \"reasoning\": ");
    json_print_string(run->reasoning.data, run->reasoning.length, &out);
    bytes_append_text(&out, ", \"tool_calls\": [");
    bytes_append(&out, run->calls.data, run->call_start);
    bytes_format(&out, "], \"finish\": \"%s\", \"seed\": %llu", finish_names[result->finish],
                 (unsigned long long)run->request.seed);
    bytes_append_text(&out, ", \"prompt_ids\": ");
    filter_print_ids(result->prompt_ids, (size_t)result->prompt_tokens, &out);
    bytes_append_text(&out, ", \"ids\": ");
    filter_print_ids(result->completion_ids, (size_t)result->completion_tokens, &out);
    bytes_format(&out,
                 ", \"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, "
                 "\"reasoning_tokens\": %d}, \"timings\": {\"load_seconds\": %.6f, "
                 "\"prompt_seconds\": %.6f, \"completion_seconds\": %.6f, "
                 "\"prompt_per_second\": %.3f, \"completion_per_second\": %.3f}}\n",
                 result->prompt_tokens, result->completion_tokens, result->reasoning_tokens,
                 run->load_seconds, result->prompt_seconds, result->completion_seconds,
                 per_second(result->prompt_tokens, result->prompt_seconds),
                 per_second(result->completion_tokens, result->completion_seconds));
    bool lost = out.failed | run->text.failed | run->reasoning.failed | run->calls.failed |
                run->arguments.failed;
    if (!lost)
        write_out(run, out.data, out.length);
    bytes_clear(&out);
    if (lost) {
        struct error error;
        error_no_memory(&error, "the answer");
        return command_failed(&error);
    }
    return EXIT_DONE;
}

static void print_timings(const struct run *run, const struct calla_result *result)
{
    fprintf(stderr,
            "load %.2f s · prompt %d tokens, %.2f s, %.1f tok/s · answer %d tokens, %.2f s, "
            "%.1f tok/s · %s\n",
            run->load_seconds, result->prompt_tokens, result->prompt_seconds,
            per_second(result->prompt_tokens, result->prompt_seconds), result->completion_tokens,
            result->completion_seconds,
            per_second(result->completion_tokens, result->completion_seconds),
            finish_names[result->finish]);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int answer(struct run *run, struct calla_session *session)
{
    struct calla_result result;
    struct calla_error error;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, before;
    running = session;
    sigaction(SIGINT, &action, &before); /* a second Ctrl-C ends the program at once */
    enum calla_status status =
        calla_generate(session, &run->request, on_event, run, &result, &error);
    sigaction(SIGINT, &before, NULL);
    running = NULL;
    progress_end(&run->progress); /* a prompt that was not read to its end leaves it open */
    if (!run->json) {
        end_reasoning(run);
        if (run->line_open)
            write_out(run, "\n", 1);
    }
    int code = EXIT_DONE;
    if (status == CALLA_OK || (status == CALLA_CANCELLED && !run->write_failed)) {
        if (run->json)
            code = print_json(run, &result);
        else
            print_timings(run, &result);
    }
    if (run->write_failed) {
        if (errno != EPIPE) /* a reader that left has seen what it wanted */
            fprintf(stderr, "calla: cannot write to stdout: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    return status == CALLA_OK ? code : failed(&error);
}

static void print_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static int run_model(struct run *run, struct calla_model *model)
{
    struct calla_session *session;
    struct calla_error error;
    if (calla_session_new(model, &session, &error) != CALLA_OK)
        return failed(&error);
    int code = answer(run, session);
    calla_session_free(session);
    return code;
}

/* What the command line says over what the checkpoint and the preset say. */
struct given {
    bool max_tokens, temperature, top_p, top_k, min_p, presence, frequency, repetition;
    bool think, no_think;
    int64_t top_k_value, max_tokens_value, seed;
    struct calla_request values;
    struct option_list stop;
};

static enum calla_status fill_request(struct run *run, const struct calla_model *model,
                                      const struct given *given, struct calla_error *error)
{
    struct calla_request *r = &run->request;
    const char *messages = r->messages, *prompt = r->prompt;
    size_t prompt_length = r->prompt_length;
    calla_request_init(model, r);
    r->messages = messages;
    r->prompt = prompt;
    r->prompt_length = prompt_length;
    if (run->preset) {
        enum calla_status status = calla_request_preset(r, run->preset, error);
        if (status != CALLA_OK)
            return status;
    }
    const struct calla_request *v = &given->values;
    r->temperature = given->temperature ? v->temperature : r->temperature;
    r->top_p = given->top_p ? v->top_p : r->top_p;
    r->top_k = given->top_k ? (int32_t)given->top_k_value : r->top_k;
    r->min_p = given->min_p ? v->min_p : r->min_p;
    r->presence_penalty = given->presence ? v->presence_penalty : r->presence_penalty;
    r->frequency_penalty = given->frequency ? v->frequency_penalty : r->frequency_penalty;
    r->repetition_penalty = given->repetition ? v->repetition_penalty : r->repetition_penalty;
    r->thinking = given->think      ? CALLA_THINKING_ON
                  : given->no_think ? CALLA_THINKING_OFF
                                    : r->thinking;
    r->max_tokens = (int32_t)given->max_tokens_value;
    r->seed = (uint64_t)given->seed;
    r->stop = given->stop.values;
    r->n_stop = given->stop.n;
    r->progress = on_progress;
    r->tools = run->tools_path ? run->tools.data : NULL;
    return CALLA_OK;
}

static int open_and_run(struct run *run, const struct calla_open_options *open,
                        const struct given *given)
{
    struct error error;
    struct calla_error problem;
    struct calla_model *model;
    enum status status = read_prompt(run, &given->stop, &error);
    if (status == STATUS_OK && run->tools_path)
        status = read_file(run->tools_path, &run->tools, &error);
    if (status != STATUS_OK)
        return command_failed(&error);
    double start = clock_seconds();
    if (calla_open(run->model, open, &model, &problem) != CALLA_OK)
        return failed(&problem);
    run->load_seconds = clock_seconds() - start;
    int code;
    if (fill_request(run, model, given, &problem) != CALLA_OK)
        code = failed(&problem);
    else
        code = run_model(run, model);
    calla_close(model);
    return code;
}

static int run_run(int argc, char **argv)
{
    struct run run = {0};
    struct given given = {0};
    struct calla_open_options open = {.log = print_line};
    int64_t context = 0;
    bool yes = false;
    const char *positionals[2] = {NULL, NULL};
    struct calla_request *v = &given.values;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    given.seed = (int64_t)(clock.tv_nsec ^ (clock.tv_sec << 20)); /* another text each time */
    const struct option options[] = {
        {"system", OPTION_TEXT, &run.system, 0, 0, NULL, "TEXT", "system message"},
        {"think", OPTION_FLAG, &yes, 0, 0, &given.think, NULL, "reason before answering (default)"},
        {"no-think", OPTION_FLAG, &yes, 0, 0, &given.no_think, NULL, "answer at once"},
        {"raw", OPTION_FLAG, &run.raw, 0, 0, NULL, NULL,
         "the prompt is the model's input as it stands: no template, <|…|> are control tokens"},
        {"messages", OPTION_TEXT, &run.messages_path, 0, 0, NULL, "FILE",
         "a whole conversation, JSON array in OpenAI's form, instead of a prompt"},
        {"tools", OPTION_TEXT, &run.tools_path, 0, 0, NULL, "FILE",
         "tools the model may call, JSON array in OpenAI's form"},
        {"preset", OPTION_TEXT, &run.preset, 0, 0, NULL, "NAME",
         "the vendor's sampling: thinking, coding, chat, reasoning (the last two: --no-think)"},
        {"max-tokens", OPTION_INTEGER, &given.max_tokens_value, 1, INT32_MAX, NULL, "N",
         "end the answer after N tokens"},
        {"temperature", OPTION_REAL, &v->temperature, 0, 2, &given.temperature, "T", "0: greedy"},
        {"top-p", OPTION_REAL, &v->top_p, 1e-9, 1, &given.top_p, "P", "nucleus; 1: off"},
        {"top-k", OPTION_INTEGER, &given.top_k_value, 0, INT32_MAX, &given.top_k, "K", "0: off"},
        {"min-p", OPTION_REAL, &v->min_p, 0, 1, &given.min_p, "P",
         "drop tokens below P times the best one's probability"},
        {"presence-penalty", OPTION_REAL, &v->presence_penalty, -2, 2, &given.presence, "X",
         "over tokens that were generated"},
        {"frequency-penalty", OPTION_REAL, &v->frequency_penalty, -2, 2, &given.frequency, "X",
         "over tokens that were generated"},
        {"repetition-penalty", OPTION_REAL, &v->repetition_penalty, 1e-3, 1e3, &given.repetition,
         "X", "over prompt and generated tokens; 1: off"},
        {"seed", OPTION_INTEGER, &given.seed, 0, 0, NULL, "N",
         "the same seed gives the same text (default: from the clock)"},
        {"stop", OPTION_LIST, &given.stop, 0, 0, NULL, "TEXT",
         "end the answer where TEXT would appear; may be repeated"},
        {"max-context", OPTION_INTEGER, &context, 1, INT32_MAX, NULL, "N",
         "tokens of prompt and answer together"},
        {"backend", OPTION_TEXT, &open.backend, 0, 0, NULL, "NAME", "the backend to use"},
        {"json", OPTION_FLAG, &run.json, 0, 0, NULL, NULL, "print one JSON object instead"},
        {0},
    };
    int code = options_parse(&command_run, argc, argv, options, positionals, 1, 2);
    if (code >= 0)
        return code;
    if (given.think && given.no_think)
        return options_usage(&command_run, "--think and --no-think exclude each other");
    if (run.raw && (run.system || run.tools_path || run.messages_path || given.think))
        return options_usage(&command_run,
                             "--raw excludes --system, --tools, --messages and --think");
    if (run.messages_path && (run.system || positionals[1]))
        return options_usage(&command_run, "--messages excludes PROMPT and --system");
    struct calla_request unused = {0};
    struct calla_error error;
    if (run.preset && calla_request_preset(&unused, run.preset, &error) != CALLA_OK)
        return options_usage(&command_run, "%s", error.message);
    for (int i = 0; i < given.stop.n; i++)
        if (!given.stop.values[i][0])
            return options_usage(&command_run, "--stop: found an empty text");
    run.model = positionals[0];
    run.prompt = positionals[1];
    const char *no_color = getenv("NO_COLOR"); /* an empty one asks for nothing: no-color.org */
    run.dim = isatty(STDERR_FILENO) && !(no_color && *no_color);
    open.max_context = (int32_t)context;
    code = open_and_run(&run, &open, &given);
    bytes_clear(&run.input);
    bytes_clear(&run.messages);
    bytes_clear(&run.tools);
    bytes_clear(&run.text);
    bytes_clear(&run.reasoning);
    bytes_clear(&run.calls);
    bytes_clear(&run.arguments);
    return code;
}

const struct command command_run = {
    .name = "run",
    .arguments = "MODEL [PROMPT]",
    .summary = "one answer to one prompt, streamed",
    .run = run_run,
    .details = "Without PROMPT, or with -, the prompt is read from stdin. The answer goes to "
               "stdout, tool calls as\n"
               "one JSON object a line; reasoning, the memory plan and timings go to stderr.\n"
               "Sampling that is not given comes from --preset, else from the checkpoint.\n"
               "--json: {\"text\", \"reasoning\", \"tool_calls\": [{\"name\", \"arguments\"}], "
               "\"finish\", \"seed\",\n"
               "         \"prompt_ids\", \"ids\", \"usage\", \"timings\"}\n",
};
