/* Requests of text completions, /tokenize, /detokenize and /apply-template: fields right and wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/openai_body.h"

static struct openai_completion_request completion(const char *fields)
{
    char body[4096];
    struct openai_completion_request request;
    snprintf(body, sizeof body, "{'model':'m',%s}", fields);
    body_accept(body_completion, body, &request);
    return request;
}

static void refuse_completion(const char *fields, const char *param, const char *code,
                              const char *message)
{
    char body[4096];
    snprintf(body, sizeof body, "{'model':'m','prompt':'p',%s}", fields);
    body_refuse(body_completion, body, param, code, message);
}

#define USER "{'role':'user','content':'a'}"
#define TOOL(name) "{'type':'function','function':{'name':'" name "'}}"
#define TOOLS "'tools':[" TOOL("f") "," TOOL("g") "," TOOL("h") "]"

static void completions(void **state)
{
    (void)state;
    struct openai_completion_request r = completion("'prompt':'a\\u0000b'");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].length, 3);
    assert_memory_equal(r.prompts[0].text, "a\0b", 3);
    assert_true(r.generation.max_tokens.given && r.generation.max_tokens.value == 16);
    assert_false(r.echo || r.logprobs.given);
    assert_null(r.suffix);
    openai_completion_clear(&r);
    r = completion("'prompt':['a',[1,2.0],[],''],'max_tokens':0,'echo':true,'logprobs':5,'n':2,"
                   "'best_of':2,'suffix':'','stream':true,'temperature':1.5,'user':'u'");
    assert_int_equal(r.n_prompts, 4);
    assert_string_equal(r.prompts[0].text, "a");
    assert_null(r.prompts[1].text);
    assert_int_equal(r.prompts[1].n_ids, 2);
    assert_int_equal(r.prompts[1].ids[1], 2);
    assert_true(!r.prompts[2].text && r.prompts[2].n_ids == 0);
    assert_true(r.prompts[3].text && r.prompts[3].length == 0);
    assert_true(r.generation.max_tokens.given && r.generation.max_tokens.value == 0);
    assert_true(r.echo && r.generation.stream && r.generation.temperature.value == 1.5);
    assert_true(r.logprobs.given && r.logprobs.value == 5);
    assert_null(r.suffix);
    openai_completion_clear(&r);
    r = completion("'prompt':[5,6,7],'logprobs':0");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_true(r.logprobs.given && r.logprobs.value == 0);
    openai_completion_clear(&r);
    r = completion("'prompt':['a','b'],'suffix':'end'");
    assert_int_equal(r.suffix_length, 3);
    assert_string_equal(r.suffix, "end");
    openai_completion_clear(&r);
    refuse_completion("'best_of':2", "best_of", "unsupported_value", "best_of: only");
    refuse_completion("'best_of':0", "best_of", "invalid_value", "best_of: found 0");
    refuse_completion("'suffix':'x','echo':true", "suffix", "unsupported_value", "suffix: not");
    refuse_completion("'suffix':5", "suffix", "invalid_value", "suffix: found 5");
    refuse_completion("'suffix':'x','prompt':[1]", "suffix", "unsupported_value", "suffix: not");
    refuse_completion("'echo':1", "echo", "invalid_value", "echo: found 1");
    refuse_completion("'logprobs':6", "logprobs", "invalid_value", "logprobs: found 6");
    refuse_completion("'logprobs':true", "logprobs", "invalid_value", "logprobs: found true");
    refuse_completion("'max_tokens':-1", "max_tokens", "invalid_value", "max_tokens: found -1");
    refuse_completion("'min_tokens':17", "min_tokens", "invalid_value", "min_tokens: found 17");
    refuse_completion("'guided_json':{}", "guided_json", "unsupported_value", "guided_json: this");
    refuse_completion("'prompt':5", "prompt", "invalid_value", "prompt: found 5, wanted a string,");
    refuse_completion("'prompt':[]", "prompt", "invalid_value", "prompt: found an empty array");
    refuse_completion("'prompt':null", "prompt", "invalid_value", "prompt: found nothing");
    refuse_completion("'prompt':[1,'a']", "prompt[1]", "invalid_value", "prompt[1]: found \"a\"");
    refuse_completion("'prompt':['a',1]", "prompt[1]", "invalid_value", "prompt[1]: found 1, want");
    refuse_completion("'prompt':[1,248077]", "prompt[1]", "invalid_value", "prompt[1]: found 2480");
    refuse_completion("'prompt':[[1],[2,-1]]", "prompt[1][1]", "invalid_value", "prompt[1][1]: f");
    refuse_completion("'prompt':[{}]", "prompt[0]", "invalid_value", "prompt[0]: found an object");
    refuse_completion("'prompt':['','','','','','','','','','','','','','','','',''],'n':8",
                      "prompt", "invalid_value", "prompt: found 17 prompts for 8 choices each");
}

static void tokenize(void **state)
{
    (void)state;
    struct openai_tokenize_request r;
    body_accept(body_tokenize,
                "{'model':'m','prompt':'a','add_special_tokens':true,'return_token_strs':true}",
                &r);
    assert_string_equal(r.prompt, "a");
    assert_int_equal(r.length, 1);
    assert_true(r.return_token_strs);
    openai_tokenize_clear(&r);
    body_accept(body_tokenize,
                "{'messages':[" USER "],'add_generation_prompt':false," TOOLS
                ",'chat_template_kwargs':{'enable_thinking':false}}",
                &r);
    assert_null(r.prompt);
    assert_false(r.return_token_strs || r.conversation.options.add_generation_prompt);
    assert_int_equal(r.conversation.options.enable_thinking, TEMPLATE_FALSE);
    assert_int_equal(json_array_size(r.conversation.tools), 3);
    openai_tokenize_clear(&r);
    body_accept(body_template, "{'messages':[" USER "]}", &r);
    assert_true(r.conversation.options.add_generation_prompt);
    assert_int_equal(json_array_size(r.conversation.messages), 1);
    openai_tokenize_clear(&r);
    body_refuse(body_tokenize, "{}", "prompt", "invalid_value", "prompt: found nothing");
    body_refuse(body_tokenize, "{'prompt':5}", "prompt", "invalid_value", "prompt: found 5");
    body_refuse(body_tokenize, "{'prompt':'a','messages':[" USER "]}", "prompt", "invalid_value",
                "prompt: found messages, too");
    body_refuse(body_tokenize, "{'prompt':'a','add_special_tokens':1}", "add_special_tokens",
                "invalid_value", "add_special_tokens: found 1");
    body_refuse(body_template, "{'prompt':'a'}", "messages", "invalid_value",
                "messages: found noth");
    body_refuse(body_template, "{'messages':[" USER "],'continue_final_message':true}",
                "continue_final_message", "unsupported_value",
                "continue_final_message: true is not");
    struct openai_detokenize_request d;
    body_accept(body_detokenize, "{'model':'m','tokens':[1,2]}", &d);
    assert_int_equal(d.n_ids, 2);
    assert_int_equal(d.ids[1], 2);
    openai_detokenize_clear(&d);
    body_accept(body_detokenize, "{'tokens':[]}", &d);
    assert_int_equal(d.n_ids, 0);
    openai_detokenize_clear(&d);
    body_refuse(body_detokenize, "{}", "tokens", "invalid_value", "tokens: found nothing");
    body_refuse(body_detokenize, "{'tokens':[1,true]}", "tokens[1]", "invalid_value",
                "tokens[1]: fou");
    body_refuse(body_detokenize, "{'tokens':'a'}", "tokens", "invalid_value",
                "tokens: found \"a\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(completions), cmocka_unit_test(tokenize)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
