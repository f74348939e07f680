/* `calla chat`: a conversation in the terminal, or from a pipe, each line of which is a message.
 * Answers go to stdout, all else to stderr. The session keeps what it has read, so each turn reads
 * the last answer and the new message only. Uses calla.h alone; the template is asked through it.
 */
#include "cli/chat.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/input.h"
#include "cli/terminal.h"

void chat_note(const char *format, ...)
{
    va_list arguments;
    char *text;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        return; /* no memory for a note */
    terminal_write(stderr, text, (size_t)length);
    fputc('\n', stderr);
    free(text);
}

void chat_problem(struct chat *chat, const char *message)
{
    chat->failed = true;
    fprintf(stderr, "calla: %s\n", message);
}

/* ---- one turn -------------------------------------------------------------------------------- */

/* The library's status and message as the layers below have them. */
static enum status take(enum calla_status status, const struct calla_error *from,
                        struct error *error)
{
    if (status == CALLA_OK)
        return STATUS_OK;
    return error_set(error, status == CALLA_NO_MEMORY ? STATUS_NO_MEMORY : STATUS_INVALID, "%s",
                     from->message);
}

static enum status count_request(struct chat *chat, const struct conversation *conversation,
                                 struct calla_request *request, int32_t *tokens,
                                 struct error *error)
{
    struct calla_error problem;
    *request = conversation->settings;
    enum status status =
        conversation_request(conversation, &chat->messages_text, &chat->tools_text, request, error);
    if (status != STATUS_OK)
        return status;
    return take(calla_count_tokens(chat->model, request, tokens, &problem), &problem, error);
}

enum status chat_count(struct chat *chat, const struct conversation *conversation, int32_t *tokens,
                       struct error *error)
{
    struct calla_request request;
    if (conversation_last_user(conversation))
        return count_request(chat, conversation, &request, tokens, error);
    /* the template wants a question: the shortest one */
    struct conversation asked = *conversation;
    asked.messages = json_copy(conversation->messages);
    enum status status = asked.messages ? conversation_add_user(&asked, "?", 1, error)
                                        : error_no_memory(error, "the conversation");
    if (status == STATUS_OK)
        status = count_request(chat, &asked, &request, tokens, error);
    json_decref(asked.messages);
    return status;
}

#define OPTIONS_WHEN_FULL                                                                          \
    "/save FILE keeps the conversation, /drop forgets its oldest turn, /clear all turns; "         \
    "--max-context N makes more room"

/* Says what will happen before it does: how much of the context is taken after an answer. */
static void warn_of_context(struct chat *chat)
{
    int32_t used, context = calla_context(chat->model), wanted = context / 8;
    int32_t turn = chat->last.prompt_tokens + chat->last.completion_tokens - chat->used;
    struct error error;
    if (chat_count(chat, &chat->conversation, &used, &error) != STATUS_OK)
        return; /* the next message will say it */
    chat->used = used;
    chat->longest_turn = turn > chat->longest_turn ? turn : chat->longest_turn;
    wanted = chat->longest_turn > wanted ? chat->longest_turn : wanted;
    if (used >= context)
        chat_note("context: full, %d of %d tokens: no further message fits. " OPTIONS_WHEN_FULL,
                  used, context);
    else if (context - used < wanted)
        chat_note("context: %d of %d tokens are used, the next turn may not fit: an answer would "
                  "be cut, a message refused, nothing lost. " OPTIONS_WHEN_FULL,
                  used, context);
}

static void note_figures(struct chat *chat, const struct calla_result *result)
{
    chat->last = *result;
    chat->n_answers++;
    chat->cached_tokens += result->cached_tokens;
    chat->read_tokens += result->prompt_tokens - result->cached_tokens;
    chat->generated_tokens += result->completion_tokens;
    if (result->completion_tokens > chat->longest_answer)
        chat->longest_answer = result->completion_tokens;
}

static void note_end(struct chat *chat, const struct calla_result *result)
{
    int left = 0;
    if (result->finish == CALLA_FINISH_LENGTH) {
        if (result->prompt_tokens + result->completion_tokens >= calla_context(chat->model))
            chat_note("the context is full: the answer was cut");
        else
            chat_note("the answer was cut after --max-tokens %d",
                      chat->conversation.settings.max_tokens);
    }
    const json_t *call = conversation_open_call(&chat->conversation, &left);
    if (call)
        chat_note("%d tool result%s wanted: /tool TEXT gives that of %s", left,
                  left == 1 ? " is" : "s are",
                  json_string_value(json_object_get(json_object_get(call, "function"), "name")));
}

/* What becomes of an answer that has ended somehow. */
static void keep_answer(struct chat *chat, enum calla_status status,
                        const struct calla_result *result, const struct calla_error *problem)
{
    struct error error;
    bool empty = chat->answer.text.length == 0 && chat->answer.n_calls == 0;
    if (status != CALLA_OK && status != CALLA_CANCELLED) {
        chat_problem(chat, problem->message);
        return;
    }
    note_figures(chat, result);
    enum status kept = STATUS_OK;
    if (!answer_is_whole(&chat->answer))
        kept = error_no_memory(&error, "the answer");
    else if (status == CALLA_OK || !empty)
        kept = conversation_add_answer(&chat->conversation, &chat->answer, &error);
    if (kept != STATUS_OK)
        chat_problem(chat, error.message);
    if (status == CALLA_OK)
        note_end(chat, result);
    else if (empty)
        chat_note("stopped: there is no answer yet; /regenerate asks again, /edit changes the "
                  "message");
    else
        chat_note("stopped: the answer stays as far as it came; /regenerate asks again");
    warn_of_context(chat);
}

bool chat_answer(struct chat *chat)
{
    struct calla_request request;
    struct calla_result result;
    struct calla_error problem;
    struct error error;
    int32_t tokens, context = calla_context(chat->model);
    if (count_request(chat, &chat->conversation, &request, &tokens, &error) != STATUS_OK) {
        chat_problem(chat, error.message);
        return false;
    }
    int32_t room = context - tokens;
    if (room <= 0) {
        chat->failed = true;
        chat_note("context: the conversation would have %d tokens, %d fit: nothing was sent or "
                  "lost. " OPTIONS_WHEN_FULL,
                  tokens, context);
        return false;
    }
    if (room < chat->longest_answer && (request.max_tokens == 0 || request.max_tokens > room))
        chat_note("context: there is room for %d tokens of answer, a longer one will be cut", room);
    request.seed = (uint64_t)chat->generation.seed + (uint64_t)chat->n_answers;
    answer_reset(&chat->answer);
    enum calla_status status =
        answer_generate(&chat->answer, chat->session, &request, !chat->terminal, &result, &problem);
    if (chat->answer.write_failed) {
        if (errno != EPIPE)
            fprintf(stderr, "calla: cannot write to stdout: %s\n", strerror(errno));
        chat->failed = chat->quit = true;
    }
    chat->quit |= status == CALLA_CANCELLED && !chat->terminal; /* Ctrl-C ends a script */
    chat->failed |= status == CALLA_CANCELLED;
    keep_answer(chat, status, &result, &problem);
    return true;
}

void chat_ask(struct chat *chat, const char *text, size_t length, bool edit)
{
    struct conversation *conversation = &chat->conversation;
    struct error error;
    json_t *before = json_copy(conversation->messages);
    enum status status = before ? STATUS_OK : error_no_memory(&error, "the message");
    if (status == STATUS_OK && edit)
        conversation_drop_last_turn(conversation);
    if (status == STATUS_OK)
        status = conversation_add_user(conversation, text, length, &error);
    if (status != STATUS_OK)
        chat_problem(chat, error.message);
    if (before && (status != STATUS_OK || !chat_answer(chat))) {
        json_decref(conversation->messages);
        conversation->messages = before;
        return;
    }
    json_decref(before);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The text of the last message, to be edited; NULL when there is none to show. */
static const char *text_to_edit(struct chat *chat, struct bytes *text)
{
    const json_t *content = conversation_last_user(&chat->conversation);
    if (!json_is_string(content))
        return NULL;
    bytes_reset(text);
    if (json_string_value(content)[0] == '/' && !strchr(json_string_value(content), '\n'))
        bytes_append_byte(text, '/'); /* no command */
    bytes_append(text, json_string_value(content), json_string_length(content));
    return bytes_terminate(text);
}

/* Reads and does one thing; false at the end. */
static bool turn(struct chat *chat, struct bytes *initial, bool *interrupted)
{
    struct error error;
    bool editing = chat->editing, again = *interrupted;
    chat->editing = *interrupted = false;
    enum input_kind kind = line_input_read(
        chat->input, editing ? text_to_edit(chat, initial) : NULL, &chat->line, &error);
    if (editing && kind != INPUT_MESSAGE)
        chat_note("the message was not changed");
    switch (kind) {
    case INPUT_MESSAGE:
        chat_ask(chat, chat->line.data, chat->line.length, editing);
        return !chat->quit;
    case INPUT_COMMAND:
        return chat_run_command(chat) == CHAT_GO_ON && !chat->quit;
    case INPUT_INTERRUPT:
        if (again)
            return false;
        *interrupted = !editing;
        if (!editing)
            chat_note("Ctrl-C again, or Ctrl-D, leaves");
        return true;
    case INPUT_END:
        return false;
    case INPUT_FAILED:
        chat_problem(chat, error.message);
        return false;
    case INPUT_BAD:
        chat_problem(chat, error.message);
        return true;
    default:
        return true;
    }
}

static int talk(struct chat *chat)
{
    struct bytes initial = {0};
    bool interrupted = false;
    if (chat->terminal)
        chat_note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves");
    while (turn(chat, &initial, &interrupted))
        ;
    bytes_clear(&initial);
    return chat->failed && (!chat->terminal || chat->quit) ? EXIT_FAILED : EXIT_DONE;
}

/* Where earlier lines are kept: $XDG_STATE_HOME/calla, or ~/.local/state/calla. */
static const char *history_path(const char *state_home, const char *home, struct bytes *path)
{
    if (state_home && state_home[0] == '/')
        bytes_format(path, "%s/calla/chat_history", state_home);
    else if (home && home[0] == '/')
        bytes_format(path, "%s/.local/state/calla/chat_history", home);
    else
        return NULL;
    return bytes_terminate(path);
}

static enum status prepare(struct chat *chat, const char *tools_path, struct error *error)
{
    const char *system = chat->generation.system;
    struct conversation *conversation = &chat->conversation;
    struct calla_error problem;
    enum status status =
        take(generation_fill(&chat->generation, chat->model, &conversation->settings, &problem),
             &problem, error);
    if (status == STATUS_OK && system)
        status = conversation_set_system(conversation, system, strlen(system), error);
    if (status == STATUS_OK && tools_path)
        status = conversation_load_tools(tools_path, &conversation->tools, error);
    return status == STATUS_OK ? chat_count(chat, conversation, &chat->used, error) : status;
}

static int open_and_talk(struct chat *chat, const char *model, const char *tools_path,
                         const char *load_path)
{
    struct bytes history = {0};
    struct calla_error problem;
    struct error error, note;
    const char *state_home = getenv("XDG_STATE_HOME");
    enum status status = conversation_init(&chat->conversation, &error);
    if (status == STATUS_OK)
        status = take(calla_open(model, &chat->generation.open, &chat->model, &problem), &problem,
                      &error);
    if (status == STATUS_OK)
        status = take(calla_session_new(chat->model, &chat->session, &problem), &problem, &error);
    if (status == STATUS_OK)
        status = prepare(chat, tools_path, &error);
    if (status == STATUS_OK && load_path)
        status = chat_load(chat, load_path, &error);
    if (status == STATUS_OK)
        status = line_input_open(history_path(state_home, chat->home, &history), &chat->input,
                                 &note, &error);
    if (status == STATUS_OK && note.message[0])
        chat_note("%s", note.message);
    int code = EXIT_FAILED;
    if (status == STATUS_OK) {
        chat->terminal = line_input_is_terminal(chat->input);
        code = talk(chat);
    } else {
        command_failed(&error);
    }
    line_input_close(chat->input);
    calla_session_free(chat->session);
    calla_close(chat->model);
    bytes_clear(&history);
    return code;
}

static int run_chat(int argc, char **argv)
{
    struct chat chat = {.home = getenv("HOME")};
    const char *model = NULL, *tools = NULL, *load = NULL;
    int64_t cache = 0;
    bool cache_given = false;
    generation_init(&chat.generation);
    struct option options[4 + GENERATION_OPTIONS] = {
        {"tools", OPTION_TEXT, &tools, 0, 0, NULL, "FILE",
         "tools the model may call, JSON array in OpenAI's form"},
        {"load", OPTION_TEXT, &load, 0, 0, NULL, "FILE", "go on with what /save kept"},
        {"cache", OPTION_SIZE, &cache, 0, 0x1p50, &cache_given, "BYTES",
         "memory to reuse what was read (1G, less on a small machine; 0: off)"},
    };
    generation_add_options(&chat.generation, options, 3);
    int code = options_parse(&command_chat, argc, argv, options, &model, 1, 1);
    if (code < 0)
        code = generation_check(&command_chat, &chat.generation);
    if (code >= 0)
        return code;
    if (cache > 0 && cache < 1 << 20) /* who writes 512 means something else */
        return options_usage(&command_chat,
                             "--cache: found %lld, wanted 0 or at least 1M, such as 512M",
                             (long long)cache);
    if (cache_given)
        chat.generation.open.cache_bytes = cache > 0 ? cache : -1;
    chat.answer.dim = answer_may_dim(getenv("NO_COLOR"));
    code = open_and_talk(&chat, model, tools, load);
    conversation_clear(&chat.conversation);
    answer_clear(&chat.answer);
    bytes_clear(&chat.line);
    bytes_clear(&chat.messages_text);
    bytes_clear(&chat.tools_text);
    return code;
}

const struct command command_chat = {
    .name = "chat",
    .arguments = "MODEL",
    .summary = "a conversation in the terminal",
    .run = run_chat,
    .details =
        "Lines are edited and remembered; one that ends with a backslash goes on in the next, a\n"
        "block from \"\"\" to \"\"\" is one message. Ctrl-C stops an answer. /help lists the "
        "commands.\n"
        "Without a terminal each line of stdin is a message or a command; the exit code is 1 when\n"
        "one of them failed. Answers and tool calls go to stdout, all else to stderr.\n"
        "Each answer has a seed of its own: --seed N, N+1 …\n",
};
