/* A tool call and back: the model asks for a function, this program runs it, the model answers with
 * what came out: tools MODEL
 * Build: cc tools.c $(pkg-config --cflags --libs calla) */
#include <calla.h>
#include <stdio.h>
#include <string.h>

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\","
    "  \"description\": \"Get the current weather in a city\","
    "  \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}},"
    "                 \"required\": [\"city\"]}}}]";
static const char question[] =
    "{\"role\": \"user\", \"content\": \"What is the weather in Rome?\"}";

/* The first call of an answer. */
struct call {
    char name[64], arguments[1024]; /* arguments: a JSON object */
    int complete;
};

static void append(char *to, size_t size, const struct calla_event *event)
{
    size_t used = strlen(to), n = event->length < size - used ? event->length : size - used - 1;
    memcpy(to + used, event->text, n);
    to[used + n] = '\0';
}

static int on_event(void *context, const struct calla_event *event)
{
    struct call *call = context;
    if (event->kind == CALLA_CONTENT)
        fwrite(event->text, 1, event->length, stdout);
    else if (event->kind == CALLA_CALL_BEGIN && event->call == 0)
        append(call->name, sizeof call->name, event);
    else if (event->kind == CALLA_ARGUMENTS && event->call == 0)
        append(call->arguments, sizeof call->arguments, event);
    else if (event->kind == CALLA_CALL_END && event->call == 0)
        call->complete = 1;
    return 0;
}

/* A real program would parse the arguments and look outside. */
static const char *get_weather(const char *arguments)
{
    return strstr(arguments, "Rome")
               ? "{\\\"temperature_c\\\": 28, \\\"condition\\\": \\\"sunny\\\"}"
               : "{\\\"error\\\": \\\"no such city\\\"}";
}

static int converse(struct calla_model *model, struct calla_session *session,
                    struct calla_error *error)
{
    char messages[4096];
    struct call call = {"", "", 0};
    struct calla_request request;
    calla_request_init(model, &request);
    request.messages = messages;
    request.tools = tools;
    request.thinking = CALLA_THINKING_OFF;
    request.temperature = 0;
    snprintf(messages, sizeof messages, "[%s]", question);
    if (calla_generate(session, &request, on_event, &call, NULL, error))
        return 1;
    if (!call.complete)
        return 0; /* it answered without the tool, and the answer is printed */
    printf("call: %s %s\n", call.name, call.arguments);
    snprintf(messages, sizeof messages,
             "[%s, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\","
             " \"type\": \"function\", \"function\": {\"name\": \"%s\", \"arguments\": %s}}]},"
             " {\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"%s\"}]",
             question, call.name, call.arguments, get_weather(call.arguments));
    return calla_generate(session, &request, on_event, &call, NULL, error) != CALLA_OK;
}

int main(int argc, char **argv)
{
    struct calla_error error;
    struct calla_open_options options = {.max_context = 4096};
    struct calla_model *model = NULL;
    struct calla_session *session = NULL;
    int failed = calla_open(argc > 1 ? argv[1] : "models/tiny", &options, &model, &error) ||
                 calla_session_new(model, &session, &error) || converse(model, session, &error);
    if (failed)
        fprintf(stderr, "tools: %s\n", error.message);
    else
        printf("\n");
    calla_session_free(session);
    calla_close(model);
    return failed;
}
