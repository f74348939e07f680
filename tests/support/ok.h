/* For cmocka tests: a call that must succeed, with its own error as the last argument, `e`. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct error error_;                                                                       \
        struct error *e = &error_;                                                                 \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", e->message);                                                            \
    } while (0)
