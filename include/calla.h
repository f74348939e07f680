/* calla.h - run Qwen3.6-35B-A3B from a 4-bit MLX checkpoint folder.
 *
 *   struct calla_error error;
 *   struct calla_model *model;
 *   struct calla_session *session;
 *   struct calla_result result;
 *   if (calla_open("models/tiny", NULL, &model, &error) ||
 *       calla_session_new(model, &session, &error))
 *       ... error.message says what, which file or field, what was found and what was wanted
 *   struct calla_request request;
 *   calla_request_init(model, &request);
 *   request.messages = "[{\"role\": \"user\", \"content\": \"Define hot.\"}]";
 *   calla_generate(session, &request, on_event, context, &result, &error);
 *   calla_session_free(session);
 *   calla_close(model);
 *
 * Build: `make install`, then cc program.c $(pkg-config --cflags --libs calla); with
 * `pkg-config --static` and cc -static no shared library is needed. Whole programs: examples/.
 *
 * Threads: one thread at a time uses a model and its session; calla_cancel may be called from any
 * thread or signal handler. The library never exits the process, writes to no descriptor and
 * installs no signal handler. All texts are UTF-8. */
#ifndef CALLA_H
#define CALLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__ /* what is declared here is all that the libraries export */
#pragma GCC visibility push(default)
#endif

enum calla_status {
    CALLA_OK = 0,
    CALLA_INVALID,   /* an argument, a file or a field is wrong */
    CALLA_IO,        /* the system refused to open, read or map */
    CALLA_NO_MEMORY, /* an allocation failed, the memory plan does not fit this machine, or the
                        memory that is planned is in use */
    CALLA_CONTEXT,   /* the prompt is longer than the context */
    CALLA_CANCELLED, /* calla_cancel was called */
    CALLA_DEVICE,    /* the backend failed */
};

struct calla_error {
    enum calla_status status;
    char message[600]; /* one line */
};

struct calla_model;   /* an opened checkpoint; immutable but for its backend's memory */
struct calla_session; /* one conversation's place in memory: KV cache and states */

const char *calla_version(void);

/* ---- opening --------------------------------------------------------------------------------- */

struct calla_open_options {
    const char *backend; /* "cpu", "ref"; NULL: the best one compiled in */
    int32_t threads;     /* of the cpu backend; 0: one for each core. ref: 0 */
    const char *cpu; /* "avx2", …: instructions of the cpu backend; NULL: the best. ref: NULL */
    int32_t max_context; /* tokens a session can hold; 0: what fits, up to the model's limit */
    int lock;            /* 1: the weights are read and stay in memory, or CALLA_NO_MEMORY */
    int warm_up;         /* 1: the weights are read before the first prompt is */
    /* Bytes that a session may keep so that a prompt which begins like the one before is not read
     * anew; more than the machine has free is CALLA_NO_MEMORY. 0: 1 GiB, less on a machine that
     * has little; -1: nothing is kept. */
    int64_t cache_bytes;
    /* Gets lines worth reading, during calla_open: the memory plan before anything is allocated,
     * and a warning when the folder's chat template is not the built-in one. May be NULL. */
    void (*log)(void *context, const char *line);
    void *log_context;
};

/* Opens a checkpoint folder (config.json, tokenizer.json, *.safetensors). The weights stay in the
 * mapped files. options may be NULL. On failure *model is NULL. */
enum calla_status calla_open(const char *path, const struct calla_open_options *options,
                             struct calla_model **model, struct calla_error *error);
/* Frees the model; its session must be freed before. NULL is allowed. */
void calla_close(struct calla_model *model);
/* Tokens of prompt and answer together that fit into a session. */
int32_t calla_context(const struct calla_model *model);

/* A model has one session at a time (its memory plan is made for one); CALLA_INVALID for a second.
 * On failure *session is NULL. */
enum calla_status calla_session_new(struct calla_model *model, struct calla_session **session,
                                    struct calla_error *error);
void calla_session_free(struct calla_session *session); /* NULL is allowed */

/* ---- generating ------------------------------------------------------------------------------ */

enum calla_thinking {
    CALLA_THINKING_DEFAULT = 0, /* as the template does: on */
    CALLA_THINKING_OFF,
    CALLA_THINKING_ON,
};

struct calla_request {
    /* Either messages, a JSON array in OpenAI's form, or a raw prompt without template in which
     * added tokens (<|im_start|> …) are recognised. Text inside messages never becomes a control
     * token. */
    const char *messages;
    const char *prompt;
    size_t prompt_length; /* bytes of prompt */
    const char *tools;    /* a JSON array in OpenAI's form, or NULL */
    enum calla_thinking thinking;
    int preserve_thinking; /* keep the reasoning of earlier turns in the prompt */

    int32_t max_tokens;        /* 0: to the end of the context */
    double temperature;        /* 0: greedy */
    int32_t top_k;             /* 0: off */
    double top_p;              /* (0, 1]; 1: off */
    double min_p;              /* [0, 1]; 0: off */
    double presence_penalty;   /* over generated tokens */
    double frequency_penalty;  /* over generated tokens */
    double repetition_penalty; /* over prompt and generated tokens; 1: off */
    uint64_t seed;             /* the same seed and request give the same text */
    const char *const *stop;   /* strings that end the answer; they are looked for in the content */
    int n_stop;                /* (not in reasoning or tool calls) and never shown */

    /* Called with the callback's context while the prompt is read: first with 0, at last with
     * total, the tokens that are not in the session yet. May be NULL. */
    void (*progress)(void *context, int32_t read, int32_t total);
};

/* Fills the request with the checkpoint's own defaults (generation_config.json). */
void calla_request_init(const struct calla_model *model, struct calla_request *request);
/* Overrides the sampling and thinking fields by the vendor's advice for a mode: "thinking",
 * "coding", "chat" or "reasoning". CALLA_INVALID for any other name. */
enum calla_status calla_request_preset(struct calla_request *request, const char *name,
                                       struct calla_error *error);
/* These names: the i-th, or NULL after the last one. */
const char *calla_preset_name(int i);

enum calla_event_kind {
    CALLA_REASONING,  /* text of the reasoning */
    CALLA_CONTENT,    /* text of the answer */
    CALLA_CALL_BEGIN, /* a tool call begins; text is the function's name */
    CALLA_ARGUMENTS,  /* a piece of the call's arguments, a JSON object when joined */
    CALLA_CALL_END,   /* the call is complete; a call without this event was cut off */
};

struct calla_event {
    enum calla_event_kind kind;
    const char *text; /* whole characters; not NUL-terminated; valid during the callback */
    size_t length;
    int call; /* index of the tool call, -1 for text */
};

/* Called on the generating thread. A value other than 0 stops the generation as calla_cancel does.
 */
typedef int calla_callback(void *context, const struct calla_event *event);

enum calla_finish {
    CALLA_FINISH_STOP,       /* the model ended, or a stop string was found */
    CALLA_FINISH_LENGTH,     /* max_tokens or the end of the context */
    CALLA_FINISH_TOOL_CALLS, /* the model ended and waits for tool results */
    CALLA_FINISH_CANCELLED,
};

struct calla_result {
    enum calla_finish finish;
    int32_t prompt_tokens, completion_tokens; /* completion: all generated, the stop token too */
    int32_t cached_tokens;    /* of the prompt, in the session from before: they were not read */
    int32_t reasoning_tokens; /* of the completion, read as reasoning */
    int64_t cache_bytes;      /* kept for the next prompt, at most those of the model's options */
    double prompt_seconds, completion_seconds;
    const int32_t *prompt_ids;     /* [prompt_tokens], owned by the session */
    const int32_t *completion_ids; /* [completion_tokens]; both until its next use */
};

/* The number of tokens of the request's prompt, after all checks that calla_generate makes on the
 * request before it reads; the length of the context is not looked at. */
enum calla_status calla_count_tokens(const struct calla_model *model,
                                     const struct calla_request *request, int32_t *tokens,
                                     struct calla_error *error);

/* Reads the request's prompt into the session and generates. What the session read before is used
 * again as far as the new prompt's tokens begin with it (all but the last answer and the new
 * message, when a conversation goes on); the answer is the one that an empty session gives, but for
 * the rounding of backends that depends on how a prompt is cut ("ref" has none). Blocks; events
 * come in order. callback may be NULL. A cancelled generation returns CALLA_CANCELLED with the
 * result filled; the session stays usable, after any error. */
enum calla_status calla_generate(struct calla_session *session, const struct calla_request *request,
                                 calla_callback *callback, void *context,
                                 struct calla_result *result, struct calla_error *error);
/* Ends the generation that is running in this session, within one step; called while none is
 * running it ends the next one at its start. */
void calla_cancel(struct calla_session *session);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
