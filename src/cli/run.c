/* `calla run`: one answer to one prompt, streamed. The answer goes to stdout; reasoning, warnings
 * and the line of timings go to stderr, so a pipe gets the answer alone. Uses nothing but calla.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "calla.h"
#include "cli/answer.h"
#include "cli/filter.h"
#include "cli/generation.h"
#include "cli/input.h"

struct run {
    struct generation generation;
    struct calla_request request;
    const char *model, *prompt, *tools_path, *messages_path;
    struct bytes input; /* the prompt from stdin */
    struct bytes messages, tools;
    bool json, raw;
    double load_seconds;
    struct answer answer;
};

static int failed(const struct calla_error *error)
{
    command_complain(error->message);
    return EXIT_FAILED;
}

/* ---- input ----------------------------------------------------------------------------------- */

static void append_message(struct bytes *messages, const char *role, const char *content,
                           size_t length)
{
    bytes_format(messages, "%s{\"role\": \"%s\", \"content\": ", messages->length ? ", " : "[",
                 role);
    json_print_string(content, length, messages);
    bytes_append_byte(messages, '}');
}

/* The prompt from the argument or stdin, and the messages around it. */
static enum status read_prompt(struct run *run, struct error *error)
{
    enum status status = STATUS_OK;
    const char *text = run->prompt, *name = "PROMPT", *system = run->generation.system;
    if (run->messages_path) {
        status = input_read_json(run->messages_path, &run->messages, error);
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
    if (status == STATUS_OK && !run->raw && input_is_blank(text, length))
        status = error_set(error, STATUS_INVALID, "%s: found no text, wanted a prompt", name);
    if (status != STATUS_OK)
        return status;
    if (run->raw) {
        run->request.prompt = text;
        run->request.prompt_length = length;
        return STATUS_OK;
    }
    if (system)
        append_message(&run->messages, "system", system, strlen(system));
    append_message(&run->messages, "user", text, length);
    bytes_append_byte(&run->messages, ']');
    run->request.messages = bytes_terminate(&run->messages);
    return run->request.messages ? STATUS_OK : error_no_memory(error, "the prompt");
}

/* ---- output ---------------------------------------------------------------------------------- */

static int print_json(struct run *run, const struct calla_result *result)
{
    const struct answer *answer = &run->answer;
    struct bytes out = {0};
    bytes_append_text(&out, "{\"text\": ");
    json_print_string(answer->text.data, answer->text.length, &out);
    bytes_append_text(&out, ", \"reasoning\": ");
    json_print_string(answer->reasoning.data, answer->reasoning.length, &out);
    bytes_append_text(&out, ", \"tool_calls\": [");
    bytes_append(&out, answer->calls.data, answer->calls.length);
    bytes_format(&out, "], \"finish\": \"%s\", \"seed\": %llu", finish_name(result->finish),
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
    bool lost = out.failed || !answer_is_whole(answer);
    if (!lost && (fwrite(out.data, 1, out.length, stdout) != out.length || fflush(stdout) != 0))
        run->answer.write_failed = true;
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
            finish_name(result->finish));
}

/* ---- the command ----------------------------------------------------------------------------- */

static int answer(struct run *run, struct calla_session *session)
{
    struct calla_result result;
    struct calla_error error;
    /* a second Ctrl-C ends the program at once */
    enum calla_status status =
        answer_generate(&run->answer, session, &run->request, true, &result, &error);
    int code = EXIT_DONE;
    if (status == CALLA_OK || (status == CALLA_CANCELLED && !run->answer.write_failed)) {
        if (run->json)
            code = print_json(run, &result);
        else
            print_timings(run, &result);
    }
    if (run->answer.write_failed) {
        if (errno != EPIPE) /* a reader that left has seen what it wanted */
            fprintf(stderr, "calla: cannot write to stdout: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    return status == CALLA_OK ? code : failed(&error);
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

/* The whole request: prompt or messages are there already. */
static enum calla_status fill_request(struct run *run, const struct calla_model *model,
                                      struct calla_error *error)
{
    struct calla_request given = run->request, *r = &run->request;
    enum calla_status status = generation_fill(&run->generation, model, r, error);
    r->messages = given.messages;
    r->prompt = given.prompt;
    r->prompt_length = given.prompt_length;
    r->tools = run->tools_path ? run->tools.data : NULL;
    return status;
}

static int open_and_run(struct run *run)
{
    struct error error;
    struct calla_error problem;
    struct calla_model *model;
    enum status status = read_prompt(run, &error);
    if (status == STATUS_OK && run->tools_path)
        status = input_read_json(run->tools_path, &run->tools, &error);
    if (status != STATUS_OK)
        return command_failed(&error);
    double start = clock_seconds();
    if (calla_open(run->model, &run->generation.open, &model, &problem) != CALLA_OK)
        return failed(&problem);
    run->load_seconds = clock_seconds() - start;
    int code;
    if (fill_request(run, model, &problem) != CALLA_OK)
        code = failed(&problem);
    else
        code = run_model(run, model);
    calla_close(model);
    return code;
}

static int run_run(int argc, char **argv)
{
    struct run run = {0};
    const char *positionals[2] = {NULL, NULL};
    generation_init(&run.generation);
    run.generation.open.cache_bytes = -1; /* there is no second prompt */
    struct option options[5 + GENERATION_OPTIONS] = {
        {"raw", OPTION_FLAG, &run.raw, 0, 0, NULL, NULL,
         "the prompt is the model's input as it stands: no template, <|…|> are control tokens"},
        {"messages", OPTION_TEXT, &run.messages_path, 0, 0, NULL, "FILE",
         "a whole conversation, JSON array in OpenAI's form, instead of a prompt"},
        {"tools", OPTION_TEXT, &run.tools_path, 0, 0, NULL, "FILE",
         "tools the model may call, JSON array in OpenAI's form"},
        {"json", OPTION_FLAG, &run.json, 0, 0, NULL, NULL, "print one JSON object instead"},
    };
    generation_add_options(&run.generation, options, 4);
    int code = options_parse(&command_run, argc, argv, options, positionals, 1, 2);
    if (code < 0)
        code = generation_check(&command_run, &run.generation);
    if (code >= 0)
        return code;
    if (run.raw &&
        (run.generation.system || run.tools_path || run.messages_path || run.generation.think))
        return options_usage(&command_run,
                             "--raw excludes --system, --tools, --messages and --think");
    if (run.messages_path && (run.generation.system || positionals[1]))
        return options_usage(&command_run, "--messages excludes PROMPT and --system");
    run.model = positionals[0];
    run.prompt = positionals[1];
    run.answer.silent = run.json;
    run.answer.dim = answer_may_dim(getenv("NO_COLOR"));
    code = open_and_run(&run);
    bytes_clear(&run.input);
    bytes_clear(&run.messages);
    bytes_clear(&run.tools);
    answer_clear(&run.answer);
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
