/* `calla serve`: the OpenAI-compatible server. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/choices.h"
#include "cli/device.h"
#include "cli/input.h"
#include "server/serve.h"

struct serve {
    struct serve_options options;
    struct line_log lines;
    struct device_options device;
    struct option_list aliases, keys;
    const char *key_file, *log, *reasoning_field;
    struct bytes key_text;
    const char *key_list[OPTION_LIST_MAX * 2]; /* of --api-key and the file */
    int64_t port, parallel, context, cache, queue;
    double grace, chunk_seconds;
    bool cache_given;
};

/* ---- options --------------------------------------------------------------------------------- */

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0 || strcmp(host, "[::1]") == 0;
}

/* Adds the keys in a file, one a line. */
static int read_keys(struct serve *serve)
{
    struct error error;
    size_t n = serve->options.n_keys;
    if (input_read(serve->key_file, &serve->key_text, &error) != STATUS_OK)
        return command_failed(&error);
    if (!bytes_terminate(&serve->key_text))
        return command_failed(&(struct error){STATUS_NO_MEMORY, "out of memory for the keys"});
    char *rest = serve->key_text.data;
    for (char *key; (key = strtok_r(rest, "\r\n", &rest));) {
        if (n == sizeof serve->key_list / sizeof *serve->key_list)
            return options_usage(&command_serve, "--api-key-file %s: found more than %zu keys",
                                 serve->key_file, n);
        serve->key_list[n++] = key;
    }
    if (n == serve->options.n_keys)
        return options_usage(&command_serve, "--api-key-file %s: found no key, wanted one a line",
                             serve->key_file);
    serve->options.n_keys = n;
    return -1;
}

static int check_keys(struct serve *serve)
{
    for (int i = 0; i < serve->keys.n; i++) {
        if (serve->keys.values[i][0] == '\0')
            return options_usage(&command_serve, "--api-key: found an empty text");
        serve->key_list[serve->options.n_keys++] = serve->keys.values[i];
    }
    serve->options.keys = serve->key_list;
    return serve->key_file ? read_keys(serve) : -1;
}

static int check(struct serve *serve)
{
    struct service_options *service = &serve->options.service;
    if (strcmp(serve->log, "text") != 0 && strcmp(serve->log, "json") != 0)
        return options_usage(&command_serve, "--log: found '%s', wanted text or json", serve->log);
    if (strcmp(serve->reasoning_field, "reasoning_content") != 0 &&
        strcmp(serve->reasoning_field, "reasoning") != 0)
        return options_usage(&command_serve,
                             "--reasoning-field: found '%s', wanted reasoning_content or reasoning",
                             serve->reasoning_field);
    int code = device_check(&command_serve, &serve->device, "");
    if (code < 0)
        code = check_keys(serve);
    if (code >= 0)
        return code;
    serve->options.port = (int)serve->port;
    serve->options.json_log = strcmp(serve->log, "json") == 0;
    service->reasoning_twice = strcmp(serve->reasoning_field, "reasoning") == 0;
    service->aliases = serve->aliases.values;
    service->n_aliases = serve->aliases.n;
    service->threads = (int)serve->device.threads;
    service->cpu = serve->device.cpu;
    service->queue = (int)serve->queue;
    service->chunk_seconds = serve->chunk_seconds;
    service->wishes = (struct server_wishes){
        .context = (int32_t)serve->context,
        .parallel = (int)serve->parallel,
        .cache_bytes = serve->cache_given ? serve->cache : -1,
    };
    return -1;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* The signals that end the server, as a set. */
static sigset_t ending(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void print_line(void *context, const char *line)
{
    line_log_print(context, "%s", line);
}

static void print_address(struct serve *serve, const struct server *server)
{
    const char *host = serve->options.host;
    bool bare = strchr(host, ':') && host[0] != '[';
    line_log_print(&serve->lines, "listening on http://%s%s%s:%d", bare ? "[" : "", host,
                   bare ? "]" : "", server_port(server));
    if (!is_loopback(host) && serve->options.n_keys == 0)
        line_log_print(
            &serve->lines,
            "warning: anybody who reaches %s may use this server: --api-key asks for a key", host);
}

/* The model's way into memory, on a thread of its own. */
struct loading {
    struct serve *serve;
    struct server *server;
    pthread_t thread;
    struct error error;
    enum status status;
    atomic_bool done;
};

static void *load(void *context)
{
    struct loading *loading = context;
    double start = clock_seconds();
    loading->status = server_load(loading->server, &loading->error);
    atomic_store(&loading->done, true);
    if (loading->status == STATUS_OK)
        line_log_print(&loading->serve->lines, "ready after %.2f s", clock_seconds() - start);
    else
        kill(getpid(), SIGTERM); /* it ends */
    return NULL;
}

/* Answers until a signal comes. All threads but this one leave signals alone: one ends the loading
 * at once, then the server in order, and a second one at once. */
static int run_server(struct serve *serve, struct server *server)
{
    struct loading loading = {.serve = serve, .server = server};
    sigset_t set = ending();
    int number;
    print_address(serve, server);
    if (pthread_create(&loading.thread, NULL, load, &loading) != 0)
        return command_failed(
            &(struct error){STATUS_NO_MEMORY, "the thread that loads the model cannot be started"});
    sigwait(&set, &number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    if (!atomic_load(&loading.done))
        raise(number);
    pthread_join(loading.thread, NULL);
    if (loading.status != STATUS_OK)
        return command_failed(&loading.error);
    line_log_print(&serve->lines, "stopping");
    return EXIT_DONE;
}

static int open_and_run(struct serve *serve)
{
    struct error error;
    struct server *server;
    sigset_t set = ending();
    enum status status = backend_find(serve->device.backend, &serve->options.service.ops, &error);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* in the server's threads, too */
    if (status == STATUS_OK)
        status = server_open(&serve->options, &server, &error);
    if (status != STATUS_OK)
        return command_failed(&error);
    int code = run_server(serve, server);
    server_close(server, code == EXIT_DONE ? serve->grace : 0);
    return code;
}

static int run_serve(int argc, char **argv)
{
    struct serve serve = {
        .options = {.host = "127.0.0.1",
                    .service = {.log = print_line, .disk_bytes = (int64_t)32 << 30}},
        .port = 8080,
        .queue = 64,
        .grace = 10,
        .chunk_seconds = 0.25,
        .log = "text",
        .reasoning_field = "reasoning_content",
    };
    struct service_options *service = &serve.options.service;
    const char *positionals[1];
    const struct option options[] = {
        {"host", OPTION_TEXT, &serve.options.host, 0, 0, NULL, "ADDRESS",
         "where to listen (127.0.0.1)"},
        {"port", OPTION_INTEGER, &serve.port, 0, 65535, NULL, "N", "0: any free one (8080)"},
        {"parallel", OPTION_INTEGER, &serve.parallel, 1, SERVER_PARALLEL_MAX, NULL, "N",
         "requests that run at once (4, fewer where memory is short)"},
        {"max-context", OPTION_SIZE, &serve.context, 1, INT32_MAX, NULL, "N",
         "tokens of prompt and answer together (what fits into memory)"},
        {"cache-ram", OPTION_SIZE, &serve.cache, 0, 9e18, &serve.cache_given, "BYTES",
         "to reuse prompts that were read; 0: none (a part of what is free)"},
        {"cache-disk", OPTION_TEXT, &service->disk_folder, 0, 0, NULL, "DIR",
         "keep prompts that were read on disk, for the next start; wants the same --max-context"},
        {"cache-disk-bytes", OPTION_SIZE, &service->disk_bytes, 1, 9e18, NULL, "BYTES",
         "of the files in it (32G)"},
        {"queue", OPTION_INTEGER, &serve.queue, 0, 100000, NULL, "N",
         "requests that may wait; more get 429 (64)"},
        {"api-key", OPTION_LIST, &serve.keys, 0, 0, NULL, "KEY",
         "answer only those who send it; may be repeated"},
        {"api-key-file", OPTION_TEXT, &serve.key_file, 0, 0, NULL, "FILE", "such keys, one a line"},
        {"cors", OPTION_TEXT, &serve.options.cors, 0, 0, NULL, "ORIGIN",
         "let pages of this origin call the server; *: of any"},
        {"alias", OPTION_LIST, &serve.aliases, 0, 0, NULL, "NAME",
         "another name of the model (the folder's); may be repeated"},
        {"preset", OPTION_PRESET, &service->preset, 0, 0, NULL, "NAME",
         "sampling and thinking where a request says nothing (the checkpoint's)"},
        {"reasoning-field", OPTION_TEXT, &serve.reasoning_field, 0, 0, NULL, "NAME",
         "reasoning: answers have it beside reasoning_content"},
        {"log", OPTION_TEXT, &serve.log, 0, 0, NULL, "FORM",
         "text or json: a line on stderr for each request (text)"},
        {"grace", OPTION_REAL, &serve.grace, 0, 86400, NULL, "SECONDS",
         "for running requests to end after SIGTERM (10)"},
        {"chunk-seconds", OPTION_REAL, &serve.chunk_seconds, 0.01, 60, NULL, "SECONDS",
         "that one prompt may hold up the other requests at a time (0.25)"},
        DEVICE_OPTIONS(serve.device),
        {"mlock", OPTION_FLAG, &service->lock, 0, 0, NULL, NULL,
         "keep the weights locked in memory"},
        {"warm-up", OPTION_FLAG, &service->warm_up, 0, 0, NULL, NULL,
         "read all weights before the first request"},
        {0},
    };
    int code = options_parse(&command_serve, argc, argv, options, positionals, 1, 1);
    if (code < 0)
        code = check(&serve);
    if (code < 0) {
        service->path = positionals[0];
        service->log_context = serve.options.log = &serve.lines;
        line_log_init(&serve.lines, STDERR_FILENO);
        code = open_and_run(&serve);
        line_log_clear(&serve.lines);
    }
    bytes_clear(&serve.key_text);
    return code;
}

const struct command command_serve = {
    .name = "serve",
    .arguments = "MODEL",
    .summary = "an OpenAI-compatible server",
    .run = run_serve,
    .details =
        "POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize, "
        "/apply-template;\n"
        "GET /v1/models, /health, /metrics. docs/api.md lists the fields. SIGTERM and Ctrl-C "
        "end it in order.\n",
};
