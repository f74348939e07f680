/* Reads one tag of a tool call that is spelled in text, `<function=NAME>` and its like, byte by
 * byte: part of the reply parser (rule 3 of tests/golden/README.md part 4). The parser says which
 * tags may come and keeps the bytes, so that it can read them again as text when none matches. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"

enum reader_tag {
    READER_FUNCTION,        /* <function=NAME> */
    READER_PARAMETER,       /* <parameter=KEY> */
    READER_PARAMETER_CLOSE, /* </parameter> */
    READER_FUNCTION_CLOSE,  /* </function> */
    /* These two are tokens: spelled in text they never match, but output that ends in the middle
     * of them counts as ending in the middle of the tag. */
    READER_CALL,       /* <tool_call> */
    READER_CALL_CLOSE, /* </tool_call> */
    READER_N_TAGS,
};
extern const char *const reader_tag_text[READER_N_TAGS]; /* up to the name */

struct reader {
    enum reader_phase { READER_SPACE, READER_LETTERS, READER_NAME } phase;
    unsigned tags;       /* bit per tag that may still match */
    size_t n_letters;    /* of the tag, read so far */
    enum reader_tag tag; /* from READER_NAME on: which one it is */
    struct bytes name;   /* trimmed when the tag is complete */
};

/* `tags`: the set of tags that may come, a bit each; `space`: white space may come before. */
void reader_begin(struct reader *reader, unsigned tags, bool space);
enum reader_result { READER_MORE, READER_DONE, READER_FAILED };
/* READER_FAILED: `c` cannot follow and is not taken. READER_DONE: `c` completes reader->tag. */
enum reader_result reader_take(struct reader *reader, char c);
void reader_clear(struct reader *reader);
