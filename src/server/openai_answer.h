/* Answers of the OpenAI-compatible API: structs to JSON, appended to a buffer. An answer's constant
 * parts are made once (struct openai_answer); a chunk of a stream then costs a few copies. Texts
 * are UTF-8 and never end inside a character. Memory failure shows in out->failed. Reading an
 * answer is safe from several threads.
 *
 * The order of a stream's chunks is the caller's (API 5.2): role, reasoning, content, calls with
 * their arguments, finish, for each choice; then usage when it was asked for, then `[DONE]`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "server/openai_logprobs.h"
#include "server/openai_problem.h"
#include "text/reply_collect.h"
#include "text/tokenizer.h"

/* Ids: a prefix and 24 letters and digits, made of a nonce that the caller gives to one request
 * only; the same nonce and numbers give the same id. */
#define OPENAI_ID_SIZE 40
void openai_id(const char *prefix, uint64_t nonce, int choice, int call, char id[OPENAI_ID_SIZE]);

enum openai_kind { OPENAI_CHAT, OPENAI_CHAT_CHUNK, OPENAI_TEXT };

struct openai_answer {
    uint64_t nonce;
    bool include_usage;  /* chunks carry "usage": null */
    bool both_reasoning; /* reasoning_content is repeated as reasoning */
    struct bytes head;   /* `{"id": … ,"choices":[` */
};

/* Sets the answer's id ("chatcmpl-…", "cmpl-…"), kind and model; created: Unix seconds. The flags
 * are false; the caller sets them afterwards. answer->head may have failed; out will then, too. */
void openai_answer_init(struct openai_answer *answer, enum openai_kind kind, uint64_t nonce,
                        int64_t created, const char *model, const char *fingerprint);
void openai_answer_clear(struct openai_answer *answer);

struct openai_usage {
    int64_t prompt_tokens, completion_tokens; /* completion: every one that was generated */
    int64_t cached_tokens;                    /* of the prompt, not read anew */
    int64_t reasoning_tokens;                 /* of the completion */
};

struct openai_timings {
    int64_t prompt_n, predicted_n, cache_n; /* tokens: read, generated, taken from the cache */
    double prompt_ms, predicted_ms;
};

/* ---- chat ------------------------------------------------------------------------------------ */

struct openai_chat_choice {
    const struct reply_result *reply;
    enum reply_finish finish;
    const struct bytes *logprobs; /* entries (openai_logprobs.h); NULL: none were asked for */
};

/* The whole answer; timings may be NULL, here and below. */
void openai_chat_print(const struct openai_answer *answer, const struct openai_chat_choice *choices,
                       int n, const struct openai_usage *usage,
                       const struct openai_timings *timings, struct bytes *out);

/* Chunks: each appends one JSON object on one line. */
void openai_chunk_role(const struct openai_answer *answer, int choice, struct bytes *out);
void openai_chunk_reasoning(const struct openai_answer *answer, int choice, const char *text,
                            size_t length, struct bytes *out);
/* logprobs: entries, or NULL. */
void openai_chunk_content(const struct openai_answer *answer, int choice, const char *text,
                          size_t length, const struct bytes *logprobs, struct bytes *out);
void openai_chunk_call(const struct openai_answer *answer, int choice, int call, const char *name,
                       size_t length, struct bytes *out);
void openai_chunk_arguments(const struct openai_answer *answer, int choice, int call,
                            const char *piece, size_t length, struct bytes *out);
/* The chunk of an event of the reply parser; false for REPLY_CALL_END, which has none. */
bool openai_chunk_event(const struct openai_answer *answer, int choice,
                        const struct reply_event *event, struct bytes *out);
void openai_chunk_finish(const struct openai_answer *answer, int choice, enum reply_finish finish,
                         const struct openai_timings *timings, struct bytes *out);
/* The chunk without choices, also for a stream of text completions. */
void openai_chunk_usage(const struct openai_answer *answer, const struct openai_usage *usage,
                        const struct openai_timings *timings, struct bytes *out);

/* ---- text completions ------------------------------------------------------------------------ */

struct openai_text_choice {
    const char *text;
    size_t length;
    enum reply_finish finish;                    /* stop or length */
    const struct openai_text_logprobs *logprobs; /* NULL: null */
};

void openai_text_print(const struct openai_answer *answer, const struct openai_text_choice *choices,
                       int n, const struct openai_usage *usage,
                       const struct openai_timings *timings, struct bytes *out);
void openai_text_chunk(const struct openai_answer *answer, int choice, const char *text,
                       size_t length, const struct openai_text_logprobs *logprobs,
                       struct bytes *out);
void openai_text_chunk_finish(const struct openai_answer *answer, int choice,
                              enum reply_finish finish, const struct openai_timings *timings,
                              struct bytes *out);

/* ---- models, tokens -------------------------------------------------------------------------- */

struct openai_model {
    const char *id;
    int64_t created;       /* Unix seconds */
    int64_t max_model_len; /* tokens; also given as context_length */
};

void openai_model_print(const struct openai_model *model, struct bytes *out);
void openai_models_print(const struct openai_model *models, int n, struct bytes *out);

/* {"count", "max_model_len", "tokens", "token_strs"}; `tokenizer` makes token_strs, NULL: null. */
void openai_tokens_print(const struct token_list *ids, int64_t max_model_len,
                         const struct tokenizer *tokenizer, struct bytes *out);
/* {"prompt": …}, of /detokenize and /apply-template. */
void openai_prompt_print(const char *text, size_t length, struct bytes *out);
