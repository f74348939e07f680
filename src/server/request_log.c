#include "server/request_log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "server/openai_print.h"

/* Bytes of what a client may make as long as it likes: a line has to fit into PIPE_BUF. */
#define METHOD_SHOWN 32
#define PATH_SHOWN 1000

static _Thread_local struct {
    bool noted;
    struct request_facts facts;
    char problem[300];
} noted;

void request_log_note(const struct request_facts *facts)
{
    noted.noted = true;
    noted.facts = *facts;
    snprintf(noted.problem, sizeof noted.problem, "%s", facts->problem ? facts->problem : "");
}

/* The text's beginning, whole characters of it, in `out` of limit + 1 bytes. */
static const char *shorten(const char *text, size_t limit, char *out)
{
    snprintf(out, limit + 1, "%.*s", utf8_shown(text, strlen(text), limit), text);
    return out;
}

static double speed(const struct request_facts *facts)
{
    return facts->generated > 1 && facts->decode_seconds > 0
               ? (double)(facts->generated - 1) / facts->decode_seconds
               : 0;
}

static void print_time(char *out, size_t size)
{
    time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static void print_text(const struct http_record *record, const char *when, struct bytes *out)
{
    const struct request_facts *facts = &noted.facts;
    bytes_format(out, "%s %s %s %s %u", when, record->id, record->method, record->path,
                 record->status);
    if (noted.noted)
        bytes_format(out, " prompt %lld cached %lld generated %lld %.1f tok/s finish %s",
                     (long long)facts->prompt, (long long)facts->cached,
                     (long long)facts->generated, speed(facts), facts->finish);
    bytes_format(out, " %.3f s%s%s", record->seconds, record->client_gone ? " client gone" : "",
                 record->timed_out ? " timed out" : "");
    if (noted.noted && noted.problem[0])
        bytes_format(out, " (%s)", noted.problem);
    bytes_append_byte(out, '\n');
}

static void print_member(const char *name, const char *value, struct bytes *out)
{
    bytes_format(out, ",\"%s\":", name);
    print_string(value, out);
}

static void print_json(const struct http_record *record, const char *when, struct bytes *out)
{
    const struct request_facts *facts = &noted.facts;
    bytes_format(out, "{\"time\":\"%s\"", when);
    print_member("id", record->id, out);
    print_member("peer", record->peer, out);
    print_member("method", record->method, out);
    print_member("path", record->path, out);
    bytes_format(out,
                 ",\"status\":%u,\"bytes\":%llu,\"seconds\":%.6f,\"client_gone\":%s,"
                 "\"timed_out\":%s",
                 record->status, (unsigned long long)record->bytes, record->seconds,
                 record->client_gone ? "true" : "false", record->timed_out ? "true" : "false");
    if (noted.noted) {
        bytes_format(out,
                     ",\"prompt_tokens\":%lld,\"cached_tokens\":%lld,\"generated_tokens\":%lld,"
                     "\"tokens_per_second\":%.3f",
                     (long long)facts->prompt, (long long)facts->cached,
                     (long long)facts->generated, speed(facts));
        print_member("finish", facts->finish, out);
        if (noted.problem[0])
            print_member("problem", noted.problem, out);
    }
    bytes_append_text(out, "}\n");
}

void request_log_print(const struct http_record *record, bool json, struct bytes *out)
{
    char when[32];
    char method[METHOD_SHOWN + 1], path[PATH_SHOWN + 1];
    struct http_record shown = *record;
    print_time(when, sizeof when);
    shown.method = shorten(record->method, METHOD_SHOWN, method);
    shown.path = shorten(record->path, PATH_SHOWN, path);
    if (json)
        print_json(&shown, when, out);
    else
        print_text(&shown, when, out);
    noted.noted = false;
}
