/* Pieces of the answers' JSON, written straight into a buffer: no JSON value is made for a token.
 * Numbers are written without printf, so no locale has a say. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* With quotes and escapes; the text must be valid UTF-8. */
void print_string(const char *text, struct bytes *out);
void print_string_or_null(const char *text, struct bytes *out);
/* Any bytes: what is no UTF-8 becomes U+FFFD, one for each maximal invalid part. */
void print_broken_string(const char *data, size_t length, struct bytes *out);
void print_integer(int64_t value, struct bytes *out);
/* Rounded to `decimals` (0 to 9) digits behind the point, zeros at the end left out but for one:
 * "0.0", "-1.25". What is not finite, or beyond 9e8 at 9 decimals and in proportion else, is
 * brought to the nearest such number; NaN is 0. */
void print_real(double value, int decimals, struct bytes *out);
