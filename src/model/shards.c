#include "model/shards.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/folder.h"

#define MAX_INDEX_SIZE (100 << 20) /* bytes; the target's index has 0.2 MB */

static const char *file_name(const struct safetensors *shard)
{
    return strrchr(shard->path, '/') + 1; /* every path here is FOLDER/NAME */
}

static enum status open_shard(struct shard_set *set, const char *folder, const char *name,
                              struct error *error)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return error_no_memory(error, name);
    struct safetensors *shard = calloc(1, sizeof *shard);
    enum status status =
        shard ? safetensors_open(path, shard, error) : error_no_memory(error, path);
    free(path);
    if (status == STATUS_OK)
        set->shards[set->n_shards++] = shard;
    else
        free(shard);
    return status;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static enum status gather_tensors(struct shard_set *set, struct error *error)
{
    size_t n = 0;
    for (int i = 0; i < set->n_shards; i++)
        n += set->shards[i]->n_tensors;
    set->tensors = malloc((n + 1) * sizeof *set->tensors);
    if (!set->tensors)
        return error_no_memory(error, "the list of tensors");
    for (int i = 0; i < set->n_shards; i++)
        for (size_t j = 0; j < set->shards[i]->n_tensors; j++)
            set->tensors[set->n_tensors++] = &set->shards[i]->tensors[j];
    qsort(set->tensors, n, sizeof *set->tensors, by_name);
    for (size_t i = 1; i < n; i++) {
        const struct tensor *first = set->tensors[i - 1], *second = set->tensors[i];
        if (strcmp(first->name, second->name) == 0)
            return error_set(error, STATUS_INVALID, "%s: tensor %.120s is in %s too",
                             first->file->path, first->name, file_name(second->file));
    }
    return STATUS_OK;
}

ptrdiff_t shard_set_find(const struct shard_set *set, const char *name)
{
    const struct tensor key = {.name = name}, *key_at = &key;
    const struct tensor **found =
        bsearch(&key_at, set->tensors, set->n_tensors, sizeof *set->tensors, by_name);
    return found ? found - set->tensors : -1;
}

/* A name in this very folder, nothing that leads elsewhere. */
static bool is_shard_name(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = name ? strlen(name) : 0;
    return length >= sizeof suffix && length < 256 && !strchr(name, '/') && name[0] != '.' &&
           strcmp(name + length - (sizeof suffix - 1), suffix) == 0;
}

static enum status open_shards_of(struct shard_set *set, const char *folder, const char *path,
                                  const json_t *weight_map, struct error *error)
{
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)weight_map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!is_shard_name(name))
            return error_set(error, STATUS_INVALID,
                             "%s: weight_map.%.120s: found %.120s, wanted the name of a "
                             ".safetensors file in this folder",
                             path, tensor, name ? name : "no string");
        bool known = false;
        for (int i = set->n_shards - 1; i >= 0 && !known; i--)
            known = strcmp(name, file_name(set->shards[i])) == 0;
        if (known)
            continue;
        if (set->n_shards == MAX_SHARDS)
            return error_set(error, STATUS_INVALID, "%s: names more than %d files", path,
                             MAX_SHARDS);
        struct error problem;
        enum status status = open_shard(set, folder, name, &problem);
        if (status == STATUS_IO) /* say why that file was wanted */
            return error_set(error, status, "%s (named by model.safetensors.index.json)",
                             problem.message);
        if (status != STATUS_OK)
            return error_set(error, status, "%s", problem.message);
    }
    return STATUS_OK;
}

/* The names of the index and those of the files are the same, and so are their places. */
static enum status compare_index(const struct shard_set *set, const char *path,
                                 const json_t *weight_map, struct error *error)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)weight_map, name, value)
    {
        ptrdiff_t at = shard_set_find(set, name);
        const char *wanted = json_string_value(value);
        if (at < 0)
            return error_set(error, STATUS_INVALID, "%s: tensor %.120s is missing from %s", path,
                             name, wanted);
        if (strcmp(file_name(set->tensors[at]->file), wanted) != 0)
            return error_set(error, STATUS_INVALID,
                             "%s: tensor %.120s: found in %s, but the index says %s", path, name,
                             file_name(set->tensors[at]->file), wanted);
    }
    if (json_object_size(weight_map) == set->n_tensors)
        return STATUS_OK;
    for (size_t i = 0; i < set->n_tensors; i++)
        if (!json_object_get(weight_map, set->tensors[i]->name))
            return error_set(error, STATUS_INVALID, "%s: tensor %.120s of %s is not in weight_map",
                             path, set->tensors[i]->name, file_name(set->tensors[i]->file));
    return STATUS_OK;
}

static enum status open_indexed(struct shard_set *set, const char *folder, const char *path,
                                const struct file_map *map, struct error *error)
{
    if (map->size > MAX_INDEX_SIZE)
        return error_set(error, STATUS_INVALID, "%s: found %zu bytes, wanted at most %d", path,
                         map->size, MAX_INDEX_SIZE);
    json_t *index;
    enum status status =
        json_parse_strict(map->data ? (const char *)map->data : "", map->size, path, &index, error);
    if (status != STATUS_OK)
        return status;
    const json_t *weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        status = error_set(error, STATUS_INVALID,
                           "%s: weight_map: wanted an object of tensor names and files", path);
    if (status == STATUS_OK)
        status = open_shards_of(set, folder, path, weight_map, error);
    if (status == STATUS_OK)
        status = gather_tensors(set, error);
    if (status == STATUS_OK)
        status = compare_index(set, path, weight_map, error);
    json_decref(index);
    return status;
}

static enum status open_all(struct shard_set *set, const char *folder, const char *index,
                            const char *single, struct error *error)
{
    if (!file_is_absent(index)) {
        struct file_map map;
        enum status status = file_map_open(index, &map, error);
        if (status != STATUS_OK)
            return status;
        status = open_indexed(set, folder, index, &map, error);
        file_map_close(&map);
        return status;
    }
    if (file_is_absent(single))
        return folder_refuse(folder, "neither model.safetensors.index.json nor model.safetensors",
                             error);
    enum status status = open_shard(set, folder, "model.safetensors", error);
    return status == STATUS_OK ? gather_tensors(set, error) : status;
}

enum status shard_set_open(const char *folder, struct shard_set *set, struct error *error)
{
    *set = (struct shard_set){0};
    char *index = NULL, *single = NULL;
    if (asprintf(&index, "%s/model.safetensors.index.json", folder) < 0)
        return error_no_memory(error, folder);
    if (asprintf(&single, "%s/model.safetensors", folder) < 0) {
        free(index);
        return error_no_memory(error, folder);
    }
    enum status status = open_all(set, folder, index, single, error);
    free(index);
    free(single);
    if (status != STATUS_OK)
        shard_set_close(set);
    return status;
}

void shard_set_close(struct shard_set *set)
{
    for (int i = 0; i < set->n_shards; i++) {
        safetensors_close(set->shards[i]);
        free(set->shards[i]);
    }
    free(set->tensors);
    *set = (struct shard_set){0};
}
