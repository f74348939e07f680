/* Answers to text completions, whole and in chunks. */
#include "base/json.h"
#include "server/openai_answer_parts.h"

static void print_choice(int index, const char *text, size_t length,
                         const struct openai_text_logprobs *logprobs,
                         const enum reply_finish *finish, struct bytes *out)
{
    answer_choice(index, out);
    bytes_append_text(out, ",\"text\":");
    json_print_string(text, length, out);
    bytes_append_text(out, ",\"logprobs\":");
    if (logprobs)
        openai_text_logprobs_print(logprobs, out);
    else
        bytes_append_text(out, "null");
    answer_finish_reason(finish, out);
}

void openai_text_print(const struct openai_answer *answer, const struct openai_text_choice *choices,
                       int n, const struct openai_usage *usage,
                       const struct openai_timings *timings, struct bytes *out)
{
    answer_begin(answer, out);
    for (int i = 0; i < n; i++) {
        if (i > 0)
            bytes_append_byte(out, ',');
        print_choice(i, choices[i].text, choices[i].length, choices[i].logprobs, &choices[i].finish,
                     out);
    }
    answer_end(answer, usage, timings, out);
}

void openai_text_chunk(const struct openai_answer *answer, int choice, const char *text,
                       size_t length, const struct openai_text_logprobs *logprobs,
                       struct bytes *out)
{
    answer_begin(answer, out);
    print_choice(choice, text, length, logprobs, NULL, out);
    answer_end(answer, NULL, NULL, out);
}

void openai_text_chunk_finish(const struct openai_answer *answer, int choice,
                              enum reply_finish finish, const struct openai_timings *timings,
                              struct bytes *out)
{
    answer_begin(answer, out);
    print_choice(choice, "", 0, NULL, &finish, out);
    answer_end(answer, NULL, timings, out);
}
