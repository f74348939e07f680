/* libFuzzer: config.json and, after a NUL byte, generation_config.json. */
#include <assert.h>
#include <string.h>

#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *split = size ? memchr(text, 0, size) : NULL;
    size_t length = split ? (size_t)(split - text) : size;
    struct config config;
    struct error error = {.message = ""};
    enum status status =
        config_parse(text, length, "config.json", split ? split + 1 : NULL,
                     split ? size - length - 1 : 0, "generation_config.json", &config, &error);
    if (status != STATUS_OK) {
        assert(error.message[0]);
        return 0;
    }
    assert(config.shape && config.max_position_embeddings > 0);
    assert(config.n_stop_ids >= 0 && config.n_stop_ids <= MAX_STOP_IDS);
    for (int i = 0; i < config.n_stop_ids; i++)
        assert(config.stop_ids[i] >= 0 && config.stop_ids[i] < config.shape->vocab_size);
    int bits = 0;
    config_bits(&config, "language_model.lm_head", &bits, &error);
    config_clear(&config);
    return 0;
}
