/* The server on a backend that answers with given texts, for tests with answers that no small model
 * would write: replay_server MODEL. Reads commands from stdin, one JSON object a line, and answers
 * each with a line on stdout, {"tokens": N} or {"error": "…"}; no request may run then.
 *
 *   text     what each answer is from now on; tags in it, such as </think>, are tokens
 *   bytes    true: each byte of other text is a token of its own
 *   endless  true: its last token is repeated, else <|im_end|> follows
 *   fail_at  the decode step, from 1, that the device fails in
 *   hold_at  the decode step that waits for the command {"go": true}
 *
 * SIGTERM ends it as it ends `calla serve`; so does the end of stdin. */
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/serve.h"
#include "support/replay.h"

static struct tokenizer *tokenizer;
static struct token_list answer;
static int32_t byte_ids[256];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static int hold_at;

static void on_step(int step)
{
    pthread_mutex_lock(&mutex);
    while (step == hold_at)
        pthread_cond_wait(&released, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void set_hold(int step)
{
    pthread_mutex_lock(&mutex);
    hold_at = step;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&mutex);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void find_byte_ids(void)
{
    for (int32_t id = tokenizer_size(tokenizer) - 1; id >= 0; id--) {
        size_t length;
        const char *data = tokenizer_bytes(tokenizer, id, &length);
        if (length == 1)
            byte_ids[(unsigned char)data[0]] = id;
    }
}

/* Puts the bytes of a token in its place, unless it is a tag. */
static void append_bytes(struct token_list *out, int32_t id)
{
    size_t length;
    const char *data = tokenizer_bytes(tokenizer, id, &length);
    char *text = strndup(data, length);
    if (!text || tokenizer_added_id(tokenizer, text) == id)
        token_list_append(out, id);
    else
        for (size_t i = 0; i < length; i++)
            token_list_append(out, byte_ids[(unsigned char)data[i]]);
    free(text);
}

static enum status encode(const json_t *command, struct error *error)
{
    struct token_list ids = {0};
    const json_t *text = json_object_get(command, "text");
    struct text_span span = {json_string_value(text), json_string_length(text), true};
    enum status status =
        span.length > 0 ? tokenizer_encode(tokenizer, &span, 1, &ids, error) : STATUS_OK;
    token_list_clear(&answer);
    for (size_t i = 0; i < ids.length; i++)
        if (json_is_true(json_object_get(command, "bytes")))
            append_bytes(&answer, ids.data[i]);
        else
            token_list_append(&answer, ids.data[i]);
    token_list_clear(&ids);
    return status;
}

static void obey(const json_t *command)
{
    struct error error;
    if (json_is_true(json_object_get(command, "go"))) {
        set_hold(0);
    } else if (encode(command, &error) != STATUS_OK) {
        printf("{\"error\": \"%s\"}\n", error.message);
        fflush(stdout);
        return;
    } else {
        bool endless = json_is_true(json_object_get(command, "endless")) && answer.length > 0;
        replay.ids = answer.data;
        replay.n = (int)answer.length;
        replay.end =
            endless ? answer.data[answer.length - 1] : tokenizer_added_id(tokenizer, "<|im_end|>");
        replay.fail_at = (int)json_integer_value(json_object_get(command, "fail_at"));
        set_hold((int)json_integer_value(json_object_get(command, "hold_at")));
    }
    printf("{\"tokens\": %d}\n", replay.n);
    fflush(stdout);
}

static void *read_commands(void *process)
{
    static char *line; /* stays reachable when the thread is cancelled */
    static size_t size;
    ssize_t length;
    while ((length = getline(&line, &size, stdin)) > 0) {
        json_t *command = json_loadb(line, (size_t)length, JSON_ALLOW_NUL, NULL);
        obey(command);
        json_decref(command);
    }
    kill(*(pid_t *)process, SIGTERM);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void print_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static int run(const char *model, sigset_t *set)
{
    static struct line_log lines;
    line_log_init(&lines, STDERR_FILENO);
    const struct serve_options options = {
        .service = {.path = model,
                    .ops = &backend_replay,
                    .wishes = {.context = 4096, .parallel = 4, .cache_bytes = 16 << 20},
                    .queue = 16,
                    .chunk_seconds = 0.25,
                    .log = print_line},
        .host = "127.0.0.1",
        .log = &lines,
    };
    struct error error;
    struct server *server;
    pthread_t reader;
    pid_t self = getpid();
    int number;
    if (tokenizer_open_model(model, &tokenizer, &error) != STATUS_OK ||
        server_open(&options, &server, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    find_byte_ids();
    replay.end = tokenizer_added_id(tokenizer, "<|im_end|>");
    fprintf(stderr, "listening on http://127.0.0.1:%d\n", server_port(server));
    bool done = server_load(server, &error) == STATUS_OK &&
                pthread_create(&reader, NULL, read_commands, &self) == 0;
    if (done) {
        fprintf(stderr, "ready after no time\n");
        sigwait(set, &number);
        set_hold(0);
        pthread_cancel(reader); /* it sits in getline */
        pthread_join(reader, NULL);
    }
    server_close(server, 5);
    token_list_clear(&answer);
    tokenizer_close(tokenizer);
    return !done;
}

int main(int argc, char **argv)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* in all threads */
    if (argc != 2) {
        fprintf(stderr, "usage: replay_server MODEL\n");
        return 2;
    }
    replay.max_chunk = 512;
    replay.on_step = on_step;
    return run(argv[1], &set);
}
