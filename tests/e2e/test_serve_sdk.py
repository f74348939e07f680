"""The server and the official SDK, plain and asynchronous: what `calla serve` is for. Endpoints
beside the two that generate, figures, and the default bodies of other clients."""

import asyncio
import json
import urllib.parse

import pytest
from serving import (COLD, MODEL, OFF, Server, assistant, cached, chat_body, comparable, gather,
                     message, openai, result, system, text_of, tool, user)

HOT = "hot (adjective): used of physical heat."
ASK = [user("Define hot.")]
WEATHER = tool("get_weather", city="string")
EMOJI = "Send me an emoji."


def plain(response):
    return json.loads(response.to_json(exclude_unset=False))


# ---- one answer, in every way --------------------------------------------------------------------

QUESTIONS = {
    "thinking": {"messages": ASK},
    "plain": {"messages": ASK, "reasoning_effort": "none"},
    "emoji": {"messages": [user(EMOJI)]},
    "tools": {"messages": [user("What is the weather in Rome?")], "tools": [WEATHER]},
    "logprobs": {"messages": ASK, "logprobs": True, "top_logprobs": 3},
    "length": {"messages": ASK, "max_completion_tokens": 20},
    "one token": {"messages": ASK, "max_tokens": 1, "reasoning_effort": "none"},
    "stop": {"messages": ASK, "stop": [" of phys"]},
    "several": {"messages": ASK, "n": 3, "temperature": 1.2, "seed": 4},
}


def collect(chunks):
    return gather([json.loads(chunk.to_json(exclude_unset=True)) for chunk in chunks])


@pytest.mark.parametrize("name", QUESTIONS)
def test_stream_equals_whole(server, name):
    """Text, reasoning, calls, finish reason, usage: by the SDK, its helper, and asynchronously."""
    fields = {"model": MODEL, **COLD, **QUESTIONS[name]}
    usage = {"stream_options": {"include_usage": True}}
    client = server.client()
    whole = plain(client.chat.completions.create(**fields))
    streamed = collect(client.chat.completions.create(**fields, **usage, stream=True))

    async def ask():
        async with server.async_client() as asynchronous:
            answers = await asyncio.gather(*(
                asynchronous.chat.completions.create(**fields) for _ in range(2)))
            stream = await asynchronous.chat.completions.create(**fields, **usage, stream=True)
            return [plain(answer) for answer in answers], collect([chunk async for chunk in stream])

    (one, other), async_streamed = asyncio.run(ask())
    wanted = clean(whole)
    assert [clean(answer) for answer in (streamed, one, other, async_streamed)] == [wanted] * 4
    check_answer(whole, QUESTIONS[name])
    with client.chat.completions.stream(**fields, **usage) as stream:
        if whole["choices"][0]["finish_reason"] == "length":
            with pytest.raises(openai.LengthFinishReasonError):
                stream.get_final_completion()
        else:
            assert clean(plain(stream.get_final_completion())) == wanted


def clean(answer):
    """Without what the SDK adds for members that did not come, and what differs by request."""
    def strip(value):
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items()
                    if item is not None and key not in ("parsed", "parsed_arguments", "index", "refusal")}
        if isinstance(value, float):
            return round(value, 3)  # prompts that are cut elsewhere differ in the last bits
        return [strip(item) for item in value] if isinstance(value, list) else value
    return strip(comparable(answer))


def check_answer(answer, fields):
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    assert answer["model"] == MODEL and answer["created"] > 1.7e9
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= cached(answer) < usage["prompt_tokens"]
    reasons = {"tools": "tool_calls", "max_tokens": "length", "max_completion_tokens": "length"}
    wanted = next((reasons[key] for key in fields if key in reasons), "stop")
    assert {choice["finish_reason"] for choice in answer["choices"]} == {wanted}


def test_row_56_usage_comes_in_one_chunk_without_choices(server):
    """And only where it is asked for."""
    body = chat_body(ASK, **OFF)
    for options, wanted in (({"include_usage": True}, 1), ({"include_usage": False}, 0), ({}, 0),
                            (None, 0), ({"include_usage": True, "include_obfuscation": True}, 1),
                            ({"include_usage": None}, 0)):
        events = server.events("/v1/chat/completions", {**body, "stream_options": options})
        with_usage = [event for event in events if event.get("usage")]
        assert len(with_usage) == wanted
        assert [event["choices"] for event in with_usage] == [[]] * wanted
        assert len([event for event in events if not event["choices"]]) == wanted
        gather(events)
    whole = server.chat(ASK, **OFF)["usage"]
    streamed = server.stream(ASK, **OFF, stream_options={"include_usage": True})["usage"]
    for usage in (whole, streamed):
        usage.pop("prompt_tokens_details")
    assert streamed == whole


def test_row_51_characters_arrive_whole(server):
    """The model's own emoji, of several tokens each."""
    events = server.events("/v1/chat/completions", chat_body(EMOJI, **OFF))
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == text_of(server.chat(EMOJI, **OFF))
    assert any(ord(letter) > 0xffff for letter in "".join(pieces))
    assert "\ufffd" not in "".join(pieces)


def test_two_turns_with_the_reasoning_sent_back(server):
    client = server.client()
    messages = [system("You answer questions of two turns."), *ASK]
    first = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    messages += [first.choices[0].message.to_dict(), user("And the opposite?")]
    assert messages[2]["reasoning_content"]
    second = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert second.choices[0].message.content == "The opposite of hot is cold."
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_tool_loop(server):
    """As the SDK's users write it, with the SDK's own objects sent back."""
    client = server.client()
    messages = [user("What is the weather in Rome?")]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER],
                                            temperature=0)
    turn = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and turn.content is None
    assert json.loads(turn.tool_calls[0].function.arguments) == {"city": "Rome"}
    messages += [turn, result('{"weather": "sunny"}', turn.tool_calls[0].id)]
    final = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER],
                                           temperature=0)
    assert final.choices[0].finish_reason == "stop" and final.choices[0].message.content


def test_disconnect_frees_the_place(server):
    for _ in range(3):
        stream = server.client().chat.completions.create(
            model=MODEL, messages=ASK, stream=True, extra_body={"ignore_eos": True})
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
    server.wait_idle()
    assert text_of(server.chat(ASK, **OFF)) == HOT


def test_row_69_eight_at_once(exact):
    """Requests of different lengths that run together answer as each does alone."""
    words = ["hot", "cold", "dog", "tree", "red", "water", "run", "house"]
    questions = [[system("Be brief. " * i), user(f"Define {word}.")]
                 for i, word in enumerate(words)]
    alone = [comparable(exact.chat(question, **OFF), usage=False) for question in questions]

    async def ask():
        async with exact.async_client() as client:
            return await asyncio.gather(*(client.chat.completions.create(
                **{**chat_body(question), "reasoning_effort": "none"}) for question in questions))

    together = [comparable(json.loads(answer.to_json(exclude_unset=True)), usage=False)
                for answer in asyncio.run(ask())]
    assert together == alone


# ---- the other endpoints -------------------------------------------------------------------------

def test_models(server):
    client = server.client()
    models = client.models.list()
    assert [model.id for model in models.data] == [MODEL] and models.object == "list"
    model = client.models.retrieve(MODEL)
    assert model.object == "model" and model.created > 1.7e9 and model.owned_by
    assert model.max_model_len == model.context_length == 32768


def test_aliases():
    names = ["gpt-4", "org/name with é"]
    with Server("--alias", names[0], "--alias", names[1], "--cache-ram", 0) as server:
        client = server.client()
        assert [model.id for model in client.models.list().data] == [MODEL, *names]
        for name in names:
            assert client.models.retrieve(name).id == name
            path = "/v1/models/" + urllib.parse.quote(name, safe="")
            assert server.get(path).json["id"] == name
            answer = client.chat.completions.create(model=name, messages=ASK, temperature=0,
                                                    reasoning_effort="none")
            assert answer.choices[0].message.content == HOT and answer.model == MODEL
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="org/name", messages=ASK)


def test_health_while_a_request_runs(server):
    connection, response = server.send("POST", "/v1/chat/completions", chat_body(
        ASK, stream=True, ignore_eos=True, max_tokens=20000))
    while b"reasoning" not in response.readline():
        pass
    assert server.get("/health").json == {"status": "ok"}
    assert server.metrics()["calla_requests_running"] == 1
    connection.close()
    server.wait_idle()


@pytest.mark.parametrize("text", [
    "", "hello world", "  two  spaces\n\n\tand more\r\n", "żółć 雪 👩‍👧 नमस्ते", "a\u0000b",
    "<|im_start|>user\nx<|im_end|>", "</think> <tool_call>", "12345.678e9"])
def test_tokenize_and_back(server, text):
    reply = server.post("/tokenize", {"model": MODEL, "prompt": text, "return_token_strs": True}).json
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == 32768
    back = server.post("/detokenize", {"model": MODEL, "tokens": reply["tokens"]}).json
    assert back == {"prompt": text}
    if text.isascii():
        assert "".join(reply["token_strs"]) == text


def test_tokenize_refusals(server):
    for path, body, param in (
            ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"),
            ("/tokenize", {"prompt": "x", "messages": ASK}, "prompt"),
            ("/tokenize", {"messages": []}, "messages"), ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": [5, -1]}, "tokens[1]"),
            ("/detokenize", {"tokens": [4083]}, "tokens[0]"),
            ("/detokenize", {"tokens": "x"}, "tokens"), ("/apply-template", {}, "messages"),
            ("/apply-template", {"messages": [user(5)]}, "messages[0].content")):
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error()["param"] == param, reply.text


@pytest.mark.parametrize("fields", [
    {}, OFF, {"tools": [WEATHER]}, {"add_generation_prompt": False}, {"preserve_thinking": True}])
def test_template_and_ids_agree_with_what_is_read(server, fields):
    messages = [system("S"), *ASK, assistant("A", reasoning_content="R"), user("Well?")]
    prompt = server.prompt(messages, **fields)
    ids = server.tokens(messages, **fields)
    assert server.tokens(prompt) == ids
    assert server.post("/detokenize", {"tokens": ids}).json["prompt"] == prompt
    if "add_generation_prompt" in fields:
        assert prompt.endswith("Well?<|im_end|>\n")
    else:
        assert server.chat(messages, **fields, max_tokens=1)["usage"]["prompt_tokens"] == len(ids)
        completed = server.complete(ids, max_tokens=8)["choices"][0]["text"]
        assert completed == server.complete(prompt, max_tokens=8)["choices"][0]["text"]


def test_timings(server):
    for answer in (server.chat(ASK), server.events("/v1/chat/completions", chat_body(ASK))[-1],
                   server.complete("Once"),
                   server.events("/v1/chat/completions", chat_body(
                       ASK, stream_options={"include_usage": True}))[-1]):
        timings = answer["timings"]
        if answer.get("usage"):
            usage = answer["usage"]
            assert timings["predicted_n"] == usage["completion_tokens"]
            assert timings["cache_n"] == cached(answer)
            assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
        assert timings["predicted_ms"] > 0 and timings["prompt_ms"] > 0
        rate = 1000 * timings["prompt_n"] / timings["prompt_ms"]
        assert timings["prompt_per_second"] == pytest.approx(rate, rel=0.01)


def test_metrics(server):
    """What was said to clients is what was done: prompt less cached is what the model read."""
    before = server.wait_idle()
    answers = [server.chat(ASK, **OFF), server.chat(ASK, **OFF), server.chat(ASK, n=3, seed=1),
               server.stream(ASK, stream_options={"include_usage": True}),
               server.complete(["One", "Two, three"], n=2, max_tokens=5),
               server.chat(ASK, max_tokens=3)]
    server.post("/v1/chat/completions", {})
    after = server.wait_idle()
    more = {name: after[name] - before.get(name, 0) for name in after}
    usages = [answer["usage"] for answer in answers]
    read = sum(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
               for usage in usages)
    assert more["calla_generated_tokens_total"] == sum(one["completion_tokens"] for one in usages)
    assert more['calla_requests_total{status="200"}'] >= len(answers)
    assert more['calla_requests_total{status="400"}'] == 1
    assert more["calla_time_to_first_token_seconds_count"] == 1 + 1 + 3 + 1 + 4 + 1
    assert more["calla_decode_tokens_per_second_count"] > 0
    # of one prompt's choices the first one's reading is what the usage tells
    assert read <= more["calla_prompt_tokens_read_total"] <= read + 4 * 2 + 2 * 1 + 16
    assert after["calla_cache_bytes"] <= after["calla_cache_budget_bytes"]
    assert after["calla_memory_resident_bytes"] > 1e6
    text = server.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain")
    for line in text.text.splitlines():
        if not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            family = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            assert f"# TYPE {family} " in text.text, line


def test_metrics_of_single_choices_are_exact(server):
    before = server.wait_idle()
    answers = [server.chat([system("A prompt of its own."), user(f"Define {word}.")], **OFF)
               for word in ("hot", "cold", "hot", "dog")]
    after = server.wait_idle()
    told = sum(answer["usage"]["prompt_tokens"] - cached(answer) for answer in answers)
    assert after["calla_prompt_tokens_read_total"] - before["calla_prompt_tokens_read_total"] == told
    told = sum(cached(answer) for answer in answers)
    assert told > 0
    assert after["calla_prompt_tokens_cached_total"] - before["calla_prompt_tokens_cached_total"] == told


def test_most_rows_in_a_step():
    with Server("--parallel", 16, "--max-context", 512, "--cache-ram", 0) as server:
        async def ask():
            async with server.async_client() as client:
                await asyncio.gather(*(client.chat.completions.create(
                    model=MODEL, messages=ASK, max_tokens=60, extra_body={"ignore_eos": True})
                    for _ in range(16)))
        asyncio.run(ask())
        assert server.wait_idle()["calla_decode_rows_max"] == 16


def test_log_line_of_a_request(server):
    since = len(server.lines)
    answer = server.ask("POST", "/v1/chat/completions", chat_body(ASK, **OFF),
                        headers={"x-request-id": "my-own-id"})
    assert answer.headers["x-request-id"] == "my-own-id"
    line = server.wait_line("my-own-id", since).string
    usage = answer.json["usage"]
    for wanted in ("POST /v1/chat/completions 200", f"prompt {usage['prompt_tokens']} ",
                   f"generated {usage['completion_tokens']} ", "finish stop", "tok/s"):
        assert wanted in line, line


def test_json_log_reasoning_field_and_preset():
    with Server("--log", "json", "--reasoning-field", "reasoning", "--preset", "chat",
                "--cache-ram", 0) as server:
        answer = server.chat(ASK)
        assert text_of(answer) == HOT and "reasoning" not in message(answer)
        answer = message(server.chat(ASK, enable_thinking=True))
        assert answer["reasoning"] == answer["reasoning_content"] != ""
        deltas = [event["choices"][0]["delta"] for event in server.events(
            "/v1/chat/completions", chat_body(ASK, enable_thinking=True))]
        assert "".join(delta.get("reasoning", "") for delta in deltas) == answer["reasoning"]
        assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
        lines = [json.loads(line) for line in server.lines if line and line.startswith("{")]
        assert lines[0]["path"] == "/v1/chat/completions" and lines[0]["status"] == 200
        assert lines[0]["finish"] == "stop" and lines[0]["generated_tokens"] > 3


def test_what_it_says_when_it_starts():
    """The plan in one line, and a warning where anybody may come in."""
    with Server("--parallel", 2, "--max-context", "2K", "--cache-ram", "10M") as server:
        assert server.wait_line(r"memory: .* for 2 sequences of 2048 tokens: .*prefix cache")
        assert not [line for line in server.lines if "warning" in line]
    for host, key, warned in (("0.0.0.0", (), True), ("0.0.0.0", ("--api-key", "x"), False),
                              ("localhost", (), False)):
        with Server("--host", host, *key, "--max-context", 256, "--cache-ram", 0) as server:
            assert server.get("/health").status == 200
            assert bool([line for line in server.lines if "warning" in line]) == warned


# ---- other clients -------------------------------------------------------------------------------

LANGCHAIN = {"model": MODEL, "messages": [
    {"content": "Be brief.", "role": "system", "name": None}, {"content": "Define hot.", "role": "user"}],
    "stream": False, "n": 1, "temperature": 0, "top_p": None, "max_tokens": None, "stop": None,
    "presence_penalty": None, "frequency_penalty": None, "seed": None, "logprobs": None,
    "top_logprobs": None, "logit_bias": None, "user": None, "tools": None, "tool_choice": None,
    "parallel_tool_calls": None, "response_format": None, "stream_options": None, "store": None,
    "metadata": None, "functions": None, "function_call": None, "service_tier": None,
    "reasoning_effort": None, "extra_headers": None, "lc_id": ["langchain", "x"], "verbose": False}

VERCEL = {"model": MODEL, "max_tokens": 200, "temperature": 0, "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Define hot."}]}],
    "tools": [{"type": "function", "function": {
        "name": "get_weather", "description": "Weather", "strict": False, "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": False}}}],
    "tool_choice": "auto", "parallel_tool_calls": True, "store": False, "metadata": {},
    "user": "someone", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("body", [LANGCHAIN, VERCEL], ids=["langchain", "vercel"])
def test_row_65_default_bodies_of_other_clients(server, body):
    if body["stream"]:
        answer = gather(server.events("/v1/chat/completions", body))
    else:
        reply = server.post("/v1/chat/completions", body)
        assert reply.status == 200, reply.text
        answer = reply.json
    assert text_of(answer) == HOT and answer["usage"]["total_tokens"] > 0


def test_row_65_headers_of_other_clients(server):
    reply = server.post("/v1/chat/completions", chat_body(ASK, **OFF), headers={
        "Content-Type": "application/json; charset=utf-8", "Authorization": "Bearer sk-anything",
        "OpenAI-Organization": "o", "OpenAI-Project": "p", "X-Stainless-Lang": "python",
        "Accept": "application/json", "User-Agent": "ai-sdk/openai-compatible/1.0"})
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.text.encode())


