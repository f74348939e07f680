/* Time for measuring. */
#pragma once

/* Seconds of a clock that only goes forward; the zero means nothing. */
double clock_seconds(void);
