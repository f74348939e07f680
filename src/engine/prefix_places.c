/* Where entries of a rendered prompt are made, found by token ids alone: text that users or tools
 * wrote never holds the id of `<|im_start|>`. */
#include "engine/prefix_cache.h"

#define THINK_OPENING 4 /* tokens of the longest thing that follows `<|im_start|>assistant\n` */

void prefix_places_add(struct prefix_places *places, int32_t length, enum prefix_kind kind)
{
    int at = places->n;
    while (at > 0 && places->place[at - 1].length > length)
        at--;
    if (length <= 0 || places->n == PREFIX_PLACES_MAX ||
        (at > 0 && places->place[at - 1].length == length))
        return;
    for (int i = places->n++; i > at; i--)
        places->place[i] = places->place[i - 1];
    places->place[at] = (struct prefix_place){length, kind};
}

void prefix_places_find(const struct turn_tokens *turns, const int32_t *tokens, int32_t n,
                        struct prefix_places *places)
{
    int32_t system = 0, user = 0, assistant = 0;
    *places = (struct prefix_places){0};
    for (int32_t i = 0; turns->im_start >= 0 && i + 1 < n; i++) {
        if (tokens[i] != turns->im_start)
            continue;
        if (i > 0 && system == 0 && tokens[0] == turns->im_start && tokens[1] == turns->system)
            system = i;
        if (tokens[i + 1] == turns->user)
            user = i;
        else if (tokens[i + 1] == turns->assistant && i + 2 < n && tokens[i + 2] == turns->newline)
            assistant = i + 3;
    }
    prefix_places_add(places, system, PREFIX_SYSTEM);
    prefix_places_add(places, user, PREFIX_USER);
    prefix_places_add(places, assistant, PREFIX_ASSISTANT);
    /* one more short chunk is worth it where the one before the thinking is not as good */
    if (assistant == 0 || n - assistant > THINK_OPENING)
        prefix_places_add(places, n - 1, PREFIX_PROMPT);
}
