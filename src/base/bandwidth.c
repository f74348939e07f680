#include "base/bandwidth.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory.h"

#define BLOCK 256 /* bytes of one turn of the loop */
#define DEFAULT_ROUNDS 7

/* The processor's widest loads make no difference here: memory is what the loop waits for. */
typedef uint64_t lanes __attribute__((vector_size(32)));
#define N_SUMS (BLOCK / (int)sizeof(lanes) / 2)

struct part {
    pthread_t thread;
    unsigned char *data;
    size_t size; /* a multiple of BLOCK */
    bool write;
    uint64_t sum; /* of the 64-bit words: nobody can leave the reading out */
    double begun, ended;
};

static uint64_t read_words(const unsigned char *data, size_t size)
{
    lanes sums[N_SUMS] = {0}, sum = {0};
    for (size_t at = 0; at < size; at += BLOCK) {
        const lanes *block = (const lanes *)(data + at);
        for (int i = 0; i < N_SUMS; i++)
            sums[i] += block[i] + block[N_SUMS + i];
    }
    for (int i = 0; i < N_SUMS; i++)
        sum += sums[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Until a page is written the system may show one page of zeros for all of them. Written by the
 * thread that will read it, a page lies in the memory near that thread. */
static uint64_t write_words(unsigned char *data, size_t size)
{
    uint64_t sum = 0, *words = (uint64_t *)data;
    for (size_t i = 0; i < size / sizeof *words; i++)
        sum += words[i] = (i + 1) * 0x9e3779b97f4a7c15;
    return sum;
}

static void *run_part(void *argument)
{
    struct part *part = argument;
    part->begun = clock_seconds();
    part->sum =
        part->write ? write_words(part->data, part->size) : read_words(part->data, part->size);
    part->ended = clock_seconds();
    return NULL;
}

/* One round of all threads; *seconds from the first one's begin to the last one's end. */
static enum status run_round(struct part *parts, int n, bool write, uint64_t *sum, double *seconds,
                             struct error *error)
{
    int started = 0;
    while (started < n) {
        parts[started].write = write;
        if (pthread_create(&parts[started].thread, NULL, run_part, &parts[started]) != 0)
            break;
        started++;
    }
    double begun = 0, ended = 0;
    *sum = 0;
    for (int i = 0; i < started; i++) {
        pthread_join(parts[i].thread, NULL);
        begun = i == 0 || parts[i].begun < begun ? parts[i].begun : begun;
        ended = i == 0 || parts[i].ended > ended ? parts[i].ended : ended;
        *sum += parts[i].sum;
    }
    *seconds = ended > begun ? ended - begun : 1e-9;
    if (started < n)
        return error_set(error, STATUS_IO, "threads: only %d of %d could be started", started, n);
    return STATUS_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status run_rounds(struct part *parts, double *rates, struct bandwidth *out,
                              struct error *error)
{
    uint64_t written, sum;
    double seconds;
    enum status status = run_round(parts, out->threads, true, &written, &seconds, error);
    for (int i = 0; i < out->rounds && status == STATUS_OK; i++) {
        status = run_round(parts, out->threads, false, &sum, &seconds, error);
        if (status == STATUS_OK && sum != written)
            status = error_set(error, STATUS_DEVICE, "memory: found other words than were written");
        rates[i] = (double)out->bytes / seconds;
    }
    if (status != STATUS_OK)
        return status;
    int n = out->rounds;
    qsort(rates, (size_t)n, sizeof *rates, compare);
    out->median = n % 2 ? rates[n / 2] : (rates[n / 2 - 1] + rates[n / 2]) / 2;
    out->best = rates[n - 1];
    return STATUS_OK;
}

static int64_t default_bytes(int threads)
{
    const int64_t least = (int64_t)1 << 30, each = (int64_t)128 << 20;
    int64_t bytes = each * threads > least ? each * threads : least;
    const struct memory_room room = memory_look();
    int64_t quarter = (room.available < room.allocatable ? room.available : room.allocatable) / 4;
    return quarter > 0 && quarter < bytes ? quarter : bytes;
}

enum status bandwidth_measure(int threads, int64_t bytes, int rounds, struct bandwidth *out,
                              struct error *error)
{
    if (threads < 1 || bytes < 0 || rounds < 0)
        return error_set(error, STATUS_INVALID,
                         "bandwidth: found %d threads, %lld bytes, %d rounds, wanted at least 1 "
                         "thread and no negative number",
                         threads, (long long)bytes, rounds);
    int64_t each = (bytes ? bytes : default_bytes(threads)) / threads / BLOCK * BLOCK;
    each = each < BLOCK ? BLOCK : each;
    *out = (struct bandwidth){
        .threads = threads, .rounds = rounds ? rounds : DEFAULT_ROUNDS, .bytes = each * threads};
    struct part *parts = calloc((size_t)threads, sizeof *parts);
    double *rates = calloc((size_t)out->rounds, sizeof *rates);
    unsigned char *data =
        mmap(NULL, (size_t)out->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    enum status status = STATUS_OK;
    if (!parts || !rates || data == MAP_FAILED)
        status = error_no_memory(error, "measuring the bandwidth");
    if (status == STATUS_OK) {
#ifdef MADV_NOHUGEPAGE
        madvise(data, (size_t)out->bytes, MADV_NOHUGEPAGE); /* a mapped file has none either */
#endif
        for (int i = 0; i < threads; i++) {
            parts[i].data = data + i * each;
            parts[i].size = (size_t)each;
        }
        status = run_rounds(parts, rates, out, error);
    }
    if (data != MAP_FAILED)
        munmap(data, (size_t)out->bytes);
    free(rates);
    free(parts);
    return status;
}
