#include "model/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/file_map.h"
#include "model/known_files.h"

#define SHOWN 5       /* names in a message */
#define NAME_SIZE 260 /* NAME_MAX is 255 */

#define WANTED                                                                                     \
    "wanted the folder of an MLX checkpoint, with config.json, tokenizer.json and *.safetensors; " \
    "hf download %s --local-dir FOLDER gets one"

/* The first of the names in the order of the alphabet; gives the number of all. */
static int list_names(const char *folder, char first[SHOWN][NAME_SIZE])
{
    int n = 0;
    struct dirent *entry;
    DIR *directory = opendir(folder);
    while (directory && (entry = readdir(directory))) {
        if (entry->d_name[0] == '.')
            continue;
        int at = n < SHOWN ? n : SHOWN;
        n++;
        for (; at > 0 && strcmp(entry->d_name, first[at - 1]) < 0; at--)
            if (at < SHOWN)
                memcpy(first[at], first[at - 1], NAME_SIZE);
        if (at < SHOWN)
            snprintf(first[at], NAME_SIZE, "%s", entry->d_name);
    }
    if (directory)
        closedir(directory);
    return n;
}

enum status folder_refuse(const char *folder, const char *no_what, struct error *error)
{
    char first[SHOWN][NAME_SIZE];
    struct bytes names = {0};
    int n = list_names(folder, first);
    for (int i = 0; i < n && i < SHOWN; i++)
        bytes_format(&names, "%s%.60s", i ? ", " : ", only ", first[i]);
    if (n > SHOWN)
        bytes_format(&names, " and %d more", n - SHOWN);
    const char *text = bytes_terminate(&names);
    error_set(error, STATUS_IO, "%s: found %s%s; " WANTED, folder, no_what, text ? text : "",
              known_checkpoint);
    bytes_clear(&names);
    return STATUS_IO;
}

enum status folder_check(const char *folder, struct error *error)
{
    struct stat info;
    if (!folder[0]) /* FOLDER/NAME would be a file of the root folder */
        return error_set(error, STATUS_INVALID, "model: found an empty path, wanted a folder");
    if (stat(folder, &info) != 0)
        return errno == ENOENT ? error_set(error, STATUS_IO, "%s: %s; " WANTED, folder,
                                           strerror(errno), known_checkpoint)
                               : STATUS_OK; /* what stat cannot see, open will name */
    if (!S_ISDIR(info.st_mode))
        return error_set(error, STATUS_INVALID,
                         "%s: found a file, wanted the folder of an MLX checkpoint", folder);
    char *path = NULL;
    if (asprintf(&path, "%s/config.json", folder) < 0)
        return error_no_memory(error, folder);
    bool absent = file_is_absent(path);
    free(path);
    return absent ? folder_refuse(folder, "no config.json", error) : STATUS_OK;
}
