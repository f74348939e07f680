#include "backend/cpu/kernels.h"

#include <string.h>
#if defined __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/bytes.h"
#include "base/cpu.h"

extern const struct kernels kernels_portable;
#if defined __x86_64__
extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512vnni, kernels_amx;
#elif defined __aarch64__
extern const struct kernels kernels_neon, kernels_dotprod, kernels_i8mm;
#endif

const struct kernels *const kernels_tables[] = {
#if defined __x86_64__
    &kernels_amx,      &kernels_avx512vnni,
    &kernels_avx512,   &kernels_avx2,
#elif defined __aarch64__
    &kernels_i8mm,     &kernels_dotprod,
    &kernels_neon,
#endif
    &kernels_portable, NULL,
};

#if defined __x86_64__
/* Linux gives a process the tiles' registers only when it asks. */
static bool tiles_permitted(void)
{
#if defined __linux__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}
#endif

bool kernels_usable(const struct kernels *kernels)
{
    struct cpu_features cpu = cpu_features();
#if defined __x86_64__
    bool avx2 = cpu.avx2 && cpu.fma && cpu.f16c;
    bool avx512 = avx2 && cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq;
    if (kernels == &kernels_avx2)
        return avx2;
    if (kernels == &kernels_avx512)
        return avx512;
    if (kernels == &kernels_avx512vnni)
        return avx512 && cpu.avx512vnni;
    if (kernels == &kernels_amx)
        return avx512 && cpu.avx512vnni && cpu.amx_tile && cpu.amx_int8 && tiles_permitted();
#elif defined __aarch64__
    if (kernels == &kernels_neon)
        return cpu.neon;
    if (kernels == &kernels_dotprod)
        return cpu.neon && cpu.dotprod;
    if (kernels == &kernels_i8mm)
        return cpu.neon && cpu.dotprod && cpu.i8mm;
#else
    (void)cpu;
#endif
    return kernels == &kernels_portable;
}

/* "avx512vnni, avx2, portable": the usable ones, or all of them. */
static void list_names(bool all, struct bytes *out)
{
    for (const struct kernels *const *table = kernels_tables; *table; table++)
        if (all || kernels_usable(*table)) {
            if (out->length > 0)
                bytes_append_text(out, ", ");
            bytes_append_text(out, (*table)->name);
        }
}

static enum status refuse(const char *name, bool known, struct error *error)
{
    struct bytes names = {0};
    list_names(!known, &names);
    const char *text = bytes_terminate(&names);
    if (!text)
        error_no_memory(error, "the names of CPU levels");
    else if (known)
        error_set(error, STATUS_UNSUPPORTED, "cpu: this CPU cannot run '%s', wanted one of: %s",
                  name, text);
    else
        error_set(error, STATUS_INVALID, "cpu: found '%s', wanted one of: %s", name, text);
    bytes_clear(&names);
    return error->status;
}

enum status kernels_find(const char *name, const struct kernels **out, struct error *error)
{
    for (const struct kernels *const *table = kernels_tables; *table; table++) {
        if (name && strcmp(name, (*table)->name) != 0)
            continue;
        if (kernels_usable(*table)) {
            *out = *table;
            return STATUS_OK;
        }
        if (name)
            return refuse(name, true, error);
    }
    return refuse(name, false, error);
}
