/* From generated ids to the answer's parts: detokenizer, reply parser, stop strings. */
#pragma once

#include "library/model.h"
#include "text/reply.h"
#include "text/stop.h"

/* False: no more is wanted. Text events are never empty; the data is valid during the call. */
typedef bool output_sink(void *context, const struct reply_event *event);

struct output_options {
    bool raw;                /* no template: everything is content */
    bool thinking;           /* the prompt ends inside <think> */
    bool one_call;           /* the answer ends after its first tool call */
    const json_t *tools;     /* borrowed; NULL: none, and tool tags are text */
    const char *const *stop; /* borrowed */
    int n_stop;
};

struct output {
    const struct model *model;
    struct output_options options;
    output_sink *sink;
    void *context;
    struct reply_parser *parser; /* NULL for a raw prompt */
    struct detokenizer detokenizer;
    struct stop_matcher stop;
    struct bytes piece, content; /* scratch */
    int32_t tag_ids[REPLY_N_TAGS];
    enum reply_end end; /* how the model ended; set by the caller */
    bool in_reasoning;  /* the last text or tag was read as reasoning */
    bool in_call;       /* the last tag opened a tool call */
    bool complete;      /* a stop string or the one call is complete: nothing more comes */
    bool refused;       /* the sink wants no more */
    bool failed;        /* out of memory */
    int n_calls;        /* that are complete and went to the sink */
    int32_t reasoning_tokens;
};

enum status output_init(struct output *output, const struct model *model,
                        const struct output_options *options, output_sink *sink, void *context,
                        struct error *error);
/* Any id but one that ended the answer. */
void output_push(struct output *output, int32_t token);
/* Gives out what is held, and tells how the answer ended; `cut`: it did not come to its own end. */
enum status output_finish(struct output *output, bool cut, enum reply_finish *finish,
                          struct error *error);
void output_clear(struct output *output);
