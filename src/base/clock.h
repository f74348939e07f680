/* Time for measuring and for waiting. */
#pragma once

#include <pthread.h>
#include <time.h>

/* Seconds of a clock that only goes forward; the zero means nothing. */
double clock_seconds(void);
/* A condition variable for pthread_cond_timedwait until a moment of clock_after. */
void clock_condition_init(pthread_cond_t *condition);
/* The moment `seconds` from now. */
struct timespec clock_after(double seconds);
