#include "text/call_opening.h"

#include <string.h>

static const char before[] = "\n<function=", after[] = ">\n";
static const char end[] = "</function>", parameter[] = "<parameter=";
_Static_assert(sizeof end == sizeof parameter, "they are read side by side");

enum { TAIL = sizeof end - 1, KEY_MAX = 64 /* bytes; longer ones have to end */ };

enum status call_opening_init(struct call_opening *opening, const struct tokenizer *tokenizer,
                              const char *const *names, int n_names, struct error *error)
{
    *opening = (struct call_opening){.tokenizer = tokenizer, .names = names, .n_names = n_names};
    for (int i = 0; i < n_names && !opening->text.failed; i++) { /* room for the longest one */
        bytes_reset(&opening->text);
        bytes_append_text(&opening->text, before);
        bytes_append_text(&opening->text, names[i]);
        bytes_append_text(&opening->text, after);
        bytes_append_text(&opening->text, parameter);
        for (int k = 0; k < 2 * KEY_MAX; k++) /* the last token may go on behind the key */
            bytes_append_byte(&opening->text, 'k');
    }
    bool failed = opening->text.failed;
    bytes_reset(&opening->text);
    if (failed)
        call_opening_clear(opening);
    return failed ? error_no_memory(error, "the names of tools") : STATUS_OK;
}

void call_opening_clear(struct call_opening *opening)
{
    bytes_clear(&opening->text);
}

static size_t length_of(const char *name)
{
    return strlen(before) + strlen(name) + strlen(after);
}

/* Byte i of the opening with this name. */
static char byte_at(const char *name, size_t i)
{
    size_t head = strlen(before), middle = strlen(name);
    return i < head ? before[i] : i < head + middle ? name[i - head] : after[i - head - middle];
}

static bool matches(const char *name, size_t from, const char *data, size_t length)
{
    if (from + length > length_of(name))
        return false;
    for (size_t i = 0; i < length; i++)
        if (byte_at(name, from + i) != data[i])
            return false;
    return true;
}

static bool name_is_possible(const struct call_opening *opening, const char *name)
{
    return matches(name, 0, opening->text.data, opening->text.length);
}

static bool name_is_complete(const struct call_opening *opening)
{
    for (int i = 0; i < opening->n_names; i++)
        if (opening->text.length == length_of(opening->names[i]) &&
            name_is_possible(opening, opening->names[i]))
            return true;
    return false;
}

/* Whether the tail so far and `data` may stand behind the name. */
static bool tail_fits(const struct call_opening *opening, const char *data, size_t length,
                      bool *complete)
{
    const char *text = opening->text.data + opening->tail;
    size_t had = opening->text.length - opening->tail, n = had + length, i = 0;
    bool ends = true, has_key = true, visible = false;
    *complete = false;
    for (; i < n && i < TAIL; i++) {
        char c = i < had ? text[i] : data[i - had];
        ends &= c == end[i];
        has_key &= c == parameter[i];
    }
    if (n < TAIL || !has_key) {
        *complete = ends && n >= TAIL;
        return ends || has_key;
    }
    for (; i < n; i++) {
        char c = i < had ? text[i] : data[i - had];
        if (c == '>')
            return *complete = visible;
        if (c == '<' || c == '\n' || i == TAIL + KEY_MAX)
            return false;
        visible |= c != ' ' && c != '\t' && c != '\r';
    }
    return true;
}

bool call_opening_is_complete(const struct call_opening *opening)
{
    bool complete = false;
    return opening->tail > 0 && tail_fits(opening, "", 0, &complete) && complete;
}

bool call_opening_allows(const struct call_opening *opening, int32_t id)
{
    size_t length;
    const char *data = tokenizer_bytes(opening->tokenizer, id, &length);
    if (length == 0 || tokenizer_is_special(opening->tokenizer, id))
        return false;
    bool complete;
    if (opening->tail > 0)
        return tail_fits(opening, data, length, &complete);
    for (int i = 0; i < opening->n_names; i++)
        if (matches(opening->names[i], opening->text.length, data, length) &&
            name_is_possible(opening, opening->names[i]))
            return true;
    return false;
}

void call_opening_add(struct call_opening *opening, int32_t id)
{
    size_t length;
    const char *data = tokenizer_bytes(opening->tokenizer, id, &length);
    bytes_append(&opening->text, data, length);
    if (opening->tail == 0 && name_is_complete(opening))
        opening->tail = opening->text.length;
}
