/* base/memory and base/sha256: figures that must hold on any machine, and known digests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/sha256.h"

static void figures(void **state)
{
    (void)state;
    int64_t physical = memory_physical(), available = memory_available(), limit = memory_limit();
    assert_true(physical > 0 && available > 0 && available <= physical);
    assert_true(limit >= 0 && (limit == 0 || available <= limit));
}

static void peak_grows_and_stays(void **state)
{
    (void)state;
    const size_t size = 64 << 20;
    int64_t before = memory_peak();
    /* not malloc, which may keep what is freed */
    char *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    assert_true(data != MAP_FAILED);
    memset(data, 1, size);
    assert_int_equal(((volatile char *)data)[size - 1], 1);
    munmap(data, size);
    int64_t after = memory_peak();
    assert_true(before > 0 && after >= (int64_t)size && after <= memory_physical());
    if (memory_peak_reset())
        assert_true(memory_peak() < after);
}

static void digests_of_bytes(void **state)
{
    (void)state;
    char hex[SHA256_HEX_SIZE];
    sha256_bytes("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_bytes("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures),
        cmocka_unit_test(peak_grows_and_stays),
        cmocka_unit_test(digests_of_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
