/* The state of `calla chat`, shared by its loop (chat.c) and its commands (chat_commands.c). */
#pragma once

#include "cli/conversation.h"
#include "cli/generation.h"
#include "cli/line_input.h"

struct chat {
    struct generation generation;
    struct calla_model *model;
    struct calla_session *session;
    struct line_input *input;
    struct conversation conversation;
    struct answer answer;
    struct bytes line;                      /* what was typed */
    struct bytes messages_text, tools_text; /* of the request */
    const char *home;                       /* for paths that begin with ~/, or NULL */
    bool terminal;                          /* a person types */
    bool failed;                            /* something did: the exit code of a script */
    bool quit;                              /* stdout is gone */
    bool editing;                           /* the next message takes the place of the last one */
    /* figures */
    struct calla_result last; /* its ids are not looked at */
    int n_answers;            /* generations; the seed of the next one is that much higher */
    int64_t cached_tokens, read_tokens, generated_tokens;
    int32_t longest_answer; /* tokens */
    int32_t used;           /* of the context, before the turn at hand */
    int32_t longest_turn;   /* tokens that a message and its answer took of it */
};

/* One line on stderr. */
void chat_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "calla: MESSAGE" on stderr; remembers that something failed. */
void chat_problem(struct chat *chat, const char *message);

/* Number of tokens of the conversation as the next prompt begins; checks messages, tools and
 * settings on the way, as far as a conversation without a question can be checked. */
enum status chat_count(struct chat *chat, const struct conversation *conversation, int32_t *tokens,
                       struct error *error);
/* Generates the answer to the conversation, shows it and adds it. False when the prompt was refused
 * and nothing was generated. */
bool chat_answer(struct chat *chat);
/* Adds the user's message, in place of the last one when `edit`, and answers it. A message that is
 * refused changes nothing. */
void chat_ask(struct chat *chat, const char *text, size_t length, bool edit);

/* Takes over a saved conversation, or changes nothing. */
enum status chat_load(struct chat *chat, const char *path, struct error *error);

enum chat_next { CHAT_GO_ON, CHAT_QUIT };
/* Runs the command line in chat->line. */
enum chat_next chat_run_command(struct chat *chat);
