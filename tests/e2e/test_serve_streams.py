"""Streams are the whole answers in pieces: 200 generated requests with any mix of fields, eight at
a time, by the official SDK. The server keeps no cache and reads each prompt in one piece, so that
two runs of a request are the same bits."""

import asyncio
import json
import random

import pytest
from serving import (MODEL, Server, assistant, called, comparable, gather, gather_text, result, system,
                     tool, user)

TOOLS = [tool("get_weather", city="string"), tool("add", a="integer", b="integer"),
         tool("set_timer", minutes="number", label="string")]
WORDS = ["hot", "dog", "useful", "water", "tree", "small", "run", "bank"]
STOPS = ["e", " of", ".", "\n", "a\n", "The ", "city", "😀", "zzz", "used of phys", "</", "adjective"]


@pytest.fixture(scope="module")
def plain():
    with Server("--cache-ram", 0, "--parallel", 8, "--chunk-seconds", 60, "--queue", 300,
                "--max-context", "8K") as running:
        for _ in range(2):  # it learns to read long chunks
            running.complete("a " * 2000, max_tokens=1)
        yield running


def messages(pick):
    word = pick.choice(WORDS)
    ask = user(pick.choice([
        f"Define {word}.", f"What is the opposite of {word}?", "Send me an emoji.", "Tell me a word.",
        "What is the weather in Rome?", "What is the weather in Oslo and in Paris?", "Say hello in Greek.",
        f"Use {word} in a sentence.", "Add 2 and 3.", "Count to ten.", "Žluťoučký kůň 雪 👩‍👧?"]))
    before = pick.choice([
        [], [], [system("Be brief.")], [user("Define cold."), assistant("cold: not hot.")],
        [user("Define cold."), assistant("cold: not hot.", reasoning_content="Easy.")],
        [user("Weather?"), called("get_weather", {"city": "Rome"}), result("Sunny.")]])
    if before and before[-1]["role"] == "tool":
        return before
    return [*before, ask]


def sampling(pick):
    """Fields that chat and text completions share."""
    fields = {"temperature": pick.choice([0, 0, 0.7, 1.5, 2]), "seed": pick.randrange(-9, 2**40)}
    options = {
        "top_k": lambda: pick.choice([-1, 0, 1, 5, 50]), "top_p": lambda: pick.choice([0.3, 0.9, 1]),
        "min_p": lambda: pick.choice([0, 0.05, 0.5]), "stop": lambda: pick.sample(STOPS, pick.randint(1, 4)),
        "presence_penalty": lambda: pick.choice([-1, 0.5, 2]),
        "frequency_penalty": lambda: pick.choice([-1, 0.5, 2]),
        "repetition_penalty": lambda: pick.choice([0.9, 1.3]),
        "logit_bias": lambda: {str(pick.randrange(4083)): pick.choice([-100, 5, 20]) for _ in range(3)},
        "min_tokens": lambda: 8, "ignore_eos": lambda: True,
        "stop_token_ids": lambda: [pick.randrange(300) for _ in range(5)],
        "n": lambda: pick.randint(1, 3)}
    for name, value in options.items():
        if pick.random() < 0.2:
            fields[name] = value()
    return fields


def chat(pick):
    fields = {"messages": messages(pick), **sampling(pick)}
    fields[pick.choice(["max_tokens", "max_completion_tokens"])] = pick.choice([1, 2, 9, 30, 60])
    fields.update(pick.choice([{}, {"reasoning_effort": "none"}, {"enable_thinking": False},
                               {"chat_template_kwargs": {"enable_thinking": False}},
                               {"thinking_budget": pick.choice([0, 1, 5, 20])},
                               {"preserve_thinking": True}]))
    if pick.random() < 0.3:
        fields.update(logprobs=True, top_logprobs=pick.choice([0, 1, 20]))
    if pick.random() < 0.5:
        fields["tools"] = pick.sample(TOOLS, pick.randint(1, 3))
        name = fields["tools"][0]["function"]
        fields.update(pick.choice([
            {}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "function": {"name": name["name"]}}},
            {"parallel_tool_calls": False}]))
    if fields.get("min_tokens", 0) > max(fields.get("max_tokens", 0),
                                         fields.get("max_completion_tokens", 0)):
        del fields["min_tokens"]
    return fields


def completion(pick):
    prompts = ["Once", "The word hot", "hot (adjective):", "<|im_start|>user\nSend me an emoji.<|im_end|>\n"
               "<|im_start|>assistant\n", "雪 👩‍👧", "", [791, 12], [[100, 200], [300]], ["One", "Two"]]
    fields = {"prompt": pick.choice(prompts), "max_tokens": pick.choice([8, 16, 40]), **sampling(pick)}
    if pick.random() < 0.4:
        fields["logprobs"] = pick.choice([0, 2, 5])
    if pick.random() < 0.3:
        fields["echo"] = True
    elif pick.random() < 0.3 and isinstance(fields["prompt"], str):
        fields["suffix"] = " and so on."
    return fields


def known(create, fields):
    """The SDK's own arguments, and the others in its extra_body."""
    extra = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids",
             "enable_thinking", "chat_template_kwargs", "thinking_budget", "preserve_thinking")
    own = {name: value for name, value in fields.items() if name not in extra}
    return create(model=MODEL, **own,
                  extra_body={name: value for name, value in fields.items() if name in extra})


async def both(create, fields, put_together):
    whole = json.loads((await known(create, fields)).to_json(exclude_unset=True))
    stream = await known(create, {**fields, "stream": True, "stream_options": {"include_usage": True}})
    chunks = [json.loads(chunk.to_json(exclude_unset=True)) async for chunk in stream]
    return whole, put_together(chunks)


def check(fields, whole):
    """What holds for any answer."""
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    prompts = fields.get("prompt")
    several = isinstance(prompts, list) and not isinstance(prompts[0], int)
    n = fields.get("n", 1) * (len(prompts) if several else 1)
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    assert [choice["index"] for choice in whole["choices"]] == list(range(n))
    assert n <= usage["completion_tokens"] <= n * limit
    for choice in whole["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
        tools = choice.get("message", {}).get("tool_calls", [])
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        if choice["finish_reason"] != "length":
            assert bool(tools) == (choice["finish_reason"] == "tool_calls")
        shown = text[len(prompts):] if fields.get("echo") and isinstance(prompts, str) else text
        if not fields.get("echo"):
            assert not any(stop in shown for stop in fields.get("stop", [])) or tools
        for call in tools:
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert fields["tool_choice"] != "none" if "tool_choice" in fields else True
        if fields.get("parallel_tool_calls") is False:
            assert len(tools) <= 1


def drop_cut_call(streamed, whole):
    """A call that the limit cut is no part of the whole answer; a stream, which cannot take back
    what it gave, leaves its arguments open."""
    calls = streamed.get("message", {}).get("tool_calls", [])
    if len(calls) > len(whole.get("message", {}).get("tool_calls", [])):
        assert streamed["finish_reason"] == "length"
        with pytest.raises(ValueError):
            json.loads(calls.pop()["function"]["arguments"])
        if not calls:
            del streamed["message"]["tool_calls"]


def assert_equal(streamed, whole, fields):
    """With a message that can be read, and a request that can be sent again."""
    for one, other in zip(streamed.pop("choices"), whole.pop("choices"), strict=True):
        drop_cut_call(one, other)
        assert one == other, json.dumps(fields, ensure_ascii=False)
    assert streamed == whole, json.dumps(fields, ensure_ascii=False)


def run(server, path, requests, put_together):
    async def all_of_them():
        async with server.async_client() as client:
            create = client.chat.completions.create if path == "chat" else client.completions.create
            gate = asyncio.Semaphore(8)

            async def one(fields):
                async with gate:
                    return await both(create, fields, put_together)
            return await asyncio.gather(*map(one, requests))

    for fields, (whole, streamed) in zip(requests, asyncio.run(all_of_them())):
        assert_equal(comparable(streamed), comparable(whole), fields)
        check(fields, whole)


def test_150_generated_chats(plain):
    pick = random.Random(5)
    run(plain, "chat", [chat(pick) for _ in range(150)], gather)


def test_50_generated_completions(plain):
    pick = random.Random(6)
    run(plain, "text", [completion(pick) for _ in range(50)], gather_text)
