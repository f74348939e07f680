#include "support/alike.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* In nats; logits are of the order of 10. */
#define LOGIT_LIMIT 5e-3
/* Of the largest value in the same head, or the same row of convolution channels. */
#define CONTENTS_LIMIT 1e-3
/* The same for 1 of RARE heads, where another expert was chosen. */
#define RARE_LIMIT 0.2
#define RARE 100

static struct {
    double logit, contents;
    int rare;
} worst;

bool alike_exact(const struct backend *backend)
{
    return strcmp(backend->ops->name, "ref") == 0;
}

static double larger(double *worst_so_far, double x)
{
    if (!(x <= *worst_so_far)) /* NaN stays */
        *worst_so_far = x;
    return x;
}

/* ---- rankings -------------------------------------------------------------------------------- */

void assert_same_ranked(const struct ranked *x, const struct ranked *y, const char *what, int n)
{
    bool same = x->n == y->n && x->logsumexp == y->logsumexp &&
                memcmp(x->id, y->id, (size_t)x->n * sizeof *x->id) == 0 &&
                memcmp(x->logit, y->logit, (size_t)x->n * sizeof *x->logit) == 0;
    if (!same)
        fail_msg("%s, %d tokens: best %d %.9g against %d %.9g", what, n, x->id[0], x->logit[0],
                 y->id[0], y->logit[0]);
}

/* The logit that y gives id, or that of y's last candidate: then id's is no larger. */
static double logit_of(const struct ranked *y, int32_t id)
{
    for (int i = 0; i < y->n; i++)
        if (y->id[i] == id)
            return y->logit[i];
    return y->logit[y->n - 1];
}

void assert_alike_ranked(struct backend *backend, const struct ranked *x, const struct ranked *y,
                         const char *what, int n)
{
    if (alike_exact(backend)) {
        assert_same_ranked(x, y, what, n);
        return;
    }
    assert_int_equal(x->n, y->n);
    double largest = fabs((double)x->logsumexp - y->logsumexp);
    for (int i = 0; i < x->n; i++)
        larger(&largest, fabs((double)x->logit[i] - logit_of(y, x->id[i])));
    larger(&worst.logit, largest);
    if (!(largest <= LOGIT_LIMIT))
        fail_msg("%s, %d tokens: logits differ by %.2e, limit %.0e; best %d %.9g against %d %.9g",
                 what, n, largest, LOGIT_LIMIT, x->id[0], x->logit[0], y->id[0], y->logit[0]);
}

/* ---- contents -------------------------------------------------------------------------------- */

/* Everything a sequence holds, as bytes: state, then KV rows. */
static unsigned char *contents(struct backend *b, struct sequence *sequence, size_t *size)
{
    struct error error;
    size_t state = b->ops->state_size(b);
    *size = state + (size_t)sequence->position * b->ops->kv_row_size(b);
    unsigned char *bytes = malloc(*size);
    assert_non_null(bytes);
    if (b->ops->state_read(b, sequence, bytes, &error) != STATUS_OK ||
        b->ops->kv_read(b, sequence, 0, sequence->position, bytes + state, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return bytes;
}

void assert_same_contents(struct backend *b, struct sequence *x, struct sequence *y)
{
    size_t x_size, y_size;
    unsigned char *x_bytes = contents(b, x, &x_size), *y_bytes = contents(b, y, &y_size);
    assert_int_equal(x->position, y->position);
    assert_int_equal(x_size, y_size);
    assert_memory_equal(x_bytes, y_bytes, x_size);
    free(x_bytes);
    free(y_bytes);
}

/* The largest difference of n numbers, as a part of the largest of them. */
static double difference(const float *x, const float *y, size_t n)
{
    double largest = 0, apart = 0;
    for (size_t i = 0; i < n; i++) {
        larger(&largest, fabs((double)x[i]));
        larger(&apart, fabs((double)x[i] - y[i]));
    }
    return apart > 0 || isnan(apart) ? apart / largest : 0;
}

/* Whether a part that differs by `found` is one of the rare ones. */
static bool is_rare(double found, const char *what, size_t part)
{
    if (!(found <= RARE_LIMIT))
        fail_msg("%s %zu differs by %.2e, limit %.0e", what, part, found, RARE_LIMIT);
    if (found > CONTENTS_LIMIT)
        return true;
    larger(&worst.contents, found);
    return false;
}

static void assert_rare(size_t rare, size_t parts, const char *what)
{
    worst.rare += (int)rare;
    if (rare > (parts + RARE - 1) / RARE)
        fail_msg("%zu of %zu %ss differ by more than %.0e", rare, parts, what, CONTENTS_LIMIT);
}

static void compare_parts(const float *x, const float *y, size_t parts, size_t length)
{
    size_t rare = 0;
    for (size_t i = 0; i < parts; i++)
        rare += is_rare(difference(x + i * length, y + i * length, length), "state part", i);
    assert_rare(rare, parts, "state part");
}

/* KV rows of cpu are int16 codes with a scale for each head (cpu/state.c). */
struct head_codes {
    int16_t codes[HEAD_DIM];
    float scale;
};

static void compare_heads(const unsigned char *x, const unsigned char *y, size_t n)
{
    size_t rare = 0;
    for (size_t i = 0; i < n; i++) {
        float values[2][HEAD_DIM];
        for (int side = 0; side < 2; side++) {
            struct head_codes head;
            memcpy(&head, (side ? y : x) + i * sizeof head, sizeof head);
            for (int d = 0; d < HEAD_DIM; d++)
                values[side][d] = (float)head.codes[d] * head.scale;
        }
        rare += is_rare(difference(values[0], values[1], HEAD_DIM), "KV head", i);
    }
    assert_rare(rare, n, "KV head");
}

void assert_alike_contents(const struct shape *shape, struct backend *b, struct sequence *x,
                           struct sequence *y)
{
    if (alike_exact(b)) {
        assert_same_contents(b, x, y);
        return;
    }
    size_t x_size, y_size, state = b->ops->state_size(b);
    unsigned char *x_bytes = contents(b, x, &x_size), *y_bytes = contents(b, y, &y_size);
    assert_int_equal(x->position, y->position);
    assert_int_equal(x_size, y_size);
    size_t layers = (size_t)shape_n_linear_attention(shape), D = LINEAR_HEAD_DIM;
    size_t taps = (size_t)shape->linear_conv_kernel_dim - 1;
    float *states[2] = {malloc(state), malloc(state)};
    memcpy(states[0], x_bytes, state);
    memcpy(states[1], y_bytes, state);
    size_t conv = layers * taps * (size_t)shape_conv_channels(shape);
    compare_parts(states[0], states[1], layers * taps, (size_t)shape_conv_channels(shape));
    compare_parts(states[0] + conv, states[1] + conv,
                  layers * (size_t)shape->linear_num_value_heads, D * D);
    compare_heads(x_bytes + state, y_bytes + state, (x_size - state) / sizeof(struct head_codes));
    free(states[0]);
    free(states[1]);
    free(x_bytes);
    free(y_bytes);
}

void alike_report(const struct backend *backend)
{
    if (!alike_exact(backend) && (worst.logit > 0 || worst.contents > 0))
        print_message("    ways apart: logits %.1e (limit %.0e), state and KV %.1e (limit %.0e), "
                      "%d heads by other experts\n",
                      worst.logit, LOGIT_LIMIT, worst.contents, CONTENTS_LIMIT, worst.rare);
    memset(&worst, 0, sizeof worst);
}
