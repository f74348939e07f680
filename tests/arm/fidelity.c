/* How far the cpu backend's tables lie from the reference backend on a real text, without the
 * libraries that a checkpoint is opened with, so that it can be built for another architecture and
 * run under an emulator:
 *
 *     fidelity FOLDER EVAL-JSON TOKENS TABLE…
 *
 * FOLDER holds the tiny model; the tokens are the first ones of the evaluation text in EVAL-JSON.
 * Each table reads them in chunks and again token by token. Prints top-1 agreement and mean KL;
 * more than 2e-5 of it, or another choice where the reference's lead is not tiny, fails. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/file_map.h"
#include "base/json_reader.h"
#include "engine/divergence.h"
#include "model/synth.h"

#define MAX_TOKENS 512
#define CHUNK 64
#define SINGLE 32
#define VALID_IDS 4083 /* of the tiny model's vocabulary; the other rows are padding */
#define MAX_KL 2e-5
#define TIE 0.05f /* a lead of the best logit that rounding may turn over */

static void die(const struct error *error, const char *what)
{
    fprintf(stderr, "fidelity: %s: %s\n", what, error ? error->message : "not as wanted");
    exit(2);
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

static bool key_is(const char *key, size_t length, const char *name)
{
    return length == strlen(name) && memcmp(key, name, length) == 0;
}

/* {"dtype": …, "shape": …, "data_offsets": [from, to]} -> the bytes. */
static bool read_place(struct json_reader *reader, int64_t place[2])
{
    bool first = true, found = false;
    const char *key;
    size_t length;
    if (!json_reader_enter(reader, '{'))
        return false;
    while (json_reader_member(reader, &first, &key, &length)) {
        if (!key_is(key, length, "data_offsets")) {
            json_reader_skip(reader, NULL, NULL);
            continue;
        }
        bool start = true;
        int n = 0;
        if (json_reader_enter(reader, '['))
            while (json_reader_element(reader, &start) && n < 2)
                found = json_reader_integer(reader, &place[n++]) && n == 2;
    }
    return found;
}

/* Points the views of one shard's tensors at their data; the names and sizes are those of the
 * synthetic model, which are the published ones. Gives how many there were. */
static int take_shard(const struct file_map *map, const char *path, const struct synth *plan)
{
    struct error error = {0};
    struct json_reader reader;
    uint64_t header = 0;
    int n_tensors, taken = 0;
    const struct synth_tensor *tensors = synth_tensors(plan, &n_tensors);
    memcpy(&header, map->data, sizeof header);
    if (map->size < 8 || header > map->size - 8)
        die(NULL, path);
    json_reader_init(&reader, (const char *)map->data + 8, header, path, &error);
    bool first = true;
    const char *key;
    size_t length;
    if (json_reader_enter(&reader, '{'))
        while (json_reader_member(&reader, &first, &key, &length)) {
            const struct synth_tensor *tensor = NULL;
            for (int i = 0; i < n_tensors && !tensor; i++)
                if (key_is(key, length, tensors[i].name))
                    tensor = &tensors[i];
            int64_t place[2];
            if (!tensor) {
                json_reader_skip(&reader, NULL, NULL);
            } else if (read_place(&reader, place)) {
                if (place[0] < 0 || place[1] - place[0] != tensor->size ||
                    place[1] > (int64_t)(map->size - 8 - header))
                    die(NULL, tensor->name);
                *tensor->view = map->data + 8 + header + place[0];
                taken++;
            }
        }
    if (reader.status != STATUS_OK)
        die(&error, path);
    json_reader_clear(&reader);
    return taken;
}

static void open_weights(const char *folder, const struct synth *plan, struct file_map maps[2])
{
    struct error error = {0};
    int taken = 0, wanted;
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/model-0000%d-of-00002.safetensors", folder, i + 1);
        if (file_map_open(path, &maps[i], &error) != STATUS_OK)
            die(&error, path);
        taken += take_shard(&maps[i], path, plan);
    }
    synth_tensors(plan, &wanted);
    if (taken != wanted)
        die(NULL, "number of tensors");
}

/* The first n token ids of eval.txt. */
static void read_tokens(const char *path, int32_t *tokens, int n)
{
    struct error error = {0};
    struct file_map map;
    struct json_reader reader;
    if (file_map_open(path, &map, &error) != STATUS_OK)
        die(&error, path);
    json_reader_init(&reader, (const char *)map.data, map.size, path, &error);
    bool first = true, inner = true, start = true;
    const char *key;
    size_t length;
    int found = 0;
    json_reader_enter(&reader, '{');
    if (!json_reader_member(&reader, &first, &key, &length) || !key_is(key, length, "eval.txt"))
        die(NULL, path);
    json_reader_enter(&reader, '{');
    while (found < n && json_reader_member(&reader, &inner, &key, &length)) {
        if (!key_is(key, length, "ids")) {
            json_reader_skip(&reader, NULL, NULL);
            continue;
        }
        json_reader_enter(&reader, '[');
        while (found < n && json_reader_element(&reader, &start)) {
            int64_t id = 0;
            json_reader_integer(&reader, &id);
            tokens[found++] = (int32_t)id;
        }
    }
    if (found < n || reader.status != STATUS_OK)
        die(reader.status != STATUS_OK ? &error : NULL, path);
    json_reader_clear(&reader);
    file_map_close(&map);
}

/* ---- the backends ---------------------------------------------------------------------------- */

/* The logits of n tokens, `chunk` at a time; 1: by decode steps. */
static void run(const struct backend_ops *ops, const struct weights *weights, const char *table,
                const int32_t *tokens, int n, int chunk, float *logits)
{
    struct error error = {0};
    struct backend *backend = NULL;
    struct sequence *sequence = NULL;
    struct ranked ranked[CHUNK];
    struct backend_options options = {.weights = weights,
                                      .n_valid_ids = VALID_IDS,
                                      .context = MAX_TOKENS,
                                      .n_sequences = 1,
                                      .threads = 2,
                                      .cpu = table};
    if (ops->open(&options, &backend, &error) != STATUS_OK ||
        ops->sequence_new(backend, &sequence, &error) != STATUS_OK)
        die(&error, ops->name);
    for (int first = 0; first < n; first += chunk) {
        int count = n - first < chunk ? n - first : chunk;
        const struct row row = {sequence, tokens[first]};
        enum status status = chunk == 1
                                 ? ops->decode_step(backend, &row, 1, ranked, &error)
                                 : ops->prefill_chunk(backend, sequence, tokens + first, count,
                                                      PREFILL_ALL, ranked, NULL, &error);
        for (int i = 0; i < count && status == STATUS_OK; i++)
            status = ops->logits(backend, i, logits + (int64_t)(first + i) * weights->lm_head.rows,
                                 &error);
        if (status != STATUS_OK)
            die(&error, ops->name);
    }
    ops->sequence_free(backend, sequence);
    ops->close(backend);
}

static float lead(const float *logits, int32_t best)
{
    float second = -INFINITY;
    for (int32_t i = 0; i < VALID_IDS; i++)
        if (i != best && logits[i] > second)
            second = logits[i];
    return logits[best] - second;
}

static bool compare(const char *table, const char *how, const float *wanted, const float *found,
                    int n, int vocab)
{
    double kl = 0;
    int same = 0, wrong = 0;
    for (int i = 0; i < n; i++) {
        struct divergence d;
        divergence_measure(wanted + (int64_t)i * vocab, found + (int64_t)i * vocab, VALID_IDS, &d);
        kl += d.kl / n;
        same += d.p.best == d.q.best;
        wrong += d.p.best != d.q.best && lead(wanted + (int64_t)i * vocab, d.p.best) > TIE;
    }
    bool ok = kl <= MAX_KL && wrong == 0;
    printf("%-6s %-10s %-10s %d of %d choices the same, mean KL %.2e (at most %.0e)\n",
           ok ? "ok" : "FAILED", table, how, same, n, kl, MAX_KL);
    return ok;
}

int main(int argc, char **argv)
{
    static int32_t tokens[MAX_TOKENS];
    struct error error = {0};
    struct synth *plan;
    struct file_map maps[2];
    int n = argc > 3 ? atoi(argv[3]) : 0, passed = 0, failed = 0;
    if (n < 1 || n > MAX_TOKENS) {
        fprintf(stderr, "fidelity: wanted FOLDER EVAL-JSON TOKENS TABLE…, tokens up to %d\n",
                MAX_TOKENS);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (synth_plan(&shape_tiny, 0, false, &plan, &error) != STATUS_OK)
        die(&error, "the names of tensors");
    open_weights(argv[1], plan, maps);
    read_tokens(argv[2], tokens, n);
    const struct weights *weights = synth_weights(plan);
    int vocab = weights->lm_head.rows;
    float *wanted = malloc((size_t)n * (size_t)vocab * sizeof *wanted);
    float *found = malloc((size_t)n * (size_t)vocab * sizeof *found);
    if (!wanted || !found)
        die(NULL, "memory");
    run(&backend_ref, weights, NULL, tokens, n, CHUNK, wanted);
    for (int i = 4; i < argc; i++)
        for (int single = 0; single < 2; single++) {
            int count = single && n > SINGLE ? SINGLE : n;
            run(&backend_cpu, weights, argv[i], tokens, count, single ? 1 : CHUNK, found);
            bool ok =
                compare(argv[i], single ? "one by one" : "in chunks", wanted, found, count, vocab);
            *(ok ? &passed : &failed) += 1;
        }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    free(wanted);
    free(found);
    for (int i = 0; i < 2; i++)
        file_map_close(&maps[i]);
    synth_close(plan);
    return failed > 0;
}
