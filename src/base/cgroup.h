/* What a container or a service may use at most, where Linux's control groups (version 1 or 2) say
 * so: the tightest limit on the way from the mounted root to the process's own group. `root` is ""
 * but in tests: the folder that holds proc and sys. */
#pragma once

#include <stdint.h>

double cgroup_cpu_limit(const char *root);     /* processors' worth of time; 0: no limit */
int64_t cgroup_memory_limit(const char *root); /* bytes; 0: no limit */
/* Bytes that can still be had below the limits, pages of files counted as free, since they can be
 * dropped; -1: no limit. */
int64_t cgroup_memory_available(const char *root);
