/* How alike two ways through a backend must be that read the same tokens. ref goes through the same
 * operations whatever the way, so the bits are equal. cpu takes other sums for chunks than for
 * single tokens, and rounds to int16 after them: its results lie apart by that noise, which is
 * measured, printed and held below limits with room of a factor of about four. Where two experts
 * are as good as equal, noise may choose the other one; a few heads then differ by more. */
#pragma once

#include "backend/backend.h"

/* Whether every way gives the same bits. */
bool alike_exact(const struct backend *backend);

/* Fails the test with `what` and n when the rankings are not alike. */
void assert_same_ranked(const struct ranked *x, const struct ranked *y, const char *what, int n);
void assert_alike_ranked(struct backend *backend, const struct ranked *x, const struct ranked *y,
                         const char *what, int n);

/* The same for all that two sequences hold: state and KV rows, which are decoded. */
void assert_same_contents(struct backend *backend, struct sequence *x, struct sequence *y);
void assert_alike_contents(const struct shape *shape, struct backend *backend, struct sequence *x,
                           struct sequence *y);

/* Prints the largest differences since the last call, with their limits. */
void alike_report(const struct backend *backend);
