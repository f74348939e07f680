/* Allocations fail one by one while a tokenizer is loaded and while it is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/alloc.h"
#include "support/tokenizers.h"

static enum status load(void *context, struct error *error)
{
    struct tokenizer *tokenizer;
    enum status status = tokenizer_open_model(context, &tokenizer, error);
    tokenizer_close(tokenizer);
    return status;
}

static void loading(void **state)
{
    (void)state;
    assert_true(alloc_sweep(load, "models/tiny", 0) > 20);
}

static enum status use(void *context, struct error *error)
{
    static char text[3000]; /* long words, marks to sort, repeated pre-tokens, added tokens */
    strcpy(text, "e\u0301\u0316\u0301\u0316 caf\u00E9 <think>the the the ");
    memset(text + strlen(text), 'a', 2000);
    strcat(text, " \U0001F600");
    struct text_span spans[] = {{text, strlen(text), true}, {" end", 4, false}};
    struct token_list ids = {0};
    struct bytes back = {0};
    struct detokenizer detokenizer;
    enum status status = tokenizer_encode(context, spans, 2, &ids, error);
    detokenizer_init(&detokenizer, context, true);
    for (size_t i = 0; i < ids.length; i++)
        detokenizer_push(&detokenizer, ids.data[i], &back);
    detokenizer_finish(&detokenizer, &back);
    if (status == STATUS_OK && back.failed)
        status = error_no_memory(error, "the text");
    bytes_clear(&back);
    token_list_clear(&ids);
    return status;
}

static void encoding_and_decoding(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = tokenizer_tiny();
    assert_true(alloc_sweep(use, tokenizer, 0) > 8);
    tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading),
        cmocka_unit_test(encoding_and_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
