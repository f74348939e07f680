#include "library/model.h"

#include <string.h>

static enum status find_stop_ids(struct model *model, const char *path, struct error *error)
{
    const struct config *config = checkpoint_config(model->checkpoint);
    model->n_stop_ids = config->n_stop_ids;
    for (int i = 0; i < config->n_stop_ids; i++)
        model->stop_ids[i] = config->stop_ids[i];
    static const char *const fallback[] = {"<|im_end|>", "<|endoftext|>"};
    for (int i = 0; config->n_stop_ids == 0 && i < 2; i++) {
        int32_t id = tokenizer_added_id(model->tokenizer, fallback[i]);
        if (id >= 0)
            model->stop_ids[model->n_stop_ids++] = id;
    }
    int32_t size = tokenizer_size(model->tokenizer);
    for (int i = 0; i < model->n_stop_ids; i++)
        if (model->stop_ids[i] < 0 || model->stop_ids[i] >= size)
            return error_set(error, STATUS_INVALID,
                             "%s: eos_token_id: found %d, wanted an id of tokenizer.json, 0 to %d",
                             path, model->stop_ids[i], size - 1);
    int rows = config->shape->vocab_size;
    if (size > rows)
        return error_set(error, STATUS_INVALID,
                         "%s/tokenizer.json: found ids up to %d, wanted at most %d, the rows of "
                         "the model's head",
                         path, size - 1, rows - 1);
    return STATUS_OK;
}

enum status model_find_token(const struct model *model, const char *text, int32_t *id,
                             struct error *error)
{
    struct token_list ids = {0};
    struct text_span span = {text, strlen(text), false};
    enum status status = tokenizer_encode(model->tokenizer, &span, 1, &ids, error);
    *id = status == STATUS_OK && ids.length == 1 ? ids.data[0] : -1;
    token_list_clear(&ids);
    return status;
}

static enum status find_turns(struct model *model, struct error *error)
{
    const struct tokenizer *tokenizer = model->tokenizer;
    struct turn_tokens *turns = &model->turns;
    turns->im_start = tokenizer_added_id(tokenizer, "<|im_start|>");
    enum status status = model_find_token(model, "system", &turns->system, error);
    if (status == STATUS_OK)
        status = model_find_token(model, "user", &turns->user, error);
    if (status == STATUS_OK)
        status = model_find_token(model, "assistant", &turns->assistant, error);
    if (status == STATUS_OK)
        status = model_find_token(model, "\n", &turns->newline, error);
    return status;
}

enum status model_open(const char *path, struct model *model, struct error *error)
{
    *model = (struct model){0};
    enum status status = checkpoint_open(path, &model->checkpoint, error);
    if (status == STATUS_OK)
        status = tokenizer_open_model(path, &model->tokenizer, error);
    if (status == STATUS_OK)
        status = find_stop_ids(model, path, error);
    if (status == STATUS_OK)
        status = find_turns(model, error);
    if (status != STATUS_OK)
        model_close(model);
    return status;
}

void model_close(struct model *model)
{
    tokenizer_close(model->tokenizer);
    checkpoint_close(model->checkpoint);
    *model = (struct model){0};
}

bool model_is_stop(const struct model *model, int32_t id)
{
    for (int i = 0; i < model->n_stop_ids; i++)
        if (model->stop_ids[i] == id)
            return true;
    return false;
}

void model_request_init(const struct model *model, struct calla_request *request)
{
    const struct config *config = checkpoint_config(model->checkpoint);
    *request = (struct calla_request){
        .temperature = config->do_sample ? config->temperature : 0,
        .top_k = config->top_k,
        .top_p = config->top_p,
        .repetition_penalty = 1,
    };
}
