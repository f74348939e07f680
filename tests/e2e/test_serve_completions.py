"""POST /v1/completions by the SDK: prompts in every form, echo, logprobs, suffix; wrong values."""

import json

import pytest
from serving import MODEL, OFF, gather_text, openai, text_of, user

PROMPT = "hot (adjective): used of"


def create(server, prompt=PROMPT, **fields):
    return server.client().completions.create(model=MODEL, prompt=prompt, temperature=0, **fields)


def test_text_and_defaults(server):
    answer = create(server)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.usage.completion_tokens == 16 and answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text.startswith(" physical heat")
    assert answer.usage.prompt_tokens == len(server.tokens(PROMPT))
    assert create(server, max_tokens=3).usage.completion_tokens == 3


def test_forms_of_the_prompt(server):
    """A text, its ids, and several of either: the same answers, numbered prompt by prompt."""
    other = "The capital of France is"
    texts = [create(server, prompt).choices[0].text for prompt in (PROMPT, other)]
    ids = [server.tokens(PROMPT), server.tokens(other)]
    assert create(server, ids[0]).choices[0].text == texts[0]
    for both in ([PROMPT, other], ids):
        answer = create(server, both, n=2)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in answer.choices] == [texts[0]] * 2 + [texts[1]] * 2
        assert answer.usage.prompt_tokens == len(ids[0]) + len(ids[1])
        assert answer.usage.completion_tokens == 4 * 16
    assert [choice.text for choice in create(server, [PROMPT]).choices] == texts[:1]


def test_control_tokens_count_in_raw_prompts(server):
    rendered = server.prompt([user("Define hot.")], **OFF)
    answer = create(server, rendered, max_tokens=50)
    assert answer.choices[0].text == "hot (adjective): used of physical heat."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == text_of(server.chat("Define hot.", **OFF))


def test_row_74_end_tokens_stop_raw_text_too(server):
    """Either of the model's two ends, whose text is never shown."""
    rendered = server.prompt([user("Define hot.")], **OFF)
    for end in ("<|im_end|>", "<|endoftext|>"):
        (token,) = server.tokens(end)
        answer = create(server, "Once", logit_bias={str(token): 100})
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")
        assert answer.usage.completion_tokens == 1
    answer = create(server, rendered, max_tokens=60, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 60 and "<|im_end|>" not in answer.choices[0].text


def test_empty_prompt_begins_a_text(server):
    answer = create(server, "")
    assert answer.usage.prompt_tokens == 1
    assert answer.choices[0].text == create(server, "<|endoftext|>").choices[0].text


def check_logprobs(logprobs, text, top):
    assert "".join(logprobs.tokens) == text
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == \
        len(logprobs.text_offset)
    place = 0
    for token, offset in zip(logprobs.tokens, logprobs.text_offset):
        assert offset == place
        place += len(token)
    for token, value, best in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        if value is not None:
            assert value <= 0 and token in best and top <= len(best) <= top + 1
            assert best[token] == value


@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs(server, top):
    answer = create(server, logprobs=top, max_tokens=8)
    (choice,) = answer.choices
    check_logprobs(choice.logprobs, choice.text, top)
    greedy = [max(best.values()) for best in choice.logprobs.top_logprobs]
    assert greedy == choice.logprobs.token_logprobs


def test_echo_and_its_logprobs(server):
    plain = create(server, max_tokens=6).choices[0].text
    assert create(server, max_tokens=6, echo=True).choices[0].text == PROMPT + plain
    (choice,) = create(server, max_tokens=6, echo=True, logprobs=2).choices
    assert choice.text == PROMPT + plain
    check_logprobs(choice.logprobs, choice.text, 2)
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert all(value is not None for value in choice.logprobs.token_logprobs[1:])
    ids = server.tokens(PROMPT)
    assert create(server, ids, max_tokens=6, echo=True).choices[0].text == PROMPT + plain


def test_prompt_is_scored(server):
    """echo without generating: the prompt's logprobs, which agree with those of its end generated."""
    answer = create(server, PROMPT + " physical heat", max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer.choices
    assert choice.text == PROMPT + " physical heat" and choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0
    generated = create(server, logprobs=0, max_tokens=2).choices[0].logprobs
    assert generated.tokens == [" physical", " heat"]
    assert choice.logprobs.token_logprobs[-2:] == pytest.approx(generated.token_logprobs, abs=0.01)


def test_suffix(server):
    """Prefix, suffix and middle in the order of the model's training."""
    answer = create(server, "The word", suffix=" is long.", max_tokens=5)
    wanted = "<|fim_prefix|>The word<|fim_suffix|> is long.<|fim_middle|>"
    assert answer.usage.prompt_tokens == len(server.tokens(wanted))
    assert answer.choices[0].text == create(server, wanted, max_tokens=5).choices[0].text
    assert create(server, suffix="", max_tokens=5).usage.prompt_tokens == len(server.tokens(PROMPT))


def test_streams(server):
    for fields in ({}, {"echo": True}, {"echo": True, "logprobs": 2}, {"logprobs": 5}, {"n": 2},
                   {"stop": " heat"}, {"suffix": " x"}, {"max_tokens": 0, "echo": True}):
        body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **fields}
        whole = server.complete(**{key: value for key, value in body.items() if key != "model"})
        events = server.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        streamed = gather_text(events)
        assert [choice["text"] for choice in streamed["choices"]] == [
            choice["text"] for choice in whole["choices"]]
        assert [choice["finish_reason"] for choice in streamed["choices"]] == [
            choice["finish_reason"] for choice in whole["choices"]]
        for one, other in zip(streamed["choices"], whole["choices"]):
            assert bool(one["logprobs"]) == bool(other["logprobs"])
            if one["logprobs"]:
                assert one["logprobs"]["tokens"] == other["logprobs"]["tokens"]
                assert one["logprobs"]["text_offset"] == other["logprobs"]["text_offset"]
        assert streamed["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    chunks = list(create(server, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 16
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"


WRONG = [
    ("prompt", [None, 5, {}, [], True], "prompt"), ("prompt", [[["x"]]], "prompt[0][0]"),
    ("prompt", [["x", 5]], "prompt[1]"), ("prompt", [[5, "x"], [5, -1], [5, 4083]], "prompt[1]"),
    ("prompt", [["x"] * 129], "prompt"), ("max_tokens", [-1, 1.5, "5"], None),
    ("logprobs", [6, -1, True], None), ("echo", [1, "true"], None), ("suffix", [5], None),
    ("best_of", [0, 2, "1"], None), ("n", [0, 9], None), ("stop", [[1], ""], None),
    ("stream", ["x"], None), ("temperature", [3], None), ("model", [5], None),
    ("response_format", [{"type": "json_object"}], None)]


@pytest.mark.parametrize("field,values,param", WRONG, ids=lambda value: str(value)[:30])
def test_wrong_values(server, field, values, param):
    for value in values:
        reply = server.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2,
                                                field: value})
        assert reply.status == 400, (value, reply.text)
        error = reply.error()
        wanted = param or field
        assert error["param"] == wanted or error["param"].startswith(wanted + "["), (value, error)


def test_wrong_together(server):
    for fields, param in (({"suffix": "x", "echo": True}, "suffix"),
                          ({"suffix": "x", "prompt": [5]}, "suffix"),
                          ({"stream_options": {"include_usage": True}}, "stream_options"),
                          ({"prompt": ["x"] * 20, "n": 8}, "prompt")):
        reply = server.post("/v1/completions", {"model": MODEL, "prompt": "x", **fields})
        assert reply.status == 400 and reply.error()["param"] == param, reply.text
    with pytest.raises(openai.NotFoundError):
        server.client().completions.create(model="other", prompt="x")


def test_default_body_of_a_client(server):
    body = {"model": MODEL, "prompt": [PROMPT], "best_of": 1, "echo": False, "logit_bias": {},
            "logprobs": None, "max_tokens": 4, "n": 1, "presence_penalty": 0, "frequency_penalty": 0,
            "seed": None, "stop": None, "stream": False, "suffix": None, "temperature": 0, "top_p": 1,
            "user": "u"}
    reply = server.post("/v1/completions", json.dumps(body))
    assert reply.status == 200 and reply.json["choices"][0]["text"].startswith(" physical heat")
