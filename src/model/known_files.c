#include "model/known_files.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char known_checkpoint[] = "mlx-community/Qwen3.6-35B-A3B-4bit";

const struct known_file known_files[] = {
    {"config.json", 23591, "a822a9e48b0aafbe3144ec37d4fb067e178ed96615ce6e4420b3149893cc5767"},
    {"generation_config.json", 202,
     "e70c136c1b78ddc1fb0905bac8e733a4dc448d4f852a5dd75143fffc70be550e"},
    {"chat_template.jinja", 7764,
     "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"},
    {"tokenizer.json", 19989343,
     "87a7830d63fcf43bf241c3c5242e96e62dd3fdc29224ca26fed8ea333db72de4"},
    {"tokenizer_config.json", 1139,
     "e98f1901ac6f0adff67b1d540bfa0c36ac1a0cf59eb72ed78146ef89aafa1182"},
    {"vocab.json", 6722759, "ce99b4cb2983d118806ce0a8b777a35b093e2000a503ebde25853284c9dfa003"},
    {"model.safetensors.index.json", 215755,
     "0b28df60e33753a14e816d3b31577ae2c93884c58430a4a6de6ae9ea483842ea"},
    {"model-00001-of-00004.safetensors", 5288196018,
     "09f3e6ecb0b7af6e6a38bc8169a134c821b0924c2679b2bb8f4426ad38d032b8"},
    {"model-00002-of-00004.safetensors", 5368472749,
     "31dcdb1c49eebdb1505bd14e3cb33f9cf900bd2546b638f2464694ae763a033f"},
    {"model-00003-of-00004.safetensors", 5368324139,
     "3e66de06a1f03dade16a612a368cfce4a4c9caa4efd7d28185454384082cec03"},
    {"model-00004-of-00004.safetensors", 4377211365,
     "a5d0cf03519c26f8b506df6b0ba60526e5c08c8cea22d0c21ce92950e58a5422"},
    {NULL, 0, NULL},
};

const char *const known_state_names[] = {
    [KNOWN_OK] = "ok",
    [KNOWN_MISSING] = "missing",
    [KNOWN_SIZE] = "wrong size",
    [KNOWN_DIFFERENT] = "different",
    [KNOWN_UNREADABLE] = "unreadable",
};

static enum known_state check_path(const char *path, const struct known_file *file,
                                   void (*progress)(void *context, int64_t done), void *context,
                                   struct known_result *result)
{
    struct stat info;
    if (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return KNOWN_MISSING;
    /* what else stat may complain of, sha256_file says in its error */
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        result->size = info.st_size;
        if (info.st_size != file->size)
            return KNOWN_SIZE;
    }
    if (sha256_file(path, result->sha256, progress, context, &result->error) != STATUS_OK)
        return KNOWN_UNREADABLE;
    return strcmp(result->sha256, file->sha256) == 0 ? KNOWN_OK : KNOWN_DIFFERENT;
}

int64_t known_file_work(const char *folder, const struct known_file *file)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, file->name) < 0)
        return 0;
    struct stat info;
    bool hashed = stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file->size;
    free(path);
    return hashed ? file->size : 0;
}

void known_file_check(const char *folder, const struct known_file *file,
                      void (*progress)(void *context, int64_t done), void *context,
                      struct known_result *result)
{
    *result = (struct known_result){.size = -1};
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, file->name) < 0) {
        error_no_memory(&result->error, file->name);
        result->state = KNOWN_UNREADABLE;
        return;
    }
    result->state = check_path(path, file, progress, context, result);
    free(path);
}
