/* How much memory the machine has, for plans that must fit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

int64_t memory_physical(void);  /* bytes; 0 when unknown */
int64_t memory_available(void); /* bytes that can be had without swapping; 0 when unknown */
int64_t memory_limit(void);     /* the control group's limit in bytes; 0: none */

/* All that a plan must fit into. */
struct memory_room {
    int64_t physical, available, limit; /* as above */
    int64_t address_space;              /* the process's own limit (ulimit -v); INT64_MAX: none */
    int64_t allocatable; /* bytes that its limits (ulimit -v, -d) leave; INT64_MAX: any number */
};
struct memory_room memory_look(void);

int64_t memory_resident(void); /* bytes of this process in memory now; 0 when unknown */
int64_t memory_peak(void);     /* most bytes that this process ever had in memory */
/* Gives freed memory back to the system, where the allocator would keep it. Takes a millisecond. */
void memory_trim(void);
/* Lets the peak begin again at what is in memory now; false where the system cannot (not Linux). */
bool memory_peak_reset(void);
