#include "cli/device.h"

#include "base/cpu.h"

int device_check(const struct command *command, const struct device_options *device,
                 const char *prefix)
{
    const struct backend_ops *ops;
    struct error error;
    enum status status = backend_find(device->backend, &ops, &error);
    if (status == STATUS_OK)
        status = backend_check(ops, (int)device->threads, device->cpu, &error);
    return status == STATUS_OK ? -1 : options_usage(command, "--%s%s", prefix, error.message);
}

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
