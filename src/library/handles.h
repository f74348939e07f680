/* What the files behind calla.h share: its two handles, and errors. */
#pragma once

#include "calla.h"
#include "engine/generation.h"
#include "library/model.h"

struct calla_model {
    struct model model;
    struct engine engine;
    int64_t cache_bytes; /* budget of the session's prefix cache */
};

struct calla_session {
    struct calla_model *owner;
    struct sequence *sequence;
    struct prefix_cache *cache;
    struct token_list prompt_ids, completion_ids;
    atomic_bool cancel;
};

/* Fills the caller's error, which may be NULL, from ours. */
enum calla_status library_error(enum status status, const struct error *from,
                                struct calla_error *to);
/* The tools and the prompt's ids of a request that is right. *tools, which may be NULL, is owned by
 * the caller also after an error. */
enum status request_prepare(const struct model *model, const struct calla_request *request,
                            json_t **tools, struct token_list *ids, struct error *error);
