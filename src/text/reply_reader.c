#include "text/reply_reader.h"

#include <string.h>

#include "text/json_text.h"

const char *const reader_tag_text[READER_N_TAGS] = {
    "<function=", "<parameter=", "</parameter>", "</function>", "<tool_call>", "</tool_call>",
};

void reader_begin(struct reader *reader, unsigned tags, bool space)
{
    reader->phase = space ? READER_SPACE : READER_LETTERS;
    reader->tags = tags;
    reader->n_letters = 0;
}

/* No tag is the beginning of another one, so at most one is completed. */
static enum reader_result take_letter(struct reader *reader, char c)
{
    unsigned left = 0;
    bool complete = false;
    for (int tag = 0; tag < READER_N_TAGS; tag++) {
        if (!(reader->tags >> tag & 1))
            continue;
        const char *letter = reader_tag_text[tag] + reader->n_letters;
        if (*letter != c || (letter[1] == '\0' && tag >= READER_CALL))
            continue; /* the second: a token's letters are no token */
        left |= 1u << tag;
        if (letter[1] == '\0') {
            complete = true;
            reader->tag = (enum reader_tag)tag;
        }
    }
    if (left == 0)
        return READER_FAILED;
    reader->tags = left;
    reader->n_letters++;
    if (!complete)
        return READER_MORE;
    if (c == '>')
        return READER_DONE;
    reader->phase = READER_NAME;
    reader->name.length = 0;
    return READER_MORE;
}

static enum reader_result take_name(struct reader *reader, char c)
{
    struct bytes *name = &reader->name;
    if (c == '<' || c == '\n')
        return READER_FAILED;
    if (c != '>') {
        if (name->length > 0 || !json_text_is_space(c)) /* trimmed in front */
            bytes_append_byte(name, c);
        return READER_MORE;
    }
    while (name->length > 0 && json_text_is_space(name->data[name->length - 1]))
        name->length--;
    return name->length > 0 ? READER_DONE : READER_FAILED;
}

enum reader_result reader_take(struct reader *reader, char c)
{
    if (reader->phase == READER_SPACE) {
        if (json_text_is_space(c))
            return READER_MORE;
        reader->phase = READER_LETTERS;
    }
    return reader->phase == READER_NAME ? take_name(reader, c) : take_letter(reader, c);
}

void reader_clear(struct reader *reader)
{
    bytes_clear(&reader->name);
}
