#include "server/openai_answer.h"

#include <stdio.h>

#include "server/openai_answer_parts.h"
#include "server/openai_print.h"

static uint64_t mix(uint64_t x) /* a bijection: splitmix64 */
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void openai_id(const char *prefix, uint64_t nonce, int choice, int call, char id[OPENAI_ID_SIZE])
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char random[25];
    uint64_t word = mix(nonce) ^ ((uint64_t)choice << 32 | (uint32_t)call);
    for (int i = 0; i < 24; i += 8) { /* 47 of 64 bits each time */
        word = mix(word);
        uint64_t rest = word;
        for (int k = i; k < i + 8; k++, rest /= 62)
            random[k] = letters[rest % 62];
    }
    random[24] = '\0';
    snprintf(id, OPENAI_ID_SIZE, "%s%s", prefix, random);
}

void openai_answer_init(struct openai_answer *answer, enum openai_kind kind, uint64_t nonce,
                        int64_t created, const char *model, const char *fingerprint)
{
    static const char *const objects[] = {"chat.completion", "chat.completion.chunk",
                                          "text_completion"};
    char id[OPENAI_ID_SIZE];
    openai_id(kind == OPENAI_TEXT ? "cmpl-" : "chatcmpl-", nonce, -1, -1, id);
    *answer = (struct openai_answer){.nonce = nonce};
    struct bytes *head = &answer->head;
    bytes_append_text(head, "{\"id\":");
    print_string(id, head);
    bytes_append_text(head, ",\"object\":");
    print_string(objects[kind], head);
    bytes_append_text(head, ",\"created\":");
    print_integer(created, head);
    bytes_append_text(head, ",\"model\":");
    print_string(model, head);
    bytes_append_text(head, ",\"system_fingerprint\":");
    print_string_or_null(fingerprint, head);
    if (kind == OPENAI_CHAT)
        bytes_append_text(head, ",\"service_tier\":null");
    bytes_append_text(head, ",\"choices\":[");
}

void openai_answer_clear(struct openai_answer *answer)
{
    bytes_clear(&answer->head);
}

void answer_begin(const struct openai_answer *answer, struct bytes *out)
{
    bytes_append(out, answer->head.data, answer->head.length);
    out->failed |= answer->head.failed;
}

void answer_choice(int index, struct bytes *out)
{
    bytes_append_text(out, "{\"index\":");
    print_integer(index, out);
}

void answer_finish_reason(const enum reply_finish *finish, struct bytes *out)
{
    static const char *const reasons[] = {[REPLY_FINISH_STOP] = "\"stop\"}",
                                          [REPLY_FINISH_LENGTH] = "\"length\"}",
                                          [REPLY_FINISH_TOOL_CALLS] = "\"tool_calls\"}"};
    bytes_append_text(out, ",\"finish_reason\":");
    bytes_append_text(out, finish ? reasons[*finish] : "null}");
}

static void print_usage(const struct openai_usage *usage, struct bytes *out)
{
    bytes_append_text(out, "{\"prompt_tokens\":");
    print_integer(usage->prompt_tokens, out);
    bytes_append_text(out, ",\"completion_tokens\":");
    print_integer(usage->completion_tokens, out);
    bytes_append_text(out, ",\"total_tokens\":");
    print_integer(usage->prompt_tokens + usage->completion_tokens, out);
    bytes_append_text(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    print_integer(usage->cached_tokens, out);
    bytes_append_text(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
    print_integer(usage->reasoning_tokens, out);
    bytes_append_text(out, "}}");
}

static void print_phase(const char *name, int64_t n, double ms, struct bytes *out)
{
    static const char *const suffixes[] = {"_n\":", "_ms\":", "_per_second\":"};
    const double values[] = {0, ms, ms > 0 ? 1e3 * (double)n / ms : 0};
    for (int i = 0; i < 3; i++) {
        bytes_append_text(out, i > 0 ? ",\"" : "\"");
        bytes_append_text(out, name);
        bytes_append_text(out, suffixes[i]);
        if (i == 0)
            print_integer(n, out);
        else
            print_real(values[i], 3, out);
    }
}

static void print_timings(const struct openai_timings *timings, struct bytes *out)
{
    bytes_append_text(out, ",\"timings\":{");
    print_phase("prompt", timings->prompt_n, timings->prompt_ms, out);
    bytes_append_byte(out, ',');
    print_phase("predicted", timings->predicted_n, timings->predicted_ms, out);
    bytes_append_text(out, ",\"cache_n\":");
    print_integer(timings->cache_n, out);
    bytes_append_byte(out, '}');
}

void answer_end(const struct openai_answer *answer, const struct openai_usage *usage,
                const struct openai_timings *timings, struct bytes *out)
{
    bytes_append_byte(out, ']');
    if (usage) {
        bytes_append_text(out, ",\"usage\":");
        print_usage(usage, out);
    } else if (answer->include_usage) {
        bytes_append_text(out, ",\"usage\":null");
    }
    if (timings)
        print_timings(timings, out);
    bytes_append_byte(out, '}');
}

void openai_chunk_usage(const struct openai_answer *answer, const struct openai_usage *usage,
                        const struct openai_timings *timings, struct bytes *out)
{
    answer_begin(answer, out);
    answer_end(answer, usage, timings, out);
}
