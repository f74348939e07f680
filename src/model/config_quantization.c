/* The `quantization` object of config.json (spec 4.3): groups of 64, 4 bits, affine, and the
 * modules that have other bits. */
#include <string.h>

#include "model/config_fields.h"

/* Modules that the engine reads; what is said of others (vision, MTP) does not matter. */
static bool is_text_module(const char *name)
{
    static const char trunk[] = "language_model.model.", head[] = "language_model.lm_head";
    return strncmp(name, trunk, sizeof trunk - 1) == 0 || strcmp(name, head) == 0;
}

static enum status check_override(const struct fields *quantization, const char *module,
                                  const json_t *value, struct error *error)
{
    if (json_is_true(value)) /* quantised, as the rest */
        return STATUS_OK;
    const json_t *group_size = json_object_get(value, "group_size");
    const json_t *bits = json_object_get(value, "bits"), *mode = json_object_get(value, "mode");
    if (!json_is_object(value) || (group_size && !field_is(group_size, "64")) ||
        (bits && !field_is(bits, "4") && !field_is(bits, "8")) ||
        (mode && !field_is(mode, "\"affine\"")))
        return field_refuse(quantization, module, value, error,
                            "{\"group_size\": 64, \"bits\": 4 or 8}");
    return STATUS_OK;
}

/* Names the first field in which the copy is another. */
static enum status check_copy(const struct fields *root, json_t *quantization, struct error *error)
{
    json_t *copy = json_object_get(root->object, "quantization_config");
    if (!copy || json_is_null(copy) || json_equal(copy, quantization))
        return STATUS_OK;
    const struct fields fields = {root->file, "quantization_config.", copy};
    const char *key;
    json_t *value;
    json_object_foreach(quantization, key, value)
    {
        const json_t *found = json_object_get(copy, key);
        if (!found || !json_equal(found, value))
            return field_refuse(&fields, key, found, error, "the same as in quantization");
    }
    json_object_foreach(copy, key, value)
    {
        if (!json_object_get(quantization, key))
            return field_refuse(&fields, key, value, error, "nothing, as in quantization");
    }
    return field_refuse(root, "quantization_config", copy, error, "the same as quantization");
}

enum status config_read_quantization(const struct fields *root, struct config *config,
                                     struct error *error)
{
    json_t *object = json_object_get(root->object, "quantization");
    if (!object || json_is_null(object))
        return field_refuse(root, "quantization", object, error,
                            "an object: the checkpoint must be quantised by MLX (4 bits, groups of "
                            "64)");
    if (!json_is_object(object))
        return field_refuse(root, "quantization", object, error, "an object");
    const struct fields fields = {root->file, "quantization.", object};
    const json_t *group_size = json_object_get(object, "group_size");
    const json_t *bits = json_object_get(object, "bits"), *mode = json_object_get(object, "mode");
    if (!field_is(group_size, "64"))
        return field_refuse(&fields, "group_size", group_size, error, "%d", GROUP_SIZE);
    if (!field_is(bits, "4"))
        return field_refuse(&fields, "bits", bits, error, "4");
    if (mode && !field_is(mode, "\"affine\""))
        return field_refuse(&fields, "mode", mode, error, "\"affine\"");
    const char *module;
    json_t *value;
    json_object_foreach(object, module, value)
    {
        if (!is_text_module(module))
            continue;
        enum status status = check_override(&fields, module, value, error);
        if (status != STATUS_OK)
            return status;
    }
    enum status status = check_copy(root, object, error);
    if (status == STATUS_OK)
        config->quantization = json_incref(object);
    return status;
}

enum status config_bits(const struct config *config, const char *module, int *bits,
                        struct error *error)
{
    const json_t *value = json_object_get(config->quantization, module);
    const json_t *found = json_object_get(value, "bits");
    if (!value || (json_is_object(value) && !found) || json_is_true(value))
        found = json_object_get(config->quantization, "bits");
    if (!json_is_integer(found) || json_integer_value(found) < 1 || json_integer_value(found) > 32)
        return error_set(error, STATUS_INVALID, "quantization.%.200s: names no number of bits",
                         module);
    *bits = (int)json_integer_value(found);
    return STATUS_OK;
}
