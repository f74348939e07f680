#include "server/problem.h"

void problem_answer(struct http_exchange *exchange, const struct openai_problem *problem)
{
    if (problem->status == 429 || problem->status == 503)
        http_header(exchange, "Retry-After", "1");
    else if (problem->status >= 500)
        http_header(exchange, "x-should-retry", "false");
    http_problem(exchange, (unsigned)problem->status, problem->type,
                 problem->param[0] ? problem->param : NULL, problem->code, problem->message);
}

void problem_no_memory(struct http_exchange *exchange)
{
    http_problem(exchange, 500, "server_error", NULL, NULL, "out of memory for the request");
}
