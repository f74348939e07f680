"""The server with a model that answers what a test says: requests that broke other engines (each
test's name has the number of its row), and whatever no small model would write."""

import json

import pytest
from serving import (OFF, cached, calls, chat_body, comparable, message, openai, result, text_of,
                     tool, user)

WEATHER = tool("get_weather", city="string")
WRITE = tool("write_file", path="string", text="string")
TOOLS = {"tools": [WEATHER, WRITE]}


def call_text(name, **arguments):
    """A call as the model writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n"
                         for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def answers(replay, text, messages="Hello.", **fields):
    """The answer to a request, which is the same whole and streamed, and with each byte a token."""
    whole = None
    for how in ({}, {"bytes": True}):
        replay.say(text, **how)
        now = replay.chat(messages, **fields)
        streamed = replay.stream(messages, **fields, stream_options={"include_usage": True})
        assert comparable(streamed) == comparable(now)
        if whole and not {"max_tokens", "thinking_budget"} & set(fields):
            assert comparable(now, usage=False) == comparable(whole, usage=False)
        whole = whole or now
    return whole


def finish(answer):
    return answer["choices"][0]["finish_reason"]


# ---- tool calls ----------------------------------------------------------------------------------

def test_row_26_call_inside_an_unclosed_thought(replay):
    answer = answers(replay, "plan " + call_text("get_weather", city="Rome"), **TOOLS)
    assert message(answer)["reasoning_content"] == "plan "
    assert calls(answer) == [("get_weather", {"city": "Rome"})]
    assert text_of(answer) is None and finish(answer) == "tool_calls"


def test_row_27_streamed_call_behind_a_thought(replay):
    replay.say("I look.\n</think>\n\n" + call_text("get_weather", city='São "Paulo" \\ 雪'))
    stream = replay.client().chat.completions.create(
        **chat_body("Weather?"), tools=[WEATHER], stream=True)
    arguments, reasoning, reasons = "", "", []
    for chunk in stream:
        (choice,) = chunk.choices
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        assert not choice.delta.content
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            arguments += call.function.arguments or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert reasoning == "I look." and reasons == ["tool_calls"]
    assert json.loads(arguments) == {"city": 'São "Paulo" \\ 雪'}


@pytest.mark.parametrize("value", [
    "a </parameter> b", "a </tool_call> b", "x </function> y", "<parameter=path>", "<tool_call>",
    "def f():\n    return '</parameter>'", "</think>", "<think>"])
def test_row_28_tags_inside_a_value(replay, value):
    answer = answers(replay, call_text("write_file", path="p", text=value), **TOOLS, **OFF)
    assert calls(answer) == [("write_file", {"path": "p", "text": value})]


def test_row_30_nothing_is_unescaped(replay):
    value = 'a && b < c "q" \' &lt; \\n \\u0041 %20'
    answer = answers(replay, call_text("write_file", path="p", text=value), **TOOLS, **OFF)
    assert calls(answer) == [("write_file", {"path": "p", "text": value})]


def test_row_31_parameter_without_its_bracket(replay):
    text = "<tool_call>\n<function=write_file>\n<parameter=path\nx\n</parameter>\n</function>\n" \
           "</tool_call>"
    answer = answers(replay, text, **TOOLS, **OFF)
    assert "tool_calls" not in message(answer) and text_of(answer) == text
    assert finish(answer) == "stop"


@pytest.mark.parametrize("thinking", [True, False])
def test_row_33_parallel_calls_have_their_indexes(replay, thinking):
    text = ("Both.\n</think>\n\n" if thinking else "") + "\n".join(
        call_text("get_weather", city=city) for city in ("Paris", "Rome", "Oslo"))
    answer = answers(replay, text, **TOOLS, enable_thinking=thinking)
    assert calls(answer) == [("get_weather", {"city": city}) for city in ("Paris", "Rome", "Oslo")]
    assert finish(answer) == "tool_calls"


def test_parallel_tool_calls_false_ends_after_the_first(replay):
    text = "Both.\n</think>\n\n" + "\n".join(
        call_text("get_weather", city=city) for city in ("Paris", "Rome"))
    answer = answers(replay, text, **TOOLS, parallel_tool_calls=False)
    assert calls(answer) == [("get_weather", {"city": "Paris"})]
    assert finish(answer) == "tool_calls"


def test_row_34_identifiers_are_unique_over_turns(replay):
    replay.say("\n".join(call_text("get_weather", city=city) for city in ("Paris", "Rome")))
    messages, seen = [user("Weather?")], []
    for _ in range(3):
        turn = message(replay.chat(messages, **TOOLS, **OFF))
        identifiers = [call["id"] for call in turn["tool_calls"]]
        assert all(one.startswith("call_") and len(one) == 29 for one in identifiers)
        messages += [turn, *(result("Sunny.", one) for one in identifiers), user("Again?")]
        seen += identifiers
    assert len(set(seen)) == 6


def test_row_37_one_newline_off_each_end(replay):
    answer = answers(replay, call_text("write_file", path="p", text="\n\n  def f():\n\n"),
                     **TOOLS, **OFF)
    assert calls(answer) == [("write_file", {"path": "p", "text": "\n\n  def f():\n\n"})]


def test_call_that_the_limit_cuts_is_dropped(replay):
    text = "Well. " + call_text("write_file", path="p", text="long " * 30)
    replay.say(text)
    for limit in range(6, 60, 6):
        answer = replay.chat("Write.", **TOOLS, **OFF, max_tokens=limit)
        assert "tool_calls" not in message(answer) and finish(answer) == "length"
        assert text_of(answer) == "Well."


def test_tags_are_text_without_tools(replay):
    text = call_text("get_weather", city="Rome")
    for more in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        answer = answers(replay, text, **OFF, **more)
        assert text_of(answer) == text and finish(answer) == "stop"


def test_content_and_calls_together(replay):
    answer = answers(replay, "First.\n\n" + call_text("get_weather", city="Rome") + "\nThen.",
                     **TOOLS, **OFF)
    assert text_of(answer) == "First.\nThen." and len(calls(answer)) == 1


TYPED = {"type": "function", "function": {"name": "typed", "parameters": {
    "type": "object", "properties": {
        "i": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"},
        "l": {"type": "array"}, "o": {"type": "object"}, "s": {"type": "string"},
        "n": {"type": ["string", "null"]}}}}}


def test_arguments_have_the_types_of_the_schema(replay):
    answer = answers(replay, call_text("typed", i=" 12 ", x="1.5e3", b="True", l='[1, {"a": null}]',
                                       o='{"k": "v"}', s="12", n="null", other="7"),
                     tools=[TYPED], **OFF)
    assert calls(answer) == [("typed", {"i": 12, "x": 1500.0, "b": True, "l": [1, {"a": None}],
                                        "o": {"k": "v"}, "s": "12", "n": None, "other": "7"})]


@pytest.mark.parametrize("preserve", [True, False])
def test_row_24_ten_steps_of_a_tool_loop(replay, preserve):
    messages = [user("Weather everywhere?")]
    for step in range(10):
        replay.say(f"Now {step}.\n</think>\n\n" + call_text("get_weather", city=f"City {step}"))
        turn = message(replay.chat(messages, tools=[WEATHER], preserve_thinking=preserve))
        assert json.loads(turn["tool_calls"][0]["function"]["arguments"]) == {"city": f"City {step}"}
        messages += [turn, result("Sunny.", turn["tool_calls"][0]["id"])]
    prompt = replay.prompt(messages, tools=[WEATHER], preserve_thinking=preserve)
    for step in range(10):
        assert f"<parameter=city>\nCity {step}\n</parameter>" in prompt
        assert f"<think>\nNow {step}.\n</think>" in prompt  # within one turn of the user
    prompt = replay.prompt([*messages, assistant_end(), user("Thanks.")], tools=[WEATHER],
                           preserve_thinking=preserve)
    assert prompt.count("Now ") == (10 if preserve else 0)
    assert prompt.count("<parameter=city>\nCity ") == 10


def assistant_end():
    return {"role": "assistant", "content": "All sunny."}


@pytest.mark.parametrize("choice,names", [
    ("required", {"get_weather", "write_file"}),
    ({"type": "function", "function": {"name": "write_file"}}, {"write_file"}),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_weather"}}]}}, {"get_weather"})])
@pytest.mark.parametrize("thinking", [True, False])
def test_row_36_a_call_is_forced(replay, choice, names, thinking):
    """The model never begins a call, it only closes what was begun for it."""
    replay.say(("No.\n</think>\n\n" if thinking else "") + "</tool_call>" * 40)
    fields = {**TOOLS, "tool_choice": choice, "enable_thinking": thinking, "max_tokens": 60,
              "parallel_tool_calls": False}
    whole, streamed = replay.chat("Hello.", **fields), replay.stream("Hello.", **fields)
    assert comparable(whole, usage=False) == comparable(streamed, usage=False)
    assert {name for name, _ in calls(whole)} and {name for name, _ in calls(whole)} <= names
    assert finish(whole) == "tool_calls" and not text_of(whole)


@pytest.mark.parametrize("wish", ["I will not call anything, whatever you say.", "",
                                  "</tool_call>", "<" * 50, ">" * 50, " " * 90, "\n" * 90, "é" * 99])
def test_row_36_a_call_comes_whatever_the_model_wants(replay, wish):
    """Also when it wants to end, or to write something else, behind the opening."""
    for how in ({}, {"bytes": True}):
        replay.say(wish, **how)
        answer = replay.chat("Hello.", **TOOLS, **OFF, tool_choice="required", max_tokens=400)
        assert {name for name, _ in calls(answer)} <= {"get_weather", "write_file"}
        assert calls(answer) and finish(answer) == "tool_calls"


def test_row_36_none_does_not_call(replay):
    replay.say("Hm.\n</think>\n\nNo.")
    assert "get_weather" not in replay.prompt("Hello.", **TOOLS, tool_choice="none")
    answer = answers(replay, "Hm.\n</think>\n\nNo.", **TOOLS, tool_choice="none")
    assert text_of(answer) == "No."


def test_allowed_tools_auto_leaves_the_others_out(replay):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "get_weather"}}]}}
    prompt = replay.prompt("Hello.", **TOOLS, tool_choice=choice)
    assert "get_weather" in prompt and "write_file" not in prompt
    assert text_of(answers(replay, "No.", **TOOLS, tool_choice=choice, **OFF)) == "No."


# ---- thinking ------------------------------------------------------------------------------------

def test_row_39_cut_in_mid_thought(replay):
    answer = answers(replay, "I think and think and think. " * 20, max_tokens=20)
    assert not text_of(answer) and message(answer)["reasoning_content"].startswith("I think")
    assert finish(answer) == "length"
    assert answer["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("budget", [0, 1, 2, 32, 200])
def test_row_41_thinking_budget(replay, budget):
    text = "so, hm, well, but then, " * 60 + "at last"
    answer = answers(replay, text, thinking_budget=budget)
    reasoning = message(answer).get("reasoning_content", "")
    used = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert max(0, budget - 2) <= used <= budget
    assert text_of(answer).endswith("at last") and finish(answer) == "stop"
    assert "think>" not in reasoning + text_of(answer)
    assert text.startswith(reasoning) and bool(reasoning) == (budget > 1)


def test_row_41_budget_that_is_not_spent(replay):
    answer = answers(replay, "Short.\n</think>\n\nYes.", thinking_budget=100)
    assert message(answer)["reasoning_content"] == "Short." and text_of(answer) == "Yes."


def test_row_43_all_tokens_spent_in_thought(replay):
    replay.say("Hm. ", endless=True)
    answer = replay.chat("Hard.", max_tokens=256)
    assert finish(answer) == "length" and not text_of(answer)
    assert message(answer)["reasoning_content"]
    usage = answer["usage"]
    assert usage["completion_tokens"] == 256
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 256


def test_thought_that_opens_itself(replay):
    answer = answers(replay, "<think>\nHm.\n</think>\n\nYes.", **OFF)
    assert message(answer)["reasoning_content"] == "Hm." and text_of(answer) == "Yes."


def test_usage_counts_tags_and_the_end(replay):
    text = "Hm.\n</think>\n\nYes."
    tokens = replay.say(text)
    usage = replay.chat("Hello.")["usage"]
    assert usage["completion_tokens"] == tokens + 1  # <|im_end|>
    thought = len(replay.tokens("Hm.\n"))
    assert usage["completion_tokens_details"]["reasoning_tokens"] == thought


# ---- text ----------------------------------------------------------------------------------------

CHARACTERS = "👩‍👩‍👧‍👦 🏳️‍🌈 สวัสดีครับ नमस्ते क्षत्रिय 𠮷野家 龘 é 한국어 \U0001F1EA\U0001F1FA"


def test_row_51_characters_are_never_split(replay):
    replay.say(CHARACTERS, bytes=True)
    events = replay.events("/v1/chat/completions", chat_body("Emoji.", **OFF))
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == CHARACTERS and "\ufffd" not in "".join(pieces)
    assert {len(piece.strip(" ")) for piece in pieces if piece} == {1}  # as early as can be
    answer = answers(replay, CHARACTERS, **OFF)
    assert text_of(answer) == CHARACTERS
    thought = answers(replay, CHARACTERS + "\n</think>\n\n" + CHARACTERS)
    assert message(thought)["reasoning_content"] == text_of(thought) == CHARACTERS
    value = answers(replay, call_text("write_file", path="p", text=CHARACTERS), **TOOLS, **OFF)
    assert calls(value)[0][1]["text"] == CHARACTERS


def test_row_51_cut_inside_a_character(replay):
    """What the limit leaves of a character is one replacement character, streamed as whole."""
    replay.say("é", bytes=True)
    whole = replay.chat("Emoji.", **OFF, max_tokens=1)
    assert text_of(whole) == "\ufffd"
    assert comparable(replay.stream("Emoji.", **OFF, max_tokens=1), usage=False) == \
        comparable(whole, usage=False)


def test_row_51_logprobs_of_a_split_character(replay):
    replay.say("€", bytes=True)
    answer = replay.chat("Sign.", **OFF, logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == "€".encode()
    assert [entry["token"] for entry in entries] == ["\ufffd"] * 3


@pytest.mark.parametrize("stop,shown", [
    ("\n\nEND", "Hello"), ("ND1", "Hello\n\nE"), (["zzz", "END12"], "Hello\n\n"),
    (["ND12x", "D123"], "Hello\n\nEN"), ("Hello", ""), ("NEVER", "Hello\n\nEND123 more"),
    (["o", "lo"], "Hel"), ("123 more", "Hello\n\nEND"), ("e more", "Hello\n\nEND123 more")])
def test_row_53_stop_strings_are_cut_exactly(replay, stop, shown):
    answer = answers(replay, "Hello\n\nEND123 more", stop=stop, **OFF)
    assert (text_of(answer) or "") == shown and finish(answer) == "stop"
    for how in ({}, {"bytes": True}):
        replay.say("Hello\n\nEND123 more", **how)
        pieces = [event["choices"][0]["delta"].get("content", "") for event in replay.events(
            "/v1/chat/completions", chat_body("Hello.", stop=stop, **OFF))]
        assert "".join(pieces) == shown
    completed = replay.complete("Once", stop=stop, max_tokens=100)
    assert completed["choices"][0]["text"] == shown
    assert completed["choices"][0]["finish_reason"] == "stop"


def test_row_53_stop_ends_the_generation(replay):
    replay.say("Hello END " + "more " * 400)
    usage = replay.chat("Hello.", stop="END", **OFF)["usage"]
    assert usage["completion_tokens"] < 100
    replay.wait_idle()


def test_row_55_stop_is_not_looked_for_in_thoughts_and_calls(replay):
    text = "One\nTwo.\n</think>\n\n" + call_text("get_weather", city="Rome")
    answer = answers(replay, text, **TOOLS, stop=["\n", "Rome", "Two"])
    assert message(answer)["reasoning_content"] == "One\nTwo."
    assert calls(answer) == [("get_weather", {"city": "Rome"})]
    assert finish(answer) == "tool_calls"
    answer = answers(replay, "One\nTwo.\n</think>\n\nThree\nFour", stop="\n")
    assert message(answer)["reasoning_content"] == "One\nTwo." and text_of(answer) == "Three"


def test_control_tokens_leave_no_text(replay):
    answer = answers(replay, "Hello<|im_start|> there", **OFF)
    assert text_of(answer) == "Hello there"


# ---- limits --------------------------------------------------------------------------------------

def test_min_tokens_and_ignore_eos(replay):
    replay.say("Yes.")
    assert replay.chat("Hello.", **OFF)["usage"]["completion_tokens"] < 10
    longer = replay.chat("Hello.", **OFF, min_tokens=20, max_tokens=100)
    assert longer["usage"]["completion_tokens"] == 21 and finish(longer) == "stop"
    ignoring = replay.chat("Hello.", **OFF, ignore_eos=True, max_tokens=30)
    assert ignoring["usage"]["completion_tokens"] == 30 and finish(ignoring) == "length"
    assert text_of(ignoring) == "Yes."  # the ends that it goes on behind have no text


def test_stop_token_ids(replay):
    (comma,) = replay.tokens(",")
    answer = answers(replay, "One, two, three", **OFF, stop_token_ids=[comma])
    assert text_of(answer) == "One" and finish(answer) == "stop"


def test_device_error_before_and_in_a_stream(replay):
    """It says what failed, in a stream as an event, and the next request works."""
    replay.say("Hello there, how are you?", fail_at=3)
    reply = replay.post("/v1/chat/completions", chat_body("Hello.", **OFF))
    assert reply.status == 500 and reply.error()["type"] == "server_error"
    assert reply.error()["message"] == "replay: the device failed"
    assert reply.headers["x-should-retry"] == "false"
    with pytest.raises(openai.APIError) as caught:
        for _ in replay.client().chat.completions.create(**chat_body("Hello."), stream=True):
            pass
    assert caught.value.message == "replay: the device failed"
    raw = replay.post("/v1/chat/completions", chat_body("Hello.", stream=True))
    assert raw.status == 200 and raw.text.endswith("data: [DONE]\n\n")
    assert set(json.loads(raw.text.split("data: ")[-2])["error"]) == {
        "message", "type", "param", "code"}
    assert text_of(answers(replay, "Good.", **OFF)) == "Good."


def test_client_leaves_while_the_engine_is_in_a_step(replay):
    """What the engine still looks at in that step, the request's biases, stop ids and budget, is
    there until the step is over (which a sanitizer's build sees)."""
    since = len(replay.lines)
    replay.say("Hello there, how are you? " * 20, hold_at=5)
    connection, response = replay.send("POST", "/v1/chat/completions", chat_body(
        "Hello.", stream=True, **TOOLS, tool_choice="required", thinking_budget=100,
        logit_bias={"5": 1}, presence_penalty=1, stop_token_ids=[7], min_tokens=2))
    while b"reasoning_content" not in response.readline():
        pass
    connection.close()
    response.close()
    replay.wait_line("client gone", since)
    replay.say("", go=True)
    replay.wait_idle()
    assert text_of(answers(replay, "Good.", **OFF)) == "Good."


def test_keep_alive_during_silence(replay):
    """Comments come while nothing else does, and the SDK passes over them."""
    replay.say("Hello there.", hold_at=1)
    connection, response = replay.send("POST", "/v1/chat/completions",
                                       chat_body("Hello.", stream=True, **OFF))
    stream = replay.client().chat.completions.create(**chat_body("Hello.", **OFF), stream=True)
    head = b""
    while b"\n: keep-alive\n\n" not in head:
        line = response.readline()
        assert line, head
        head += line
    replay.say("", go=True)
    assert b"[DONE]" in response.read()
    connection.close()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello there."


def test_same_prompt_is_cached_but_for_its_last_token(replay):
    replay.say("Yes.")
    messages = [user("This is a prompt of its own, asked twice.")]
    replay.chat(messages, **OFF)
    again = replay.chat(messages, **OFF)
    assert cached(again) >= again["usage"]["prompt_tokens"] - 4


