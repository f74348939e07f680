"""How the server ends, and what it says meanwhile: signals, and logs that nobody reads."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import CALLA, ROOT, TINY
from serve_support import CHAT, Server, chat_body
from serve_process import default_signals, wait_for
from test_serve_gone import endless, first_chunk, long_prompt

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \S+ \S+ .* \d+( prompt \d+ cached \d+ generated \d+ "
                  r"[\d.]+ tok/s finish [a-z_ ]+)? [\d.]+ s( client gone)?( timed out)?( \(.*\))?")


def seconds_to_end(server, number=signal.SIGTERM):
    start = time.monotonic()
    assert server.stop(number) == 0, server.log()
    return time.monotonic() - start


# ---- signals -------------------------------------------------------------------------------------

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ends_at_once_when_idle(number):
    with Server() as server, server.dial() as idle, server.dial() as begun, server.dial() as fresh:
        idle.request("GET", "/health")
        assert idle.reply().status == 200
        begun.send("GET /hea")
        time.sleep(0.1)
        assert seconds_to_end(server, number) < 1
        assert idle.is_closed() and fresh.is_closed()
        assert server.log().endswith("stopping\n")


def test_what_runs_may_finish():
    with Server("--grace", 30) as server:
        with server.dial() as stream, server.dial() as whole:
            stream.request("POST", CHAT, chat_body("hi", max_tokens=60, ignore_eos=True, stream=True))
            whole.request("POST", CHAT, chat_body("hi", max_tokens=60, ignore_eos=True))
            first_chunk(stream)
            wait_for(lambda: server.gauge("requests_running") == 2, 5)
            server.process.send_signal(signal.SIGTERM)
            server.wait_line("^stopping")
            with pytest.raises(ConnectionError):
                while True:
                    server.ask("GET", "/health")
                    time.sleep(0.02)
            data = b""
            while piece := stream.chunk():
                data += piece
            assert data.endswith(b"data: [DONE]\n\n") and b'"error"' not in data
            reply = whole.reply()
            assert reply.status == 200 and reply.json()["usage"]["completion_tokens"] == 60
            start = time.monotonic()
            assert server.process.wait(30) == 0
            assert time.monotonic() - start < 1.5  # not the whole grace


@pytest.mark.parametrize("grace", [0, 1])
def test_what_does_not_finish_is_told(grace):
    """Streams end with an error event and [DONE], others get a 503; those that wait, too."""
    with Server("--grace", grace, "--parallel", 2) as server:
        with contextlib.ExitStack() as stack:
            bodies = [endless(stream=True), endless(), endless(long_prompt(), stream=True), endless(long_prompt())]
            clients = [stack.enter_context(server.dial()) for _ in bodies]
            for client, body in zip(clients, bodies):
                client.request("POST", CHAT, body)
            wait_for(lambda: server.gauge("requests_running") + server.gauge("requests_queued") == 4, 5)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for client, body in zip(clients, bodies):
                reply = client.reply()
                if body.get("stream"):
                    assert reply.status == 200
                    last = reply.events()[-1]
                else:
                    assert reply.status == 503
                    last = reply.json()
                assert last["error"]["code"] == "shutting_down", last
            assert server.process.wait(10) == 0
            assert time.monotonic() - start < grace + 2


def test_second_signal_ends_it_at_once():
    with Server("--grace", 60) as server, server.dial() as client:
        client.request("POST", CHAT, endless(stream=True))
        first_chunk(client)
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("^stopping")
        time.sleep(0.2)
        assert server.process.poll() is None
        start = time.monotonic()
        assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert time.monotonic() - start < 1


def test_ends_while_a_client_does_not_read():
    with Server("--grace", 0.5) as server, server.dial(receive_buffer=2048) as client:
        client.request("POST", CHAT, endless(stream=True, logprobs=True, top_logprobs=20))
        first_chunk(client)
        time.sleep(1)
        assert seconds_to_end(server) < 3


# ---- logs ----------------------------------------------------------------------------------------

HOSTILE = ["/a%0Ab", "/a%0d%0aPOST%20x", "/%22%7D%2C%7B%22", "/%C3%A9%E2%80%A8", "/%1b%5B31m", "/%7f", "/a\\nb",
           "/" + "%41" * 3000, "/%F0%9F%98%80", "/" + "x" * 50000, "/%C2%85"]


def provoke(server):
    for path in HOSTILE:
        server.ask("GET", path)
    for name in ("a\tb", '"},{"', "x" * 64, "é", "\x1b[31m"):
        server.ask("GET", "/nothing", X_Request_Id=name)
    with server.dial() as client:
        client.request("POST", CHAT, endless(stream=True))
        first_chunk(client)
    server.chat("hi", max_tokens=1)
    server.ask("POST", CHAT, {"model": "x\n\"\u2028", "messages": [{"role": "user", "content": "x"}]})
    server.ask("POST", CHAT, {"model": "tiny", "messages": [{"role": "\x1b[31m\n", "content": "x"}]})
    with server.dial(0.2) as client:
        client.send(b"\x00\x01\x02 / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(Exception):
            client.reply()
    wait_for(server.is_idle, 3)
    time.sleep(0.3)


def test_json_log():
    with Server(log="json") as server:
        provoke(server)
        lines = server.log_path.read_bytes().decode("utf-8").split("\n")[:-1]
        records = [json.loads(line) for line in lines if line.startswith("{")]
        other = [line for line in lines if not line.startswith("{")]
        assert len(other) == 3, other
        assert len(records) >= len(HOSTILE) + 9
        for record in records:
            assert {"time", "id", "peer", "method", "path", "status", "seconds", "client_gone"} <= set(record)
            assert record["seconds"] >= 0
        assert any(r["client_gone"] and r.get("finish") == "cancelled" for r in records)
        assert any(r.get("generated_tokens") == 1 and r["finish"] == "length" for r in records)
        assert max(map(len, lines)) < 4096


def test_text_log():
    with Server(log="text") as server:
        provoke(server)
        data = server.log_path.read_bytes()
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", data)
        lines = data.decode("utf-8").split("\n")[:-1]
        assert len(lines) >= len(HOSTILE) + 12
        for line in lines[3:]:
            assert LINE.fullmatch(line), line
        assert max(map(len, lines)) < 4096


def serve_with_stderr(stderr, port):
    return subprocess.Popen([str(CALLA), "serve", str(TINY), "--port", str(port)], cwd=ROOT, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=stderr, preexec_fn=default_signals)


class Quiet(Server):
    """A server whose stderr is what the test wants; it has to find a port of its own."""

    def __init__(self, prepare, stderr=None):
        import socket
        import tempfile
        import pathlib
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log_path = pathlib.Path(tempfile.mkstemp()[1])
        self.process = subprocess.Popen(
            [str(CALLA), "serve", str(TINY), "--port", str(self.port)], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr, preexec_fn=lambda: (default_signals(), prepare()))
        self.pid = self.process.pid
        wait_for(self.is_up, 20, "the server")

    def is_up(self):
        assert self.process.poll() is None, self.process.returncode
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False


def serves_and_ends(server, n=200):
    for _ in range(n):
        assert server.ask("GET", "/nothing", timeout=5).status == 404
    assert server.chat("hi", max_tokens=1, timeout=5).status == 200
    assert seconds_to_end(server) < 2


def test_stderr_closed():
    with Quiet(lambda: os.close(2)) as server:
        assert os.path.exists(f"/proc/{server.pid}/fd/2")  # else the next file opened gets the log
        assert os.readlink(f"/proc/{server.pid}/fd/2") == "/dev/null"
        serves_and_ends(server)


def test_stderr_is_a_pipe_without_a_reader():
    reader, writer = os.pipe()
    os.close(reader)
    with Quiet(lambda: None, stderr=writer) as server:
        os.close(writer)
        serves_and_ends(server)


def test_stderr_is_a_full_pipe():
    """A log reader that stalls: requests are served, whole lines are lost, and that is said."""
    reader, writer = os.pipe()
    with Quiet(lambda: None, stderr=writer) as server:
        os.close(writer)
        for _ in range(2000):
            assert server.ask("GET", "/nothing/" + "x" * 60, timeout=5).status == 404
        first = os.read(reader, 1 << 20)
        assert len(first) > 60000  # it was full
        assert server.chat("hi", max_tokens=1, timeout=5).status == 200
        assert seconds_to_end(server) < 2
        with os.fdopen(reader, "rb") as rest:
            lines = (first + rest.read()).decode().split("\n")[:-1]
    lines = [line for line in lines if "/health 503" not in line]  # before it was ready
    requests = [line for line in lines if LINE.fullmatch(line)]
    lost = [line for line in lines if "lost" in line]
    assert lost and len(requests) + sum(int(re.search(r"\d+", line)[0]) for line in lost) == 2001, lost
    assert len(lines) - len(requests) - len(lost) == 4  # listening, memory, ready, stopping


def test_stderr_is_a_full_pipe_from_the_start():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with Quiet(lambda: None, stderr=writer) as server:
        serves_and_ends(server, 3)
    os.close(reader)
    os.close(writer)
