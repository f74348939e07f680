/* Inside of the reply parser, for reply.c (text, events, driving) and reply_call.c (calls and their
 * values) alone.
 *
 * A state machine over bytes and tags. `held` keeps the input that is not settled yet: bytes before
 * `at` were read by the current state, which waits for what decides them; the rest is unread. A
 * reading that fails gives its first tag out as text and goes on behind it, by moving `at` back. No
 * reading goes over a second tag of its own kind, so a byte is read at most a few times. Nothing
 * here depends on where pushes begin and end, except for when events are given. */
#pragma once

#include "text/reply.h"
#include "text/reply_reader.h"
#include "text/reply_value.h"

/* Numbers are the rules of tests/golden/README.md part 4. */
enum state {
    REASONING,     /* 1, 4: inside <think>; held: white space that may be stripped */
    CONTENT,       /* 2, 5: held: white space that a call after it would drop */
    HEAD,          /* 3: behind <tool_call> or </function>, before the end of <function=NAME> */
    HEAD_NEXT,     /* 3: behind <function=NAME>, before the end of the tag that proves the head */
    VALUE,         /* 6: in a value; nothing held */
    VALUE_TAG,     /* 6a, b, d: from a `<` that may begin a tag which ends the value */
    VALUE_NEWLINE, /* 6d: behind a declared <parameter=KEY>, before its newline */
    VALUE_FOLLOW,  /* 6a, b, c: behind a closing tag, before the end of the tag that confirms it */
};

/* What is before the next visible text of the content. */
enum lead {
    LEAD_START, /* nothing yet: newlines are dropped, other white space counts once text comes */
    LEAD_CALL,  /* a call: white space is dropped */
    LEAD_TEXT,  /* text */
};

struct reply_parser {
    reply_sink *sink;
    void *context;
    const json_t *tools; /* NULL when there are none */
    enum state state;
    bool failed; /* out of memory */

    struct bytes held;
    size_t base; /* before it all is settled */
    size_t at;   /* the next byte to read */
    size_t mark; /* HEAD, HEAD_NEXT: where <tool_call> or the end of the function stands;
                    VALUE_FOLLOW: behind the closing tag */
    struct reader reader;

    bool part_given;      /* REASONING: this block has text */
    bool reasoning_given; /* any block had text */
    enum lead lead;
    bool visible; /* content has text */
    bool owed;    /* a call ended the reasoning: its </think> may still come */

    enum state origin;        /* HEAD, HEAD_NEXT: REASONING, CONTENT, or HEAD: behind a function of
                                 the same block */
    struct bytes function;    /* NAME */
    int call;                 /* calls begun */
    int calls_ended;          /* and ended */
    bool first_parameter;     /* of the call */
    const json_t *properties; /* of the call's function; NULL when unknown */
    json_t *given;            /* the declared KEYs that the call has */
    enum reader_tag closing;  /* VALUE_FOLLOW: the tag behind which it reads */
    struct reply_value value;

    enum reply_event_kind out_kind; /* of the bytes in out: events are joined within a push */
    struct bytes out;
};

/* reply.c */

/* Gives the joined event that waits. */
void reply_flush(struct reply_parser *parser);
void reply_send(struct reply_parser *parser, enum reply_event_kind kind, const struct bytes *data);
/* The buffer for an event's bytes. */
struct bytes *reply_out(struct reply_parser *parser, enum reply_event_kind kind);
/* Gives the held bytes up to `to` and, unless NULL, the letters of a tag behind them. There is
 * something visible among them, or they end the reasoning. Goes on reading at `to`. */
void reply_give_text(struct reply_parser *parser, size_t to, const char *tag);
/* The reasoning ends before `to`: gives what is held before it but the newlines at its end. */
void reply_close_reasoning(struct reply_parser *parser, size_t to);
void reply_begin_content(struct reply_parser *parser, enum lead lead);
/* All that was read is done with. */
void reply_settle(struct reply_parser *parser);

/* reply_call.c: the states from HEAD on */

/* <tool_call> in the state `origin`, or the end of a function (HEAD): reads a head. */
void reply_begin_head(struct reply_parser *parser, enum state origin);
/* Takes the byte at `at`, or changes the state so that a later turn will. */
void reply_take_in_call(struct reply_parser *parser, char c);
/* False: the state has changed, and what is held must be read before the tag is offered again. */
bool reply_take_tag_in_call(struct reply_parser *parser, enum reply_tag tag);
/* The head does not match: its tag is text, and so is what follows, in the state before it. */
void reply_fail_head(struct reply_parser *parser);
/* Rule 9 for an open value. */
void reply_finish_value(struct reply_parser *parser, enum reply_end end);
