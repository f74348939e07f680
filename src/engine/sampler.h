/* Draws the next token from a row's candidates. In C and on the host for every backend, so that the
 * same candidates and seed give the same token everywhere.
 *
 * Order on the logits: logit_bias, repetition penalty (prompt and generated tokens), presence and
 * frequency penalty (generated tokens only), then temperature, top_k, top_p, min_p, draw.
 * Temperature 0 takes the best after the penalties, ties to the lowest id. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/error.h"

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    double temperature;        /* >= 0; 0 is greedy */
    int top_k;                 /* <= 0: off */
    double top_p;              /* 0 < p; >= 1: off */
    double min_p;              /* 0: off; drops candidates below min_p times the best one's p */
    double presence_penalty;   /* subtracted once from tokens generated before */
    double frequency_penalty;  /* subtracted for each time a token was generated */
    double repetition_penalty; /* > 0, 1: off; divides positive logits, multiplies negative ones */
    uint64_t seed;
    const struct logit_bias *logit_bias; /* borrowed */
    int n_logit_bias;
};

struct sampler;

/* n_valid_ids: size of the vocabulary without padding rows. */
enum status sampler_new(const struct sampling *sampling, int32_t n_valid_ids, struct sampler **out,
                        struct error *error);
void sampler_free(struct sampler *sampler);
/* Tells the sampler what was read and what was generated (penalties). */
void sampler_add_prompt(struct sampler *sampler, const int32_t *ids, int64_t n);
void sampler_add_generated(struct sampler *sampler, int32_t id);
/* Draws the token for `position` from the step's candidates, or gives -1 where these do not decide
 * it: then sampler_draw wants the full row. Both give the same token. */
int32_t sampler_draw_ranked(struct sampler *sampler, const struct ranked *ranked, int64_t position);
/* logits: the row's raw logits. */
int32_t sampler_draw(struct sampler *sampler, const float *logits, int64_t position);
