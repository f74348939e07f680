/* Pieces that the builders of answers share; what they append is said by example. */
#pragma once

#include "server/openai_answer.h"

/* {"id":…,"choices":[ */
void answer_begin(const struct openai_answer *answer, struct bytes *out);
/* {"index":0 */
void answer_choice(int index, struct bytes *out);
/* ,"finish_reason":"stop"} — or null */
void answer_finish_reason(const enum reply_finish *finish, struct bytes *out);
/* ],"usage":{…},"timings":{…}} — both may be NULL */
void answer_end(const struct openai_answer *answer, const struct openai_usage *usage,
                const struct openai_timings *timings, struct bytes *out);
