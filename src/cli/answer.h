/* An answer while it streams, for `calla run` and `calla chat`: text to stdout, reasoning (dimmed
 * on a terminal) to stderr, tool calls as one JSON object a line, all of it gathered as well;
 * Ctrl-C ends the generation, not the program. */
#pragma once

#include <stdbool.h>

#include "base/bytes.h"
#include "calla.h"
#include "cli/progress.h"

/* Zeroed = ready, but for `dim`. */
struct answer {
    bool silent; /* gathers only */
    bool dim;    /* reasoning is shown dimmed */
    /* what has come */
    struct bytes text, reasoning;
    struct bytes calls; /* complete tool calls as JSON objects, joined by ", " */
    int n_calls;
    /* while streaming */
    bool in_reasoning;      /* the last thing on the terminal was reasoning */
    bool line_open;         /* stdout is not at the start of a line */
    bool write_failed;      /* errno says why */
    size_t call_start;      /* where the open call begins in calls */
    struct bytes arguments; /* of the open call */
    struct progress progress;
};

/* Whether reasoning on stderr should be dimmed: on a terminal, unless the user set NO_COLOR. */
bool answer_may_dim(const char *no_color);
/* Empties the answer and keeps its memory. */
void answer_reset(struct answer *answer);
void answer_clear(struct answer *answer);
/* Generates and shows, with stdout at the start of a line again at the end. The request's progress
 * is set. SIGINT cancels the generation; a second one does what it did before this call when
 * `twice_ends`, and nothing otherwise. */
enum calla_status answer_generate(struct answer *answer, struct calla_session *session,
                                  struct calla_request *request, bool twice_ends,
                                  struct calla_result *result, struct calla_error *error);
/* Whether all that came was kept: false when memory ran out. */
bool answer_is_whole(const struct answer *answer);

double per_second(int32_t tokens, double seconds);
/* "stop", "length", "tool_calls", "cancelled" */
const char *finish_name(enum calla_finish finish);
