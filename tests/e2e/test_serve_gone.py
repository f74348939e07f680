"""Clients that leave, do not read, or come in crowds: what they cost the others."""

import contextlib
import json
import random
import time

import pytest

from serve_process import wait_for
from serve_support import CHAT, TEXT, Server, chat_body, text_body
from support import copy_model, own

# words for about one token each, and how many of them take the cpu backend a long time
LONG = 12000


def long_prompt(n=LONG, start=""):
    return start + " ".join(["hot"] * n)


def endless(text="hi", **fields):
    """A request that decodes until somebody stops it."""
    return chat_body(text, max_tokens=20000, ignore_eos=True, temperature=1, seed=1, **fields)


@pytest.fixture(scope="module")
def server():
    """One request at a time: a place that is not given back shows at once."""
    with Server("--parallel", 1, "--cache-ram", 0) as running:
        yield running


@pytest.fixture(autouse=True)
def is_idle_afterwards(request):
    yield
    if "server" in request.fixturenames:
        wait_for(request.getfixturevalue("server").is_idle, 5, "an idle server")


def leave(client, hard):
    client.reset() if hard else client.close()
    return time.monotonic()


def gone_record(server, name, since, seconds=5):
    """The log line of a request whose client has left, and how long the server took to see it."""
    def look():
        return next((r for r in server.records() if r["id"] == name), None)
    record = wait_for(look, seconds, f"the log line of {name}")
    return record, time.monotonic() - since


def seconds_of_short_request(server):
    start = time.monotonic()
    reply = server.chat("hi", max_tokens=1)
    assert reply.status == 200, reply.body
    return time.monotonic() - start


# ---- leaving -------------------------------------------------------------------------------------

def test_58_59_leaving_at_40_random_moments(server):
    """In the queue, while the prompt is read, while the answer comes; streams and others."""
    noise = random.Random(7)
    seen, freed = [], []
    seconds_of_short_request(server)
    for i in range(40):
        kind = ("queue", "prompt", "answer", "headers")[i % 4]
        stream, hard, name = noise.random() < 0.5, noise.random() < 0.5, f"gone-{i}"
        with contextlib.ExitStack() as others:
            if kind == "queue":
                blocker = others.enter_context(server.dial())
                blocker.request("POST", CHAT, endless(long_prompt()))
                wait_for(lambda: server.gauge("requests_running") == 1, 5, "a running request")
            client = server.dial()
            body = endless(long_prompt() if kind == "prompt" else "hi", stream=stream)
            client.request("POST", CHAT, body, X_Request_Id=name)
            if kind != "headers":
                wait_for(lambda: sum(map(server.gauge, ("requests_running", "requests_queued"))) ==
                         1 + (kind == "queue"), 5, "the request")
            time.sleep(noise.random() * 0.5)
            at = leave(client, hard)
            if kind != "headers":
                record, seconds = gone_record(server, name, at)
                assert record["client_gone"] or record["status"] == 499, record
                seen.append(seconds)
        freed.append(seconds_of_short_request(server))
    print(f"noticed after {max(seen):.2f} s at most, next request answered after {max(freed):.2f} s")
    assert max(seen) < 1 and max(freed) < 2


def test_59_leaving_after_ten_tokens_50_times(server):
    seconds_of_short_request(server)
    descriptors, threads = server.descriptors(), server.threads()
    for i in range(50):
        with server.dial() as client:
            client.request("POST", CHAT, endless(stream=True))
            assert client.head().status == 200
            for _ in range(11):
                client.chunk()
            leave(client, i % 2 == 0)
    assert seconds_of_short_request(server) < 2
    wait_for(lambda: server.descriptors() <= descriptors and server.threads() <= threads, 3,
             "descriptors and threads given back")


def test_leaving_in_a_crowd(server):
    """Fifty wait, all leave at once: nothing of them is ever run."""
    read = server.metrics()["calla_prompt_tokens_read_total"]
    clients = [server.dial() for _ in range(50)]
    for client in clients:
        client.request("POST", CHAT, endless(long_prompt(2000), stream=True))
    for client in clients:
        assert client.head().status == 200  # told at once, though 49 of them wait
    for client in clients:
        client.close()
    assert seconds_of_short_request(server) < 2
    assert server.metrics()["calla_prompt_tokens_read_total"] - read < 5 * 2000


def test_leaving_before_the_body_is_sent(server):
    for i in range(20):
        with server.dial() as client:
            client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"[:i * 4])
            leave(client, i % 2 == 0)
    assert seconds_of_short_request(server) < 2


# ---- waiting -------------------------------------------------------------------------------------

def first_chunk(client):
    """Seconds until the first byte of a stream's body, and the byte's chunk."""
    start = time.monotonic()
    assert client.head().status == 200
    return client.chunk(), time.monotonic() - start


@pytest.mark.parametrize("path, begins", [(CHAT, b"data: "), (TEXT, b": ")])
def test_57_first_byte_of_a_long_prompt(server, path, begins):
    body = endless(long_prompt()) if path == CHAT else text_body(long_prompt(), max_tokens=9)
    with server.dial() as reading, server.dial() as queued:
        for client in (reading, queued):
            client.request("POST", path, {**body, "stream": True})
            data, seconds = first_chunk(client)
            assert data.startswith(begins) and seconds < 1, (data, seconds)


def test_57_keep_alive_and_progress():
    """A comment at least each 10 s of silence: for one that is read, and for one that waits."""
    with Server("--parallel", 1, "--backend", "ref") as server:
        with server.dial() as reading, server.dial() as told, server.dial() as queued:
            told.request("POST", CHAT, endless(long_prompt(3000), stream=True, return_progress=True))
            comments, totals = [], set()
            first_chunk(told)
            while len(comments) < 3:
                data = told.chunk()
                assert data.startswith(b": {"), data
                progress = json.loads(data[2:])["progress"]
                comments.append(progress["read"])
                totals.add(progress["total"])
            assert comments == sorted(set(comments)) and len(totals) == 1
            assert comments[-1] < totals.pop()
            told.close()
            for client in (reading, queued):
                client.request("POST", CHAT, endless(long_prompt(20000), stream=True))
                first_chunk(client)
            last = time.monotonic()
            for _ in range(2):
                for client in (reading, queued):
                    assert client.chunk() == b": keep-alive\n\n"
                assert 9 < time.monotonic() - last < 11
                last = time.monotonic()


def test_short_request_beside_a_long_prompt():
    """It starts within a chunk, and finishes long before the prompt is read."""
    with Server("--parallel", 2) as server:
        with server.dial() as client:
            client.request("POST", CHAT, endless(long_prompt()))
            wait_for(lambda: server.gauge("requests_running") == 1, 5)
            start = time.monotonic()
            reply = server.chat("Define hot.", max_tokens=4, temperature=0)
            assert reply.status == 200 and time.monotonic() - start < 6
            assert server.gauge("requests_running") == 1


def test_queue_full():
    with Server("--parallel", 1, "--queue", 2) as server:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(server.dial()) for _ in range(3)]
            for n, client in enumerate(clients, 1):
                client.request("POST", CHAT, endless())
                wait_for(lambda: server.gauge("requests_running") + server.gauge("requests_queued") == n, 5)
            for stream in (False, True):
                reply = server.chat("hi", max_tokens=1, stream=stream)
                assert reply.status == 429 and int(reply.headers["retry-after"]) >= 1
                assert reply.error()["type"] in ("rate_limit_error", "server_overloaded")
            assert server.ask("GET", "/health").status == 200
            assert server.ask("GET", "/v1/models").status == 200
        wait_for(server.is_idle, 3)
        assert server.chat("hi", max_tokens=1).status == 200
        assert server.metrics()['calla_requests_total{status="429"}'] == 2


def test_queue_of_none():
    with Server("--parallel", 1, "--queue", 0) as server:
        with server.dial() as client:
            client.request("POST", CHAT, endless(stream=True))
            first_chunk(client)
            client.chunk()
            assert server.chat("hi", max_tokens=1).status == 429
        wait_for(server.is_idle, 3)
        assert server.chat("hi", max_tokens=1).status == 200


def test_loading(tmp_path):
    """The port answers while the model is opened: here one whose tokenizer.json takes a while."""
    folder = copy_model(tmp_path / "tiny")
    file = own(folder / "tokenizer.json")
    text = file.read_text(encoding="utf-8").rstrip()
    assert text.endswith("}")
    file.write_text(text[:-1] + ', "much": [' + '"",' * (30 << 20) + '""]}', encoding="utf-8")
    with Server(model=folder, ready=False) as server:
        for method, path, body in (("GET", "/health", None), ("GET", "/v1/models", None),
                                   ("POST", CHAT, chat_body("hi")), ("POST", TEXT, b"{"),
                                   ("POST", "/tokenize", b"{")):
            reply = server.ask(method, path, body)
            assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1, path
        assert server.ask("GET", "/metrics").status == 200
        assert server.ask("GET", "/nothing").status == 404
        server.wait_line("^ready after")
        assert server.ask("GET", "/health").status == 200
        assert server.chat("hi", max_tokens=1).status == 200


# ---- not reading ---------------------------------------------------------------------------------

def test_reader_that_does_not_read(server):
    """It holds its own place only, and only until it leaves."""
    with Server("--parallel", 2) as other:
        with other.dial(receive_buffer=2048) as client:
            client.request("POST", CHAT, endless(stream=True, logprobs=True, top_logprobs=20))
            first_chunk(client)
            start = time.monotonic()
            while time.monotonic() - start < 5:
                assert seconds_of_short_request(other) < 2
            assert other.gauge("requests_running") == 1
            at = time.monotonic()
        wait_for(other.is_idle, 5)
        assert time.monotonic() - at < 1.5


def test_reader_that_does_not_read_is_cancelled(full):
    """The server gives up on it, says so, and serves others all the while."""
    if not full:
        pytest.skip("takes up to two minutes, with --full")
    with Server("--parallel", 4) as server:
        with server.dial(receive_buffer=2048) as client:
            client.request("POST", CHAT, endless(stream=True, logprobs=True, top_logprobs=20),
                           X_Request_Id="slow")
            first_chunk(client)
            start = time.monotonic()
            while not any(r["id"] == "slow" for r in server.records()):
                assert seconds_of_short_request(server) < 2
                assert time.monotonic() - start < 150
            record = next(r for r in server.records() if r["id"] == "slow")
            print(f"after {time.monotonic() - start:.0f} s: {record}")
            assert record["finish"] == "slow reader" or record["timed_out"]
            assert server.is_idle()


# ---- too long ------------------------------------------------------------------------------------

def test_63_over_the_context():
    with Server("--max-context", 256) as server:
        for n, status in ((255, 200), (256, 200), (257, 400), (5000, 400)):
            reply = server.ask("POST", TEXT, text_body([20] * n, max_tokens=50, ignore_eos=True))
            assert reply.status == status, (n, reply.body)
            if status == 400:
                error = reply.error()
                assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
                assert str(n) in error["message"] and "256" in error["message"]
            else:
                assert reply.json()["choices"][0]["finish_reason"] == "length"
                assert reply.json()["usage"]["total_tokens"] == 256
        for stream in (False, True):
            reply = server.chat(long_prompt(300), max_tokens=5, stream=stream)
            assert reply.status == 400
            assert reply.error()["code"] == "context_length_exceeded" and reply.error()["param"] == "messages"
        # a prompt that fits with a limit that does not
        reply = server.chat("hi", max_tokens=100000, ignore_eos=True)
        assert reply.status == 200 and reply.json()["usage"]["total_tokens"] == 256
        assert reply.json()["choices"][0]["finish_reason"] == "length"
