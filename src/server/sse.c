#include "server/sse.h"

#include "server/openai_print.h"

void sse_begin(struct bytes *out)
{
    bytes_append_text(out, "data: ");
}

void sse_end(struct bytes *out)
{
    bytes_append_text(out, "\n\n");
}

void sse_done(struct bytes *out)
{
    bytes_append_text(out, "data: [DONE]\n\n");
}

void sse_comment(const char *text, struct bytes *out)
{
    bytes_append_text(out, ": ");
    for (; *text; text++)
        bytes_append_byte(out, *text == '\n' || *text == '\r' ? ' ' : *text);
    sse_end(out);
}

void sse_progress(int64_t total, int64_t read, int64_t cached, struct bytes *out)
{
    bytes_append_text(out, ": {\"progress\":{\"total\":");
    print_integer(total, out);
    bytes_append_text(out, ",\"read\":");
    print_integer(read, out);
    bytes_append_text(out, ",\"cached\":");
    print_integer(cached, out);
    bytes_append_text(out, "}}");
    sse_end(out);
}
