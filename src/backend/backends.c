#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

const struct backend_ops *const backends[] = {
#ifdef BACKEND_CPU
    &backend_cpu,
#endif
#ifdef BACKEND_REF
    &backend_ref,
#endif
    NULL,
};

enum status backend_find(const char *name, const struct backend_ops **out, struct error *error)
{
    char known[200] = "";
    for (const struct backend_ops *const *ops = backends; *ops; ops++) {
        if (!name || strcmp(name, (*ops)->name) == 0) {
            *out = *ops;
            return STATUS_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", (*ops)->name);
    }
    if (!name)
        return error_set(error, STATUS_INVALID, "no backend is compiled in");
    return error_set(error, STATUS_INVALID, "backend: found '%s', wanted %s", name, known);
}

enum status backend_check(const struct backend_ops *ops, int threads, const char *cpu,
                          struct error *error)
{
    const struct backend_options options = {.threads = threads, .cpu = cpu};
    return ops->check ? ops->check(&options, error) : STATUS_OK;
}
