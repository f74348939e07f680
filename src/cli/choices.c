#include "cli/choices.h"

#include <string.h>

#include "backend/backend.h"
#include "calla.h"
#include "model/shape.h"

const char *choice_name(enum option_kind kind, int i)
{
    switch (kind) {
    case OPTION_BACKEND:
        return backends[i] ? backends[i]->name : NULL;
    case OPTION_LEVEL: /* one backend at most has levels */
        for (const struct backend_ops *const *ops = backends; *ops; ops++)
            if ((*ops)->level)
                return (*ops)->level(i);
        return NULL;
    case OPTION_SHAPE:
        return known_shapes[i] ? known_shapes[i]->name : NULL;
    case OPTION_PRESET:
        return calla_preset_name(i);
    default:
        return NULL;
    }
}

bool choice_has(enum option_kind kind, const char *name)
{
    const char *known;
    for (int i = 0; (known = choice_name(kind, i)); i++)
        if (strcmp(known, name) == 0)
            return true;
    return false;
}

void choice_print(enum option_kind kind, const char *last, struct bytes *out)
{
    const char *name;
    for (int i = 0; (name = choice_name(kind, i)); i++) {
        if (i > 0)
            bytes_append_text(out, choice_name(kind, i + 1) ? ", " : last);
        bytes_append_text(out, name);
    }
}
