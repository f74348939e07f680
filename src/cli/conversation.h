/* The conversation of `calla chat`: messages in OpenAI's form, tools and settings; the changes that
 * its commands make; its file. No input or output but the file. A failed change leaves it as it
 * was. */
#pragma once

#include <jansson.h>

#include "base/bytes.h"
#include "base/error.h"
#include "calla.h"
#include "cli/answer.h"

struct conversation {
    json_t *messages;              /* an array; the system message, if any, is the first */
    json_t *tools;                 /* an array, or NULL */
    struct calla_request settings; /* sampling and thinking; texts in it are not looked at */
    int n_calls;                   /* made in it so far, for their ids */
};

enum status conversation_init(struct conversation *conversation, struct error *error);
void conversation_clear(struct conversation *conversation);

/* Number of messages, the system message not counted. */
size_t conversation_length(const struct conversation *conversation);
const json_t *
conversation_system(const struct conversation *conversation); /* its content or NULL */
/* Sets the system message; NULL removes it. */
enum status conversation_set_system(struct conversation *conversation, const char *text,
                                    size_t length, struct error *error);
enum status conversation_add_user(struct conversation *conversation, const char *text,
                                  size_t length, struct error *error);
/* Adds the answer with its reasoning and tool calls. */
enum status conversation_add_answer(struct conversation *conversation, const struct answer *answer,
                                    struct error *error);
/* The first call of the last answer that has no result yet, or NULL; *left gets how many have none.
 */
const json_t *conversation_open_call(const struct conversation *conversation, int *left);
/* The result of that call. */
enum status conversation_add_result(struct conversation *conversation, const char *text,
                                    size_t length, struct error *error);

/* Whether the last message is an answer. */
bool conversation_is_answered(const struct conversation *conversation);
/* Removes the last answer. */
void conversation_drop_answer(struct conversation *conversation);
/* The content of the user's last message, NULL when there is none. */
const json_t *conversation_last_user(const struct conversation *conversation);
/* Removes the messages from the user's last one on. */
void conversation_drop_last_turn(struct conversation *conversation);
/* Removes the oldest turn, from the first message up to the user's second; false when it is the
 * only one. */
bool conversation_drop_first_turn(struct conversation *conversation);
void conversation_drop_all(struct conversation *conversation); /* but the system message */

/* Texts of the request: they are owned by the caller and belong to `request` afterwards. */
enum status conversation_request(const struct conversation *conversation, struct bytes *messages,
                                 struct bytes *tools, struct calla_request *request,
                                 struct error *error);

/* The file is private (mode 0600) and replaced as a whole. */
enum status conversation_save(const struct conversation *conversation, const char *path,
                              struct error *error);
/* Reads a file of conversation_save, or a bare array of messages, into an initialised conversation
 * whose settings say what the file does not. Messages are checked as far as this program looks at
 * them; calla_count_tokens checks the rest. */
enum status conversation_load(struct conversation *conversation, const char *path,
                              struct error *error);
/* A JSON array in a regular file. */
enum status conversation_load_tools(const char *path, json_t **tools, struct error *error);
