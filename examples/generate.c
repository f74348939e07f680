/* One answer, streamed: generate MODEL PROMPT
 * Build: cc generate.c $(pkg-config --cflags --libs calla) */
#include <calla.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pieces of text as they come: the answer to stdout, the model's reasoning to stderr. */
static int on_event(void *context, const struct calla_event *event)
{
    (void)context;
    FILE *out = event->kind == CALLA_REASONING ? stderr : stdout;
    fwrite(event->text, 1, event->length, out);
    return fflush(out); /* anything but 0 stops the answer: nobody reads it any more */
}

/* The messages of one question, in OpenAI's JSON form. */
static char *question(const char *text)
{
    static const char begin[] = "[{\"role\": \"user\", \"content\": \"", end[] = "\"}]";
    char *json = malloc(sizeof begin + 6 * strlen(text) + sizeof end), *at = json;
    if (!json)
        return NULL;
    for (at += sprintf(at, "%s", begin); *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20)
            at += sprintf(at, "\\u%04x", (unsigned char)*text);
        else
            *at++ = *text;
    strcpy(at, end);
    return json;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT\n");
        return 2;
    }
    struct calla_error error = {CALLA_OK, ""};
    struct calla_open_options options = {.max_context = 4096};
    struct calla_model *model = NULL;
    struct calla_session *session = NULL;
    struct calla_result result;
    char *messages = question(argv[2]);
    int failed = !messages || calla_open(argv[1], &options, &model, &error) ||
                 calla_session_new(model, &session, &error);
    if (!failed) {
        struct calla_request request;
        calla_request_init(model, &request); /* the checkpoint's own sampling */
        request.messages = messages;
        request.thinking = CALLA_THINKING_OFF;
        request.temperature = 0; /* greedy: the same answer each time */
        failed = calla_generate(session, &request, on_event, NULL, &result, &error);
    }
    if (failed)
        fprintf(stderr, "generate: %s\n", error.message[0] ? error.message : "out of memory");
    else
        printf("\n(%d tokens in %.2f s)\n", (int)result.completion_tokens,
               result.completion_seconds);
    calla_session_free(session);
    calla_close(model);
    free(messages);
    return failed != 0;
}
