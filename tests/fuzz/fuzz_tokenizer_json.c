/* Any bytes as a tokenizer.json: a tokenizer, or one line that names the file. What loads
 * must work. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error error;
    struct tokenizer *tokenizer;
    enum status status = tokenizer_parse((const char *)data, size, "input", &tokenizer, &error);
    if (status != STATUS_OK) {
        if ((status != STATUS_INVALID && status != STATUS_UNSUPPORTED) || tokenizer ||
            strncmp(error.message, "input: ", 7) != 0)
            abort();
        return 0;
    }
    struct text_span span = {.data = "It's a <think> \u4E2D!", .trusted = true};
    span.length = strlen(span.data);
    struct token_list ids = {0};
    struct bytes back = {0};
    struct detokenizer detokenizer;
    if (tokenizer_encode(tokenizer, &span, 1, &ids, &error) != STATUS_OK)
        abort();
    detokenizer_init(&detokenizer, tokenizer, false);
    for (size_t i = 0; i < ids.length; i++)
        detokenizer_push(&detokenizer, ids.data[i], &back);
    detokenizer_finish(&detokenizer, &back);
    if (back.length != span.length || memcmp(back.data, span.data, span.length) != 0)
        abort();
    bytes_clear(&back);
    token_list_clear(&ids);
    tokenizer_close(tokenizer);
    return 0;
}
