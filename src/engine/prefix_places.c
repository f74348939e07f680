/* Where snapshots of a rendered prompt are taken, found by token ids alone: text that users or
 * tools wrote never holds the id of `<|im_start|>`. */
#include "engine/prefix_cache.h"

/* Adds a place behind the ones that are there; of two at one length the first stays. */
static int add(struct prefix_place *places, int n, int32_t length, enum prefix_kind kind)
{
    if (length <= 0 || (n > 0 && places[n - 1].length >= length))
        return n;
    places[n] = (struct prefix_place){length, kind};
    return n + 1;
}

int prefix_places_find(const struct turn_tokens *turns, const int32_t *tokens, int32_t n,
                       struct prefix_place places[PREFIX_PLACES])
{
    int32_t system = 0, user = 0, assistant = 0;
    if (turns->im_start < 0)
        return 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        if (tokens[i] != turns->im_start)
            continue;
        if (i > 0 && system == 0 && tokens[0] == turns->im_start && tokens[1] == turns->system)
            system = i;
        if (tokens[i + 1] == turns->user)
            user = i;
        else if (tokens[i + 1] == turns->assistant && i + 2 < n && tokens[i + 2] == turns->newline)
            assistant = i + 3;
    }
    int count = add(places, 0, system, PREFIX_SYSTEM);
    count = add(places, count, user, PREFIX_USER);
    return add(places, count, assistant, PREFIX_ASSISTANT);
}
