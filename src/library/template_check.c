#include "library/template_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file_map.h"
#include "base/sha256.h"
#include "text/template.h"

/* bytes; the built-in template has 7,764, and hashing a huge file would delay every start */
#define TEMPLATE_MAX_SIZE (1 << 20)

bool template_differs(const char *folder, struct error *note)
{
    char *path = NULL, found[SHA256_HEX_SIZE];
    if (asprintf(&path, "%s/chat_template.jinja", folder) < 0) {
        error_no_memory(note, "chat_template.jinja");
        return true;
    }
    struct stat info;
    bool differs = !file_is_absent(path);
    if (differs && stat(path, &info) == 0 && S_ISREG(info.st_mode) &&
        info.st_size > TEMPLATE_MAX_SIZE) {
        error_set(note, STATUS_INVALID,
                  "%s: found another chat template (%lld bytes), but the built-in one (%s) is used",
                  path, (long long)info.st_size, template_sha256);
    } else if (differs && sha256_file(path, found, NULL, NULL, note) == STATUS_OK) {
        differs = strcmp(found, template_sha256) != 0;
        error_set(note, STATUS_INVALID,
                  "%s: found another chat template (SHA-256 %s), but the built-in one (%s) is used",
                  path, found, template_sha256);
    }
    free(path);
    return differs;
}
