/* A model folder opened as a whole: checkpoint and tokenizer, and what follows from both. */
#pragma once

#include "calla.h"
#include "engine/prefix_cache.h"
#include "model/checkpoint.h"
#include "text/tokenizer.h"

struct model {
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    int n_stop_ids;
    int32_t stop_ids[MAX_STOP_IDS]; /* generation_config, else config, else by content (spec 1.2) */
    struct turn_tokens turns;       /* what the template's turns begin with */
};

enum status model_open(const char *path, struct model *model, struct error *error);
void model_close(struct model *model);
bool model_is_stop(const struct model *model, int32_t id);
/* The id of a text that is one token, -1 when it is several. */
enum status model_find_token(const struct model *model, const char *text, int32_t *id,
                             struct error *error);
/* calla_request_init for it. */
void model_request_init(const struct model *model, struct calla_request *request);
