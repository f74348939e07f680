/* Handlers of all requests that generate nothing. `context` is the struct service. */
#pragma once

#include "server/http.h"

void health_handle(void *context, struct http_exchange *exchange);
void metrics_handle(void *context, struct http_exchange *exchange);
void models_handle(void *context, struct http_exchange *exchange);
void model_handle(void *context, struct http_exchange *exchange); /* /v1/models/ID */
void tokenize_handle(void *context, struct http_exchange *exchange);
void detokenize_handle(void *context, struct http_exchange *exchange);
void template_handle(void *context, struct http_exchange *exchange);
