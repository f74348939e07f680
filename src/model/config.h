/* config.json and generation_config.json (spec 1.1, 1.2): which shape a checkpoint has, proven
 * field by field, and the defaults that travel with it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/shape.h"

#define MAX_STOP_IDS 16

#define TOP_P_MIN 1e-9 /* of generation_config.json and of a request: 0 would keep no token */

struct config {
    const struct shape *shape;
    int max_position_embeddings; /* only limits the context */
    json_t *quantization;        /* owned; looked up by a module's full name */
    /* generation_config.json; absent fields keep the values of spec 1.2 */
    int n_stop_ids; /* 0: neither file names any, take them from the tokenizer */
    int32_t stop_ids[MAX_STOP_IDS];
    bool do_sample; /* false: greedy by default */
    double temperature, top_p;
    int top_k;
};

/* Reads both files of `folder` (generation_config.json may be missing). Any field of spec 1.1 that
 * changes the computation and differs from both shapes is refused with its name, the value found
 * and the value wanted. */
enum status config_open(const char *folder, struct config *config, struct error *error);
/* The same from memory, for tests and fuzzing. generation_json may be NULL. */
enum status config_parse(const char *config_json, size_t config_length, const char *config_name,
                         const char *generation_json, size_t generation_length,
                         const char *generation_name, struct config *config, struct error *error);
void config_clear(struct config *config);
/* Bits of a quantised module by its full name ("language_model.model.layers.0.mlp.gate"). */
enum status config_bits(const struct config *config, const char *module, int *bits,
                        struct error *error);
