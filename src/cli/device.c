#include "cli/device.h"

#include "base/cpu.h"

enum status device_choose(const struct device_options *device, struct engine_options *options,
                          struct error *error)
{
    options->threads = (int)device->threads;
    options->cpu = device->cpu;
    return backend_find(device->backend, &options->ops, error);
}

int device_threads(const struct device_options *device)
{
    return device->threads ? (int)device->threads : cpu_physical_cores();
}
