#include "text/call_opening.h"

#include <string.h>

static const char before[] = "\n<function=", after[] = ">\n";

enum status call_opening_init(struct call_opening *opening, const struct tokenizer *tokenizer,
                              const char *const *names, int n_names, struct error *error)
{
    *opening = (struct call_opening){.tokenizer = tokenizer, .names = names, .n_names = n_names};
    for (int i = 0; i < n_names && !opening->text.failed; i++) { /* room for the longest one */
        bytes_reset(&opening->text);
        bytes_append_text(&opening->text, before);
        bytes_append_text(&opening->text, names[i]);
        bytes_append_text(&opening->text, after);
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

bool call_opening_is_complete(const struct call_opening *opening)
{
    for (int i = 0; i < opening->n_names; i++)
        if (opening->text.length == length_of(opening->names[i]) &&
            name_is_possible(opening, opening->names[i]))
            return true;
    return false;
}

bool call_opening_allows(const struct call_opening *opening, int32_t id)
{
    size_t length;
    const char *data = tokenizer_bytes(opening->tokenizer, id, &length);
    if (length == 0 || tokenizer_is_special(opening->tokenizer, id))
        return false;
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
}
