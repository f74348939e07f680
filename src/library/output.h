/* From generated ids to the caller's events: detokenizer, reply parser, stop strings, callback. */
#pragma once

#include "calla.h"
#include "library/model.h"
#include "text/reply.h"
#include "text/stop.h"

struct output {
    const struct model *model;
    calla_callback *callback;
    void *context;
    struct reply_parser *parser; /* NULL for a raw prompt: everything is content */
    struct detokenizer detokenizer;
    struct stop_matcher stop;
    struct bytes piece, content; /* scratch */
    int32_t tag_ids[REPLY_N_TAGS];
    enum reply_end end;
    bool in_reasoning; /* the last text or tag was read as reasoning */
    bool has_tools;
    bool in_call;    /* inside the tags of a tool call */
    bool stop_found; /* a stop string is complete */
    bool refused;    /* the callback wants no more */
    bool failed;     /* out of memory */
    int32_t reasoning_tokens;
};

struct output_options {
    bool raw;                /* no template: everything is content */
    bool thinking;           /* the prompt ends inside <think> */
    const json_t *tools;     /* borrowed; NULL: none, and tool tags are text */
    const char *const *stop; /* borrowed */
    int n_stop;
};

enum status output_init(struct output *output, const struct model *model,
                        const struct output_options *options, calla_callback *callback,
                        void *context, struct error *error);
void output_push(struct output *output, int32_t token);
/* Gives out what is held, unless `status` says that generation failed, and tells how it ended. */
enum status output_finish(struct output *output, enum status status, enum calla_finish *finish,
                          struct error *error);
void output_clear(struct output *output);
