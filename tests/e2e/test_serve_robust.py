"""What no SDK sends: `calla serve` over bare sockets. Numbers in names are of docs/cases, where a
request broke another engine."""

import json
import os
import random
import socket
import time

import pytest

from serve_support import CHAT, TEXT, Server, chat_body, request_bytes

ORIGIN = "https://example.org"
MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def still_serves(request):
    """After each test an ordinary request is answered."""
    yield
    if "server" in request.fixturenames:
        reply = request.getfixturevalue("server").chat("hi", max_tokens=1)
        assert reply.status == 200, reply.body


def short(**fields):
    return chat_body("Define hot.", max_tokens=3, temperature=0, enable_thinking=False, **fields)


# ---- bodies --------------------------------------------------------------------------------------

def test_64_huge_content_length(server):
    before = server.resident()
    with server.dial() as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {10 ** 12}\r\n\r\n{{")
        reply = client.reply()
        assert reply.status == 413 and str(10 ** 12) in reply.error()["message"]
        assert client.is_closed()
    for length in ("-1", "1e3", "0x10", "99999999999999999999999999", "10 10", ""):
        with server.dial() as client:
            client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
            assert 400 <= client.reply().status < 500, length
    assert server.resident() - before < 4 * MIB


@pytest.mark.parametrize("text", ["[", "{\"a\":", "[{\"a\":["])
@pytest.mark.parametrize("where", ["body", "messages", "schema"])
def test_64_deep_nesting(server, text, where):
    deep = text * (100_000 // text.count("[") if "[" in text else 100_000)
    body = {"body": "%s", "messages": '{"model": "tiny", "messages": %s',
            "schema": '{"model": "tiny", "tools": [{"type": "function", "function": {"name": "f", '
                      '"parameters": %s'}[where] % deep
    before = server.resident()
    start = time.monotonic()
    for path in (CHAT, TEXT, "/tokenize", "/detokenize", "/apply-template"):
        reply = server.ask("POST", path, body)
        assert reply.status == 400 and "nest" in reply.error()["message"], reply.body
    assert time.monotonic() - start < 5
    assert server.resident() - before < 16 * MIB


def chunks(data, size):
    pieces = [data[at:at + size] for at in range(0, len(data), size)]
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]


CHUNKED = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 100000])
def test_64_chunked_body(server, size):
    wanted = server.ask("POST", CHAT, short()).text()
    with server.dial() as client:
        client.send(CHUNKED.encode() + b"".join(chunks(json.dumps(short()).encode(), size)))
        assert client.reply().text() == wanted
        client.request("POST", CHAT, short())  # and the connection goes on
        assert client.reply().text() == wanted


def test_64_slow_chunks(server):
    with server.dial() as client:
        client.send(CHUNKED)
        for piece in chunks(json.dumps(short()).encode(), 40):
            for part in (piece[:1], piece[1:]):
                client.send(part)
                time.sleep(0.02)
        assert client.reply().status == 200


def test_64_chunked_body_over_the_limit(server):
    before = server.resident()
    piece = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
    with server.dial() as client:
        client.send(CHUNKED)
        try:
            for _ in range(40):
                client.send(piece)
        except ConnectionError:
            pass  # it had read enough
        reply = client.reply()
        assert reply.status == 413 and "bytes" in reply.error()["message"]
        assert client.is_closed()
    assert server.resident() - before < 48 * MIB


@pytest.mark.parametrize("broken", [b"zz\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n", b"ffffffffffffffffff\r\n{}",
                                    b"2\r\n{}XX0\r\n\r\n"])
def test_64_broken_chunks(server, broken):
    with server.dial() as client:
        client.send(CHUNKED.encode() + broken)
        client.socket.shutdown(socket.SHUT_WR)
        data = b""
        while piece := client.more():
            data += piece
    assert data == b"" or data.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ", b"HTTP/1.0 400 ")), data


@pytest.mark.parametrize("headers", [
    "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"])
def test_ambiguous_lengths_are_refused(server, headers):
    with server.dial() as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{headers}\r\nhello")
        assert client.reply().status == 400
        assert client.is_closed()


def test_slow_body(server):
    body = json.dumps(short()).encode()
    with server.dial() as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n")
        for byte in body:
            client.send(bytes([byte]))
            time.sleep(0.003)
        assert client.reply().status == 200


def test_body_that_never_ends_gets_408(server, full):
    """The timer itself is tested in tests/server; here that the program has it set."""
    if not full:
        pytest.skip("30 s each, with --full")
    with server.dial(40) as body, server.dial(40) as head:
        body.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{")
        head.send("GET /health HTTP/1.1\r\nHost: x\r\n")
        start = time.monotonic()
        assert body.reply().status == 408
        assert 25 < time.monotonic() - start < 35
        assert head.reply().status == 408


def test_expect_continue(server):
    body = json.dumps(short())
    with server.dial() as client:
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n")
        assert client.head().status == 100
        client.send(body)
        assert client.reply().status == 200
    with server.dial() as client:  # nobody sends what will not be read
        client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                    f"Content-Length: {99 * MIB}\r\n\r\n")
        assert client.head().status == 413


@pytest.mark.parametrize("body", [b"", b"\0", b"null", b"[]", b"3", b'"x"', b"{", b"\xff\xfe{}", b"{}\0",
                                  b"\xef\xbb\xbf{}", b'{"model": "tiny"} x', b'{"model": "\xed\xa0\x80"}',
                                  os.urandom(4096), b" " * MIB, b"[1e999]", b'{"model": NaN}'])
def test_bodies_that_are_no_request(server, body):
    for path in (CHAT, TEXT, "/tokenize", "/detokenize", "/apply-template"):
        reply = server.ask("POST", path, body)
        assert reply.status == 400, (path, reply.body)
        reply.error()


# ---- lines and headers ---------------------------------------------------------------------------

def first_bytes(server, data, half_close=True):
    with server.dial(5) as client:
        try:
            client.send(data)
            if half_close:
                client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        while piece := client.more():
            answer += piece
        return answer


def test_garbage(server):
    """A 4xx, or a closed connection; never an answer of success, never silence."""
    noise = random.Random(5)
    cases = [b"\0" * 100, b"\r\n" * 1000, b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
             b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
             b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
             b"GET http://x/health HTTP/1.1\r\nno colon\r\n\r\n", b"G\xc3\x89T / HTTP/1.1\r\nHost: x\r\n\r\n",
             b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
             b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"A" * 200000]
    cases += [noise.randbytes(noise.randrange(1, 2000)) for _ in range(100)]
    for case in cases:
        answer = first_bytes(server, case)
        assert answer == b"" or answer.split(b" ")[1][:1] in (b"4", b"5"), (case[:60], answer[:200])
        assert not answer or b" 500 " not in answer[:20], case[:60]


@pytest.mark.parametrize("n, size", [(1, 80000), (700, 100)])
def test_headers_over_the_limit(server, n, size):
    lines = "".join(f"X-{i}: {'a' * size}\r\n" for i in range(n))
    answer = first_bytes(server, f"GET /health HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode(), False)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer.startswith(b"HTTP/1.0 431 "), answer[:100]


def test_long_path(server):
    assert server.ask("GET", "/" + "a" * 60000).status == 404
    assert first_bytes(server, b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\n\r\n", False)[9:12] in (b"414", b"431")


def test_pipelining(server):
    requests = [("GET", "/health", None, 200), ("POST", CHAT, short(), 200), ("GET", "/nothing", None, 404),
                ("POST", "/tokenize", {"content": "hot", "text": "hot"}, None), ("POST", CHAT, b"{", 400),
                ("POST", CHAT, short(stream=True), 200), ("GET", "/v1/models", None, 200)]
    with server.dial() as client:
        client.send(b"".join(request_bytes(method, path, body) for method, path, body, _ in requests))
        for method, path, _, status in requests:
            reply = client.reply(method)
            assert status in (None, reply.status), (path, reply.body)


def test_keep_alive(server):
    with server.dial() as client:
        for i in range(50):
            client.request("POST", CHAT, short(stream=i % 2 == 0))
            assert client.reply().status == 200
        client.request("GET", "/health", Connection="close")
        reply = client.reply()
        assert reply.status == 200 and reply.headers["connection"].lower() == "close"
        assert client.is_closed()


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0(server, stream):
    body = json.dumps(short(stream=stream))
    with server.dial() as client:
        client.send(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        reply = client.reply()  # to the connection's end, or as long as it says
        assert reply.status == 200 and "transfer-encoding" not in reply.headers
        assert reply.events() if stream else reply.text()
        assert client.is_closed()


def test_half_closed_socket_counts_as_gone(server):
    """As in nginx: documented in http.h."""
    with server.dial() as client:
        client.request("POST", CHAT, chat_body("hi", max_tokens=5000, ignore_eos=True))
        client.socket.shutdown(socket.SHUT_WR)
        start = time.monotonic()
        while client.more():
            pass
        assert time.monotonic() - start < 2


def test_head_and_unknown(server):
    for path, status in (("/health", 200), ("/metrics", 200), ("/v1/models", 200), ("/v1/models/tiny", 200),
                         ("/v1/models/other", 404), ("/v1/models/", 404), ("/", 404), ("/v1", 404),
                         ("/v1/chat/completions/", 404), ("//health", 404), ("/v1/../health", 404)):
        get = server.ask("GET", path)
        head = server.ask("HEAD", path)
        assert get.status == head.status == status, path
        assert head.headers["content-type"] == get.headers["content-type"]
        if status == 404:
            assert get.error()["type"] == "invalid_request_error"
        if status == 200 and path != "/metrics":
            assert int(head.headers["content-length"]) == len(get.body)
    for method, path, allow in (("GET", CHAT, {"POST", "OPTIONS"}), ("DELETE", "/health", {"GET", "HEAD", "OPTIONS"}),
                                ("HEAD", TEXT, {"POST", "OPTIONS"}), ("PUT", "/v1/models/tiny", {"GET", "HEAD", "OPTIONS"})):
        reply = server.ask(method, path)
        assert reply.status == 405 and set(reply.headers["allow"].split(", ")) == allow, path


def test_content_types(server):
    for kind, status in (("application/json; charset=utf-8", 200), ("APPLICATION/JSON", 200), (None, 200),
                         ("text/plain", 200), ("application/x-www-form-urlencoded", 200),
                         ("application/xml", 415), ("multipart/form-data; boundary=x", 415),
                         ("application/jsonx", 415), ("image/png", 415)):
        reply = server.ask("POST", CHAT, short(), Content_Type=kind)
        assert reply.status == status, kind
        if status == 415:
            assert "application/json" in reply.error()["message"]


def test_request_ids(server):
    assert server.ask("GET", "/health", X_Request_Id="mine-1").headers["x-request-id"] == "mine-1"
    seen = set()
    for bad in (None, "a" * 65, "has space", "é", ""):
        name = server.ask("GET", "/health", X_Request_Id=bad).headers["x-request-id"]
        assert name.startswith("req_") and name not in seen
        seen.add(name)


# ---- pages of browsers ---------------------------------------------------------------------------

STAINLESS = ["x-stainless-os", "x-stainless-arch", "x-stainless-lang", "x-stainless-runtime",
             "x-stainless-runtime-version", "x-stainless-package-version", "x-stainless-retry-count",
             "x-stainless-read-timeout", "x-stainless-timeout"]


def preflight(server, path, wanted=None):
    return server.ask("OPTIONS", path, Origin=ORIGIN, Access_Control_Request_Method="POST",
                      Access_Control_Request_Headers=wanted or ", ".join(["authorization", "content-type", *STAINLESS]))


@pytest.mark.parametrize("allowed", [ORIGIN, "*"])
def test_62_cors(allowed):
    with Server("--cors", allowed, "--api-key", "secret") as server:
        for path in (CHAT, TEXT, "/v1/models", "/v1/models/tiny", "/nothing"):
            reply = preflight(server, path)  # browsers send no key with it
            assert reply.status == 204 and reply.body == b""
            assert reply.headers["access-control-allow-origin"] == allowed
            named = {name.strip().lower() for name in reply.headers["access-control-allow-headers"].split(",")}
            assert {"authorization", "content-type", *STAINLESS} <= named
            if path in (CHAT, TEXT):
                assert "POST" in reply.headers["access-control-allow-methods"]
        key = {"Authorization": "Bearer secret", "Origin": ORIGIN}
        for reply, status in ((server.ask("POST", CHAT, short(), **key), 200),
                              (server.ask("POST", CHAT, short(stream=True), **key), 200),
                              (server.ask("POST", CHAT, b"{", **key), 400),
                              (server.ask("POST", CHAT, short(), Origin=ORIGIN), 401),
                              (server.ask("GET", "/nothing", **key), 404),
                              (server.ask("GET", CHAT, **key), 405),
                              (server.ask("POST", CHAT, b"x", Content_Type="image/png", **key), 415)):
            assert reply.status == status
            assert reply.headers["access-control-allow-origin"] == allowed, status
            assert "x-request-id" in reply.headers["access-control-expose-headers"].lower()
        with server.dial() as client:
            client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {99 * MIB}\r\n"
                        "Authorization: Bearer secret\r\n\r\n")
            reply = client.reply()
            assert reply.status == 413 and reply.headers["access-control-allow-origin"] == allowed


def test_62_without_cors(server):
    reply = preflight(server, CHAT)
    assert reply.status == 204 and set(reply.headers["allow"].split(", ")) == {"POST", "OPTIONS"}
    replies = [reply, server.ask("POST", CHAT, short(stream=True), Origin=ORIGIN), server.ask("GET", "/x", Origin=ORIGIN)]
    assert not [name for reply in replies for name in reply.headers if name.startswith("access-control")]


# ---- keys ----------------------------------------------------------------------------------------

def test_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one\r\n\ntwo\n")
    with Server("--api-key", "zero", "--api-key-file", file) as server:
        for key in ("zero", "one", "two"):
            assert server.ask("GET", "/v1/models", Authorization=f"Bearer {key}").status == 200
        assert server.ask("GET", "/v1/models", Authorization="bearer one").status == 200
        for given in (None, "", "Bearer", "Bearer ", "Bearer zer", "Bearer zeroo", "Basic zero", "zero", "Bearer ZERO",
                      "Bearer zero one", "Bearer " + "z" * 20000):
            for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("GET", "/metrics"), ("GET", "/nothing")):
                reply = server.ask(method, path, short() if method == "POST" else None, Authorization=given)
                assert reply.status == 401, (given, path)
                error = reply.error()
                assert error["code"] == "invalid_api_key" and "zero" not in error["message"]
                assert "www-authenticate" in reply.headers
        assert server.ask("GET", "/health").status == 200  # for load balancers
        # a body without a key is not read
        with server.dial() as client:
            client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {20 * MIB}\r\n\r\n")
            assert client.reply().status == 401
        assert "zero" not in server.log()


def test_any_key_without_keys(server):
    assert server.ask("GET", "/v1/models", Authorization="Bearer sk-dummy").status == 200


# ---- start ---------------------------------------------------------------------------------------

def test_80_port_in_use(server):
    from conftest import assert_one_line_error, calla, TINY
    start = time.monotonic()
    result = calla("serve", TINY, "--port", server.port)
    assert time.monotonic() - start < 1.5
    assert_one_line_error(result, 1, "--port", str(server.port))


@pytest.mark.parametrize("arguments, words", [
    (["/nowhere"], ["/nowhere"]), (["{tmp}"], []), (["{tiny}", "--host", "300.1.1.1"], ["--host"]),
    (["{tiny}", "--host", "192.0.2.1"], ["--host"]), (["{tiny}", "--backend", "gpu"], ["--backend"]),
    (["{tiny}", "--max-context", "1G"], ["--max-context"]), (["{tiny}", "--api-key-file", "/nowhere"], ["/nowhere"]),
    (["{tiny}", "--port", "1"], ["--port"])])
def test_80_what_cannot_start_says_why(tmp_path, arguments, words):
    from conftest import calla, TINY
    if arguments[-1] == "1" and os.geteuid() == 0:
        pytest.skip("root may listen on any port")
    start = time.monotonic()
    arguments = [text.format(tiny=TINY, tmp=tmp_path) for text in arguments]
    result = calla("serve", *(arguments if "--port" in arguments else [*arguments, "--port", "0"]))
    assert time.monotonic() - start < 1.5
    assert result.code in (1, 2) and result.out == ""
    lines = [line for line in result.err.split("\n") if line.startswith("calla")]
    assert len(lines) == 1, result.err
    assert all(word in lines[0] for word in words), lines
    assert len(result.err.strip().split("\n")) <= 2, result.err  # "listening on" may come first
