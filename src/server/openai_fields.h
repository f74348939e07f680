/* The fields of a request as a table: name, what becomes of it, how its value is read and into
 * which member of the request. One loop reads all of them; docs/api.md lists the same names (a test
 * compares). Null means absent, fields that no table knows are ignored. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "server/openai_problem.h"
#include "server/openai_request.h"

enum openai_handling {
    OPENAI_OBEYED,
    OPENAI_REFUSED, /* any value that asks for something else than what happens anyway */
    OPENAI_IGNORED, /* known, without an effect on the answer; only its type is checked */
};

#define OPENAI_ANY 1e30

struct openai_reading {
    void *request; /* the struct that the table's offsets are of */
    const struct openai_limits *limits;
    struct openai_problem *problem;
};

struct openai_field;
typedef bool openai_reader(struct openai_reading *reading, const struct openai_field *field,
                           const json_t *value);

struct openai_field {
    const char *name; /* NULL ends a table */
    enum openai_handling handling;
    /* Reads a value that is not null; false: the problem is set. */
    openai_reader *read;
    size_t offset;
    double low, high; /* of integers and numbers; OPENAI_ANY: no bound */
    bool required;
};

/* Entries of a table. */
#define OBEYED(field, reader, at)                                                                  \
    {                                                                                              \
        .name = field, .handling = OPENAI_OBEYED, .read = reader, .offset = at                     \
    }
#define REQUIRED(field, reader, at)                                                                \
    {                                                                                              \
        .name = field, .handling = OPENAI_OBEYED, .read = reader, .offset = at, .required = true   \
    }
#define BOUNDED(field, reader, at, least, most)                                                    \
    {                                                                                              \
        .name = field, .handling = OPENAI_OBEYED, .read = reader, .offset = at, .low = least,      \
        .high = most                                                                               \
    }
#define REFUSED(field, reader)                                                                     \
    {                                                                                              \
        .name = field, .handling = OPENAI_REFUSED, .read = reader                                  \
    }
#define IGNORED(field, reader)                                                                     \
    {                                                                                              \
        .name = field, .handling = OPENAI_IGNORED, .read = reader                                  \
    }

/* Tables that several requests share. */
extern const struct openai_field openai_generation_fields[]; /* struct openai_generation */
extern const struct openai_field openai_refused_fields[]; /* they would change the answer's form */
extern const struct openai_field openai_ignored_fields[];

/* All fields of a request: tables, and where the struct that each one fills lies in the whole. */
struct openai_group {
    const struct openai_field *fields; /* NULL ends the list */
    size_t offset;
};
extern const struct openai_group openai_chat_groups[], openai_completion_groups[],
    openai_tokenize_groups[], openai_detokenize_groups[], openai_template_groups[];

/* Reads the fields of `body` into `request`, in the order of the tables. */
bool openai_fields_read(const struct openai_group *groups, const json_t *body, void *request,
                        const struct openai_limits *limits, struct openai_problem *problem);

/* Parses a whole body: its size and depth are checked first, then that it is one JSON object. The
 * caller owns *out. */
bool openai_body_parse(const char *body, size_t length, const struct openai_limits *limits,
                       json_t **out, struct openai_problem *problem);

/* An integer; 5.0 is one too. False when the value is none or does not fit 64 bits. */
bool openai_integer(const json_t *value, int64_t *out);
/* Whether the value is a string with exactly this text. */
bool openai_is_text(const json_t *value, const char *text);
/* A member that is not null, or NULL. */
const json_t *openai_get(const json_t *object, const char *name);

/* Readers. In brackets the type of the member that they fill. */
openai_reader openai_read_bool;     /* [bool] */
openai_reader openai_read_flag;     /* [enum template_flag] */
openai_reader openai_read_integer;  /* [struct openai_integer], low..high */
openai_reader openai_read_number;   /* [struct openai_number], low..high */
openai_reader openai_read_positive; /* [struct openai_number], above 0 */
openai_reader openai_read_string;   /* [const char *], borrowed; without U+0000 */
openai_reader openai_read_json;     /* [const json_t *], borrowed and not looked at */
openai_reader openai_read_stop;     /* [struct openai_generation], also the next three */
openai_reader openai_read_stop_ids; /* stop_token_ids */
openai_reader openai_read_logit_bias;
openai_reader openai_read_stream_options;
openai_reader openai_check_bool, openai_check_string, openai_check_object; /* only the type */
openai_reader openai_refuse_any, openai_refuse_true, openai_refuse_false;

/* Checks what depends on several of the shared fields, and takes top_p 0 as a tiny one. */
bool openai_generation_finish(struct openai_generation *generation, const json_t *body,
                              struct openai_problem *problem);
void openai_generation_clear(struct openai_generation *generation);

/* Token ids: integers in 0..vocabulary-1, at most `most` of them; malloc'ed, NULL for none. `name`
 * is the array's in messages. */
bool openai_read_ids(struct openai_reading *reading, const char *name, const json_t *array,
                     size_t most, int32_t **ids, size_t *n);
