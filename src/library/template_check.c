#include "library/template_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sha256.h"
#include "text/template.h"

bool template_differs(const char *folder, struct error *note)
{
    char *path = NULL, found[SHA256_HEX_SIZE];
    if (asprintf(&path, "%s/chat_template.jinja", folder) < 0) {
        error_no_memory(note, "chat_template.jinja");
        return true;
    }
    struct stat info;
    bool differs = false;
    if (stat(path, &info) == 0 || errno != ENOENT) {
        differs = true;
        if (sha256_file(path, found, NULL, NULL, note) == STATUS_OK) {
            differs = strcmp(found, template_sha256) != 0;
            error_set(note, STATUS_INVALID,
                      "%s: found another chat template (SHA-256 %s), but the built-in one (%s) is "
                      "used",
                      path, found, template_sha256);
        }
    }
    free(path);
    return differs;
}
