/* The commands that are typed into `calla chat`. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/chat.h"
#include "cli/choices.h"

/* "~/x" is in the home folder. NULL, and a line about it, when there is no path. */
static const char *path_of(struct chat *chat, const char *command, const char *argument,
                           struct bytes *path)
{
    struct error error;
    if (!*argument) {
        error_set(&error, STATUS_INVALID, "/%s: found no file name, wanted /%s FILE", command,
                  command);
        chat_problem(chat, error.message);
        return NULL;
    }
    if (strncmp(argument, "~/", 2) == 0 && chat->home)
        bytes_format(path, "%s%s", chat->home, argument + 1);
    else
        bytes_append_text(path, argument);
    return bytes_terminate(path);
}

static void settle(struct chat *chat, enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        chat_problem(chat, error->message);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static enum chat_next run_regenerate(struct chat *chat, const char *argument)
{
    struct conversation *conversation = &chat->conversation;
    (void)argument;
    if (!conversation_last_user(conversation)) {
        chat_problem(chat, "there is no message to answer yet");
        return CHAT_GO_ON;
    }
    json_t *before = json_copy(conversation->messages);
    bool answered = conversation_is_answered(conversation);
    conversation_drop_answer(conversation);
    chat_answer(chat);
    if (before && answered && !conversation_is_answered(conversation)) {
        json_decref(conversation->messages);
        conversation->messages = before;
        chat_note("the earlier answer stays");
        return CHAT_GO_ON;
    }
    json_decref(before);
    return CHAT_GO_ON;
}

static enum chat_next run_edit(struct chat *chat, const char *argument)
{
    if (!conversation_last_user(&chat->conversation)) {
        chat_problem(chat, "there is no message to edit yet");
    } else if (*argument) {
        chat_ask(chat, argument, strlen(argument), true);
    } else {
        chat->editing = true;
        if (chat->terminal)
            chat_note("edit the message; an empty line or Ctrl-C leaves it as it is");
    }
    return CHAT_GO_ON;
}

static enum chat_next run_tool(struct chat *chat, const char *argument)
{
    struct error error;
    int left;
    if (!conversation_open_call(&chat->conversation, &left)) {
        chat_problem(chat, "no tool call waits for a result");
        return CHAT_GO_ON;
    }
    enum status status =
        conversation_add_result(&chat->conversation, argument, strlen(argument), &error);
    settle(chat, status, &error);
    if (status != STATUS_OK)
        return CHAT_GO_ON;
    const json_t *call = conversation_open_call(&chat->conversation, &left);
    if (call)
        chat_note("%d more: /tool TEXT gives that of %s", left,
                  json_string_value(json_object_get(json_object_get(call, "function"), "name")));
    else if (!chat_answer(chat)) /* the result was refused */
        json_array_remove(chat->conversation.messages,
                          json_array_size(chat->conversation.messages) - 1);
    return CHAT_GO_ON;
}

static enum chat_next run_drop(struct chat *chat, const char *argument)
{
    int32_t used;
    struct error error;
    (void)argument;
    if (!conversation_drop_first_turn(&chat->conversation))
        chat_problem(chat, "there is only one turn; /clear forgets it");
    else if (chat_count(chat, &chat->conversation, &used, &error) == STATUS_OK)
        chat_note("the oldest turn is forgotten: %d of %d tokens are used", used,
                  calla_context(chat->model));
    return CHAT_GO_ON;
}

static enum chat_next run_clear(struct chat *chat, const char *argument)
{
    (void)argument;
    conversation_drop_all(&chat->conversation);
    chat_note("a new conversation; system message, tools and settings stay");
    return CHAT_GO_ON;
}

/* ---- what stands before them ----------------------------------------------------------------- */

static enum chat_next run_system(struct chat *chat, const char *argument)
{
    struct error error;
    const json_t *system = conversation_system(&chat->conversation);
    if (!*argument) {
        if (json_is_string(system))
            chat_note("%s", json_string_value(system));
        else
            chat_note(system ? "the system message is no plain text" : "no system message is set");
        return CHAT_GO_ON;
    }
    bool none = strcmp(argument, "-") == 0;
    settle(chat,
           conversation_set_system(&chat->conversation, none ? NULL : argument, strlen(argument),
                                   &error),
           &error);
    chat_note("%s; with the next message all is read anew",
              none ? "the system message is removed" : "the system message is set");
    return CHAT_GO_ON;
}

static void list_tools(const json_t *tools)
{
    if (json_array_size(tools) == 0)
        chat_note("there are no tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *text = json_string_value(json_object_get(function, "description"));
        chat_note("%s%s%.100s", json_string_value(json_object_get(function, "name")),
                  text ? ": " : "", text ? text : "");
    }
}

static enum chat_next run_tools(struct chat *chat, const char *argument)
{
    struct bytes path = {0};
    struct error error;
    struct conversation changed = chat->conversation;
    int32_t unused;
    enum status status = STATUS_OK;
    if (!*argument) {
        list_tools(chat->conversation.tools);
        return CHAT_GO_ON;
    }
    changed.tools = NULL;
    if (strcmp(argument, "-") != 0)
        status = path_of(chat, "tools", argument, &path)
                     ? conversation_load_tools(path.data, &changed.tools, &error)
                     : error_no_memory(&error, "the path");
    if (status == STATUS_OK)
        status = chat_count(chat, &changed, &unused, &error);
    if (status == STATUS_OK) {
        json_decref(chat->conversation.tools);
        chat->conversation.tools = changed.tools;
        chat_note("%zu tool%s; with the next message all is read anew",
                  json_array_size(changed.tools), json_array_size(changed.tools) == 1 ? "" : "s");
    } else {
        json_decref(changed.tools);
        chat_problem(chat, error.message);
    }
    bytes_clear(&path);
    return CHAT_GO_ON;
}

static enum chat_next run_think(struct chat *chat, const char *argument)
{
    enum calla_thinking *thinking = &chat->conversation.settings.thinking;
    if (strcmp(argument, "on") == 0)
        *thinking = CALLA_THINKING_ON;
    else if (strcmp(argument, "off") == 0)
        *thinking = CALLA_THINKING_OFF;
    else if (*argument)
        chat_problem(chat, "/think: wanted on or off");
    chat_note("thinking is %s", *thinking == CALLA_THINKING_OFF ? "off" : "on");
    return CHAT_GO_ON;
}

static enum chat_next run_preset(struct chat *chat, const char *argument)
{
    struct calla_request *settings = &chat->conversation.settings;
    struct calla_error error;
    if (*argument && calla_request_preset(settings, argument, &error) != CALLA_OK) {
        chat_problem(chat, error.message);
        return CHAT_GO_ON;
    }
    chat_note("temperature %g, top_p %g, top_k %d, presence penalty %g; thinking is %s",
              settings->temperature, settings->top_p, settings->top_k, settings->presence_penalty,
              settings->thinking == CALLA_THINKING_OFF ? "off" : "on");
    if (!*argument) {
        struct bytes names = {0};
        choice_print(OPTION_PRESET, " or ", &names);
        const char *text = bytes_terminate(&names);
        chat_note("/preset NAME takes %s", text ? text : "a name");
        bytes_clear(&names);
    }
    return CHAT_GO_ON;
}

/* ---- files and figures ----------------------------------------------------------------------- */

static enum chat_next run_save(struct chat *chat, const char *argument)
{
    struct bytes path = {0};
    struct error error;
    if (path_of(chat, "save", argument, &path)) {
        enum status status = conversation_save(&chat->conversation, path.data, &error);
        settle(chat, status, &error);
        if (status == STATUS_OK)
            chat_note("saved %zu messages", conversation_length(&chat->conversation));
    }
    bytes_clear(&path);
    return CHAT_GO_ON;
}

enum status chat_load(struct chat *chat, const char *path, struct error *error)
{
    struct conversation loaded;
    int32_t used = 0, context = calla_context(chat->model);
    enum status status = conversation_init(&loaded, error);
    loaded.settings = chat->conversation.settings;
    if (status == STATUS_OK)
        status = conversation_load(&loaded, path, error);
    struct error problem;
    if (status == STATUS_OK && chat_count(chat, &loaded, &used, &problem) != STATUS_OK)
        status = error_set(error, problem.status, "%s: %s", path, problem.message);
    if (status != STATUS_OK) {
        conversation_clear(&loaded);
        return status;
    }
    conversation_clear(&chat->conversation);
    chat->conversation = loaded;
    chat_note("loaded %zu messages, %d of %d tokens%s", conversation_length(&loaded), used, context,
              used >= context ? ": /drop forgets the oldest turn until it fits" : "");
    if (conversation_last_user(&loaded) && !conversation_is_answered(&loaded))
        chat_note("the last message has no answer: /regenerate asks for it");
    return STATUS_OK;
}

static enum chat_next run_load(struct chat *chat, const char *argument)
{
    struct bytes path = {0};
    struct error error;
    if (path_of(chat, "load", argument, &path))
        settle(chat, chat_load(chat, path.data, &error), &error);
    bytes_clear(&path);
    return CHAT_GO_ON;
}

static enum chat_next run_stats(struct chat *chat, const char *argument)
{
    const struct calla_result *last = &chat->last;
    int32_t read = last->prompt_tokens - last->cached_tokens, used;
    struct error error;
    (void)argument;
    if (chat->n_answers > 0) {
        chat_note("last answer: prompt %d tokens: %d reused, %d read in %.2f s (%.1f tok/s); %d "
                  "generated in %.2f s (%.1f tok/s), %d of them reasoning; %s",
                  last->prompt_tokens, last->cached_tokens, read, last->prompt_seconds,
                  per_second(read, last->prompt_seconds), last->completion_tokens,
                  last->completion_seconds,
                  per_second(last->completion_tokens, last->completion_seconds),
                  last->reasoning_tokens, finish_name(last->finish));
        chat_note("answers: %d, %lld tokens reused, %lld read, %lld generated", chat->n_answers,
                  (long long)chat->cached_tokens, (long long)chat->read_tokens,
                  (long long)chat->generated_tokens);
    }
    if (chat_count(chat, &chat->conversation, &used, &error) == STATUS_OK)
        chat_note("context: %d of %d tokens", used, calla_context(chat->model));
    chat_note("memory for reuse: %.3f GiB", (double)last->cache_bytes / (1024.0 * 1024 * 1024));
    return CHAT_GO_ON;
}

static enum chat_next run_quit(struct chat *chat, const char *argument)
{
    (void)chat, (void)argument;
    return CHAT_QUIT;
}

/* ---- the table ------------------------------------------------------------------------------- */

static enum chat_next run_help(struct chat *chat, const char *argument);

static const struct {
    const char *name, *arguments, *help;
    enum chat_next (*run)(struct chat *chat, const char *argument);
} commands[] = {
    {"regenerate", "", "another answer to the last message", run_regenerate},
    {"edit", "[TEXT]", "change the last message and answer it", run_edit},
    {"tool", "TEXT", "the result of a tool call", run_tool},
    {"system", "[TEXT]", "show or set the system message; - removes it", run_system},
    {"tools", "[FILE]", "list the tools, or take them from a JSON file; - removes them", run_tools},
    {"think", "[on|off]", "reason before answering", run_think},
    {"preset", "[NAME]", "show the sampling, or take the vendor's of that name", run_preset},
    {"save", "FILE", "keep the conversation, tools and settings in a file", run_save},
    {"load", "FILE", "go on with a saved conversation", run_load},
    {"drop", "", "forget the oldest turn", run_drop},
    {"clear", "", "forget all turns", run_clear},
    {"stats", "", "tokens and rates", run_stats},
    {"help", "", "this list", run_help},
    {"quit", "", "leave", run_quit},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static enum chat_next run_help(struct chat *chat, const char *argument)
{
    (void)chat, (void)argument;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char left[40];
        snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].arguments);
        chat_note("  %-16s %s", left, commands[i].help);
    }
    chat_note("A line that ends with a backslash goes on in the next; a block from \"\"\" to "
              "\"\"\" is one message; // begins a message with a slash.");
    return CHAT_GO_ON;
}

enum chat_next chat_run_command(struct chat *chat)
{
    char *line = (char *)chat->line.data + 1;
    size_t end = strlen(line);
    while (end > 0 && strchr(" \t\r", line[end - 1]))
        line[--end] = '\0';
    size_t length = strcspn(line, " \t");
    char *argument = line + length;
    argument += strspn(argument, " \t");
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, line, length) == 0)
            return commands[i].run(chat, argument);
    struct error error;
    error_set(&error, STATUS_INVALID,
              "unknown command '/%.*s': /help lists them, // begins a message with a slash",
              (int)(length < 40 ? length : 40), line);
    chat_problem(chat, error.message);
    return CHAT_GO_ON;
}
