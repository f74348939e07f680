/* Any bytes as text for models/tiny's tokenizer (run from the repository root): refused when they
 * are not UTF-8; else ids that give the text's NFC back, added tokens only where it is trusted, and
 * the same ids however the text is cut into spans. The first byte chooses trust and cut. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tokenizer *shared(void)
{
    static struct tokenizer *tokenizer;
    struct error error;
    if (!tokenizer && tokenizer_open_model("models/tiny", &tokenizer, &error) != STATUS_OK)
        abort();
    return tokenizer;
}

static void check_untrusted(const struct tokenizer *tokenizer, const char *text, size_t length,
                            size_t cut)
{
    const struct text_span spans[] = {{text, cut, false}, {text + cut, length - cut, false}};
    struct token_list ids = {0}, whole = {0};
    struct bytes back = {0}, normal = {0};
    struct text_span one = {text, length, false};
    struct detokenizer detokenizer;
    if (tokenizer_encode(tokenizer, spans, 2, &ids, NULL) != STATUS_OK ||
        tokenizer_encode(tokenizer, &one, 1, &whole, NULL) != STATUS_OK ||
        unicode_nfc(text, length, &normal, NULL) != STATUS_OK)
        abort();
    if (ids.length != whole.length ||
        (ids.length && memcmp(ids.data, whole.data, ids.length * sizeof *ids.data) != 0))
        abort();
    detokenizer_init(&detokenizer, tokenizer, true);
    for (size_t i = 0; i < ids.length; i++) {
        if (tokenizer_is_special(tokenizer, ids.data[i]))
            abort();
        detokenizer_push(&detokenizer, ids.data[i], &back);
    }
    if (detokenizer.tail_length != 0)
        abort();
    if (back.length != normal.length ||
        (back.length && memcmp(back.data, normal.data, back.length) != 0))
        abort();
    bytes_clear(&back);
    bytes_clear(&normal);
    token_list_clear(&ids);
    token_list_clear(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct tokenizer *tokenizer = shared();
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    size_t length = size - 1, cut = length ? data[0] % (length + 1) : 0;
    const struct text_span spans[] = {{text, cut, data[0] & 1}, {text + cut, length - cut, true}};
    struct token_list ids = {0};
    bool valid = utf8_valid_length(text, length) == length;
    enum status status = tokenizer_encode(tokenizer, spans, 2, &ids, NULL);
    if (status != (valid ? STATUS_OK : STATUS_INVALID))
        abort();
    if (valid)
        check_untrusted(tokenizer, text, length, cut);
    /* any bytes as ids, too */
    struct bytes out = {0};
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, tokenizer, data[0] & 2);
    for (size_t i = 0; i + 1 < size; i += 2)
        detokenizer_push(&detokenizer, (data[i] | data[i + 1] << 8) % 4200, &out);
    detokenizer_finish(&detokenizer, &out);
    if (utf8_valid_length(out.data ? out.data : "", out.length) != out.length)
        abort();
    bytes_clear(&out);
    token_list_clear(&ids);
    return 0;
}
