"""Large and odd requests, and a server that is short of memory, descriptors or connections: each is
answered, costs what it must, and leaves nothing behind."""

import contextlib
import json
import time

import pytest

from conftest import TINY
from serve_process import wait_for
from serve_support import CHAT, TEXT, Gone, Server, chat_body, text_body
from test_serve_gone import endless, first_chunk

MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with Server("--parallel", 4) as running:
        assert running.chat("hi", max_tokens=1).status == 200
        yield running


def tool(i, parameters):
    return {"type": "function", "function": {"name": f"f{i}", "description": "d", "parameters": parameters}}


def answer(server, path, body, status, seconds=60):
    start = time.monotonic()
    reply = server.ask("POST", path, body, timeout=120)
    assert reply.status == status, reply.body[:500]
    assert time.monotonic() - start < seconds
    return reply


# ---- large requests ------------------------------------------------------------------------------

@pytest.mark.parametrize("name, body", [
    ("one word", chat_body("a" * (30 * MIB))),
    ("words", chat_body("hot " * (7 * MIB))),
    ("ids", None),
    ("messages", {"model": "tiny", "messages": [{"role": "user", "content": "x"}] * 200000}),
    ("parts", chat_body([{"type": "text", "text": "x"}] * 200000)),
    ("schema of 20 MB", chat_body("x", tools=[tool(0, {"type": "object", "description": "x" * (20 * MIB)})])),
    ("schema of many properties", chat_body("x", tools=[tool(0, {"type": "object", "properties": {
        f"p{i}": {"type": "string", "description": "x" * 80} for i in range(150000)}})])),
])
def test_prompts_that_are_far_too_long(server, name, body):
    if name == "ids":
        reply = answer(server, TEXT, text_body([0] * 1000000), 400)
    else:
        reply = answer(server, CHAT, body, 400)
    assert reply.error()["code"] == "context_length_exceeded"


@pytest.mark.parametrize("name, junk", [("objects", "{}"), ("numbers", "0"), ("arrays", "[[]]"), ("members", None)])
def test_bodies_of_too_many_values(server, name, junk):
    """32 MiB of them would take gigabytes; so a client's mistake cannot end the server."""
    before = server.resident()
    more = '"x": 1' if junk is None else '"junk": [' + ",".join([junk] * (2 * MIB)) + "]"
    body = json.dumps(chat_body("hi", max_tokens=1))[:-1] + "," + (",".join([more] * (2 * MIB)) if junk is None else more) + "}"
    reply = answer(server, CHAT, body, 400)
    assert "values" in reply.error()["message"]
    assert server.resident() - before < 40 * MIB


def test_memory_of_large_bodies_is_given_back(server):
    """Ten bodies that take 70 MB each while they are read; glibc may keep the last one's."""
    body = json.dumps(chat_body("hi", max_tokens=1, junk=[{}] * 300000))
    before = server.resident()
    for _ in range(10):
        answer(server, CHAT, body, 200)
    wait_for(lambda: server.resident() - before < 90 * MIB, 5, "memory given back")


def test_more_choices_than_allowed(server):
    reply = answer(server, TEXT, text_body(["hi"] * 128, n=8), 400, 2)
    assert "128" in reply.error()["message"]
    reply = answer(server, TEXT, text_body(["hi"] * 16, n=8, max_tokens=1), 200)
    assert [choice["index"] for choice in reply.json()["choices"]] == list(range(128))


def test_no_tokens_wanted(server):
    assert answer(server, CHAT, chat_body("hi", max_tokens=0), 400).error()["param"] == "max_tokens"
    reply = answer(server, TEXT, text_body("hi", max_tokens=0, echo=True, logprobs=1), 200).json()
    assert reply["choices"][0]["text"] == "hi" and reply["usage"]["completion_tokens"] == 0
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == reply["usage"]["prompt_tokens"]


def test_stop_strings_of_a_megabyte(server):
    fields = {"max_tokens": 30, "ignore_eos": True, "enable_thinking": False, "temperature": 0}
    wanted = server.chat("Define hot.", **fields).text()
    stop = ["a" * MIB, wanted + "h" * MIB, wanted[:5] + " " * MIB, "\n" * MIB]
    reply = answer(server, CHAT, chat_body("Define hot.", stop=stop, **fields), 200, 20)
    assert reply.text() == wanted
    assert answer(server, CHAT, chat_body("hi", stop=["x"] * 5), 400).error()["param"] == "stop"


def test_bias_of_the_whole_vocabulary(server):
    n = len(json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    bias = {str(i): -1 for i in range(n)}
    assert answer(server, CHAT, chat_body("hi", max_tokens=5, logit_bias=bias), 200, 10).status == 200
    reply = answer(server, CHAT, chat_body("hi", logit_bias={**bias, "248320": 1}), 400, 10)
    assert "248320" in reply.error()["message"]


def test_tools_over_the_limit(server):
    reply = answer(server, CHAT, chat_body("hi", tools=[tool(i, {}) for i in range(2000)]), 400, 2)
    assert reply.error()["param"] == "tools" and "128" in reply.error()["message"]


def test_others_are_served_beside_large_bodies(server):
    """Reading and refusing them is the work of their own threads."""
    body = json.dumps(chat_body("hot " * (5 * MIB)))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.dial(120)) for _ in range(3)]
        for client in clients:
            client.request("POST", CHAT, body)
        start = time.monotonic()
        assert server.chat("hi", max_tokens=1).status == 200
        assert time.monotonic() - start < 5
        for client in clients:
            assert client.reply().status == 400


# ---- many connections ----------------------------------------------------------------------------

def test_1000_idle_connections(server):
    """A crowd that says nothing cannot keep others out for long, nor cost much."""
    threads, descriptors, before = server.threads(), server.descriptors(), server.resident()
    with contextlib.ExitStack() as stack:
        crowd = []
        for _ in range(1000):
            with contextlib.suppress(OSError):
                crowd.append(stack.enter_context(server.dial(2)))
        time.sleep(0.5)
        assert server.threads() < 400 and server.descriptors() < 400
        assert server.resident() - before < 100 * MIB
        start = time.monotonic()
        assert server.chat("hi", max_tokens=1).status == 200
        assert time.monotonic() - start < 2
    wait_for(lambda: server.threads() <= threads and server.descriptors() <= descriptors, 5, "all given back")


def is_healthy(server):
    """False while the crowd's last connections are still in the way."""
    with contextlib.suppress(Gone, OSError):
        return server.ask("GET", "/health").status == 200
    return False


def test_running_requests_are_not_cut_for_others():
    with Server("--parallel", 2) as server, contextlib.ExitStack() as stack:
        running = [stack.enter_context(server.dial()) for _ in range(3)]
        for client in running:
            client.request("POST", CHAT, endless(stream=True))
            first_chunk(client)
        for _ in range(600):
            with contextlib.suppress(OSError):
                stack.enter_context(server.dial(2))
        wait_for(lambda: is_healthy(server), 5, "room for one more")
        for client in running[:2]:
            assert client.chunk()


# ---- shortage ------------------------------------------------------------------------------------

def test_few_descriptors():
    """accept fails for lack of them: the server waits for some to be free and goes on."""
    with Server("--parallel", 2, shell="ulimit -n 64") as server:
        with contextlib.ExitStack() as stack:
            crowd = []
            for _ in range(100):
                with contextlib.suppress(OSError):
                    crowd.append(stack.enter_context(server.dial(1)))
            time.sleep(0.5)
            assert server.process.poll() is None
            busy = cpu_seconds(server)
            time.sleep(1)
            assert cpu_seconds(server) - busy < 0.5  # it does not spin
        reply = wait_for(lambda: try_chat(server), 10, "an answer")
        assert reply.status == 200


def cpu_seconds(server):
    with open(f"/proc/{server.pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def try_chat(server):
    try:
        return server.chat("hi", max_tokens=1, timeout=5)
    except (OSError, Gone):
        return None


def test_little_memory():
    """Under ulimit -v what does not fit is refused and the server lives on."""
    with Server("--parallel", 1, "--max-context", 2048, "--cache-ram", 0, shell="ulimit -v 700000") as server:
        body = json.dumps(chat_body("hot " * (7 * MIB)))
        statuses = []
        for _ in range(5):
            try:
                statuses.append(server.ask("POST", CHAT, body).status)
            except (Gone, OSError):
                statuses.append(None)  # no memory to read the request
        print(statuses)
        assert set(statuses) <= {400, 500, 503, None}
        assert wait_for(lambda: try_chat(server), 10, "an answer").status == 200


def test_memory_that_cannot_do():
    """What cannot start says so in a line."""
    from conftest import calla
    result = calla("serve", TINY, "--port", 0, "--max-context", "32K", "--parallel", 16, timeout=20,
                   preexec_fn=lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_AS, (200 * MIB,) * 2))
    assert result.code == 1
    lines = [line for line in result.err.split("\n") if line.startswith("calla")]
    assert len(lines) == 1, result.err
