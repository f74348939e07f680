/* What is wrong with a request as an HTTP answer. */
#pragma once

#include "server/http.h"
#include "server/openai_problem.h"

/* With Retry-After where trying again may help, x-should-retry: false where it will not. */
void problem_answer(struct http_exchange *exchange, const struct openai_problem *problem);
/* 500: there is no memory for the request itself. */
void problem_no_memory(struct http_exchange *exchange);
