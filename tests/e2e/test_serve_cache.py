"""The prefix cache: cached_tokens says what was found, and the greedy text is that of a server
without a cache. A test's name has the number of its row in the list of what broke other engines."""

import pytest
from serving import (MODEL, OFF, Server, assistant, cached, calls, message, result, system,
                     text_of, tool, user)

WEATHER = tool("get_weather", city="string")
OPENING = 4  # ids of `<think>\n\n</think>\n\n`, the longest thing that history does not have


@pytest.fixture(scope="module")
def warm():
    with Server("--cache-ram", "200M", "--max-context", "16K") as running:
        yield running


@pytest.fixture(scope="module")
def cold():
    with Server("--cache-ram", 0, "--max-context", "16K") as running:
        yield running


def words(n, seed=0):
    """A text of about n tokens, another for each seed."""
    names = ["hot", "cold", "dog", "tree", "red", "run", "house", "water", "small", "bank"]
    return " ".join(names[(seed * 7 + i * i + i // 10 * (seed + 3)) % 10] for i in range(n))


def length(server, messages, **fields):
    return len(server.tokens(messages, **fields))


def same(warm, cold, messages, **fields):
    """The answer with the cache, which equals that without."""
    answer = warm.chat(messages, **fields)
    wanted = cold.chat(messages, **fields)
    assert cached(wanted) == 0
    for turn in (message(answer), message(wanted)):
        for call in turn.get("tool_calls", []):
            call.pop("id")
    assert message(answer) == message(wanted)
    assert answer["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == wanted["usage"]["completion_tokens"]
    return answer


def test_row_1_text_changed_in_the_middle(warm, cold):
    """The state goes on from the last border of 2,048 tokens before the change."""
    text = words(4200, 1)
    half = len(text) // 2
    first = [user(text + " Define hot.")]
    second = [user(text[:half] + " And one sentence more. " + text[half:] + " Define hot.")]
    assert cached(warm.chat(first, **OFF, max_tokens=8)) < 100
    answer = same(warm, cold, second, **OFF, max_tokens=8)
    changed = len(warm.tokens(text[:half]))
    assert cached(answer) == changed // 2048 * 2048 > 0


@pytest.mark.parametrize("thinking", [True, False])
def test_rows_2_and_4_each_turn_reads_only_what_is_new(warm, cold, thinking):
    messages, before = [system(f"Long turns, {thinking}.")], 0
    for turn in range(5):
        messages.append(user(words(250, 20 + turn) + " Define hot."))
        fields = {"enable_thinking": thinking, "max_tokens": 40}
        answer = same(warm, cold, messages, **fields) if turn in (1, 4) else warm.chat(messages, **fields)
        assert cached(answer) >= before - OPENING, turn
        before = answer["usage"]["prompt_tokens"]
        messages.append({key: value for key, value in message(answer).items() if key != "refusal"})
    assert before > 1250


def test_row_3_near_the_end_of_the_context():
    with Server("--max-context", 1024, "--cache-ram", "50M") as server:
        messages, before = [system("A full house.")], 0
        while before < 850:
            messages.append(user(words(80, before) + " Define hot."))
            answer = server.chat(messages, **OFF, max_tokens=20)
            assert cached(answer) >= before - OPENING
            before = answer["usage"]["prompt_tokens"]
            messages.append(assistant(text_of(answer)))
        messages.append(user("And dog?"))
        last = server.chat(messages, **OFF, max_tokens=20)
        assert cached(last) >= before - OPENING and last["usage"]["prompt_tokens"] > 870


@pytest.mark.parametrize("fields", [{}, OFF])
def test_row_5_the_same_request_again(warm, cold, fields):
    messages = [system("Again and again."), user(words(200, 5) + " Define hot.")]
    first = warm.chat(messages, **fields)
    again = same(warm, cold, messages, **fields)
    assert text_of(again) == text_of(first)
    assert cached(again) >= again["usage"]["prompt_tokens"] - OPENING


def test_row_7_regenerate_and_edit(warm, cold):
    a = [system("Branches. " + words(60, 7)), user("Define hot.")]
    answer = text_of(same(warm, cold, a, **OFF))
    b = [*a, assistant(answer), user("And the opposite?")]
    c = [*a, assistant(answer), user("Define cold, please.")]
    same(warm, cold, b, **OFF)
    edited = same(warm, cold, c, **OFF)
    known = length(warm, [*a, assistant(answer)], add_generation_prompt=False) - OPENING
    assert cached(edited) == known
    again = same(warm, cold, a, **OFF)
    assert cached(again) >= length(warm, a) - OPENING
    d = [*a[:1], user("Define dog.")]  # turns off before the first question
    assert cached(same(warm, cold, d, **OFF)) > 60  # the system block


def test_row_8_one_system_prompt_and_many_users(warm, cold):
    start = [system("You know much. " + words(900, 8))]
    fields = {"tools": [WEATHER, tool("add", a="integer")], **OFF, "max_tokens": 12}
    whole = [*start, user("x")]
    block = length(warm, whole, tools=fields["tools"], add_generation_prompt=False) - 10
    for number, word in enumerate(["hot", "cold", "dog", "tree", "red", "run", "house", "bank"]):
        ask = [*start, user(f"Define {word}.")]
        answer = same(warm, cold, ask, **fields) if number == 3 else warm.chat(ask, **fields)
        assert cached(answer) >= block or number == 0, (number, cached(answer), block)


def test_row_9_memory_stays_within_the_budget():
    budget = 6 << 20
    with Server("--cache-ram", budget, "--max-context", 2048, "--parallel", 2) as server:
        resident = []
        for number in range(24):
            server.chat([user(words(300, 100 + number))], **OFF, max_tokens=2)
            if number in (7, 23):
                resident.append(server.metrics()["calla_memory_resident_bytes"])
        now = server.metrics()
        assert now["calla_cache_budget_bytes"] <= budget
        assert now["calla_cache_bytes"] <= now["calla_cache_bytes_max"] <= budget
        assert now["calla_cache_evictions_total"] > 0 and now["calla_cache_entries"] > 0
        assert resident[1] - resident[0] < 4 << 20
        stated = server.wait_line(r"memory: ([\d.]+) GiB .*cache up to ([\d.]+)")
        assert resident[1] < (float(stated[1]) + float(stated[2])) * 1.1 * 2**30 + (20 << 20)


@pytest.mark.parametrize("returned", [True, False])
@pytest.mark.parametrize("preserve", [True, False])
def test_row_11_thinking_that_leaves_the_history(warm, cold, returned, preserve):
    """A hit up to where the last answer began, at least; up to its end where the thought stays."""
    messages = [system(f"Thoughts {returned} {preserve}. " + words(100, 11))]
    for turn, ask in enumerate(("Define hot.", "And the opposite?", "Define dog.")):
        messages.append(user(ask))
        answer = same(warm, cold, messages, preserve_thinking=preserve)
        last_user = length(warm, messages[:-1], add_generation_prompt=False,
                           preserve_thinking=preserve) if turn > 0 else 0
        before = length(warm, messages[:-2], preserve_thinking=preserve) if turn > 0 else 0
        assert cached(answer) >= before - OPENING
        if returned and preserve and turn > 0:
            assert cached(answer) >= last_user - 2  # the whole answer with its thought
        reply = message(answer)
        assert reply["reasoning_content"]
        messages.append(assistant(reply["content"], **(
            {"reasoning_content": reply["reasoning_content"]} if returned else {})))


def test_thinking_turned_on_and_off(warm, cold):
    messages = [system("On and off. " + words(80, 12))]
    before = 0
    for turn, thinking in enumerate((True, False, False, True)):
        messages.append(user(["Define hot.", "And the opposite?", "Define dog.", "Define red."][turn]))
        answer = same(warm, cold, messages, enable_thinking=thinking)
        assert cached(answer) >= before - OPENING
        before = answer["usage"]["prompt_tokens"]
        messages.append(assistant(text_of(answer)))


def test_tool_loop(warm, cold):
    messages = [system("Tools. " + words(60, 13)), user("What is the weather in Rome?")]
    answer = warm.chat(messages, tools=[WEATHER])
    assert calls(answer) == [("get_weather", {"city": "Rome"})]
    turn = message(answer)
    messages += [{key: turn[key] for key in ("role", "content", "reasoning_content", "tool_calls")},
                 result('{"weather": "sunny"}', turn["tool_calls"][0]["id"])]
    second = same(warm, cold, messages, tools=[WEATHER])
    known = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert cached(second) >= known - OPENING - 2  # what was generated, too, is not read again
    messages += [assistant(text_of(second)), user("What is the weather in Oslo?")]
    third = same(warm, cold, messages, tools=[WEATHER])
    assert cached(third) > 200


def test_branches_go_on_side_by_side(warm, cold):
    """Two conversations with one beginning, in turns."""
    start = [system("Both. " + words(100, 14)), user("Define hot.")]
    start.append(assistant(text_of(same(warm, cold, start, **OFF))))
    branches = [[*start, user(f"Define {word}.")] for word in ("cold", "dog")]
    before = [0, 0]
    for turn in range(3):
        for number, branch in enumerate(branches):
            answer = same(warm, cold, branch, **OFF)
            assert cached(answer) >= before[number] - OPENING
            before[number] = answer["usage"]["prompt_tokens"]
            branch += [assistant(text_of(answer)), user(["And red?", "And the opposite?", "x"][turn])]


@pytest.mark.parametrize("marked", [True, False])
def test_breakpoint_of_the_client(warm, cold, marked):
    """A place in the middle of a message from which other prompts go on."""
    shared = {"type": "text", "text": f"{marked}: " + words(300, 15) + "."}
    if marked:
        shared["prompt_cache_breakpoint"] = {"mode": "explicit"}
    asks = [[user([shared, {"type": "text", "text": f"\nDefine {word}."}])] for word in ("hot", "dog")]
    warm.chat(asks[0], **OFF)
    answer = same(warm, cold, asks[1], **OFF)
    known = len(warm.tokens(shared["text"]))
    assert (cached(answer) >= known - 2) == marked


def test_sampled_answers_do_not_depend_on_the_cache(exact):
    """On the ref backend, where a prompt's cut changes no bit."""
    messages = [system("Free."), user("Tell me a word.")]
    fields = {"temperature": 1.5, "seed": 3, "max_tokens": 10, "logprobs": True, "top_logprobs": 2, **OFF}
    first, again = exact.chat(messages, **fields), exact.chat(messages, **fields)
    assert cached(first) == 0 or cached(again) > 0
    assert first["choices"] == again["choices"]
    second = [*messages, assistant(text_of(first)), user("Another.")]
    on = exact.chat(second, **fields)
    assert cached(on) > 0
    with Server("--backend", "ref", "--cache-ram", 0) as other:
        assert other.chat(second, **fields)["choices"] == on["choices"]


def test_completions_share_the_cache(warm):
    prompt = warm.tokens(words(200, 16))
    assert cached(warm.complete(prompt, max_tokens=2)) == 0
    assert cached(warm.complete(prompt, max_tokens=2)) == len(prompt) - 1
    on = warm.complete(prompt + [100, 200], max_tokens=2)
    assert cached(on) >= len(prompt) - 1


def test_no_cache_finds_nothing(cold):
    for _ in range(2):
        assert cached(cold.chat([user("Define hot.")], **OFF)) == 0
    assert cold.metrics()["calla_cache_entries"] == 0
    assert cold.get("/v1/models").json["data"][0]["id"] == MODEL
