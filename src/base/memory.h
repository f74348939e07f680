/* How much memory the machine has, for plans that must fit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

int64_t memory_physical(void);  /* bytes; 0 when unknown */
int64_t memory_available(void); /* bytes that can be had without swapping; 0 when unknown */
int64_t memory_limit(void);     /* the control group's limit in bytes; 0: none */
int64_t memory_peak(void);      /* most bytes that this process ever had in memory */
/* Lets the peak begin again at what is in memory now; false where the system cannot (not Linux). */
bool memory_peak_reset(void);
