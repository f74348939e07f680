"""Requests that mean harm, made out of valid ones by a seeded random generator: wrong types, deep
nesting, cut and binary bodies, odd frames and headers, clients that leave at any moment."""

import copy
import json
import random

from serve_support import CHAT, TEXT, Gone, request_bytes
from support import WEATHER

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": 1.5e300}, "b": {"enum": ["x", None]}}}
MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "text", "text": " In Rome."}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "warm"},
    {"role": "user", "content": "Define hot."}]
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "presence_penalty": 0.5, "seed": 7,
            "frequency_penalty": -0.5, "repetition_penalty": 1.1, "max_tokens": 4, "stop": ["hot", "\n\n"],
            "logit_bias": {"20": 5, "21": -100}, "stream": True, "stream_options": {"include_usage": True}}
VALID = [
    # prompts are short: sanitizers make reading them slow
    (CHAT, {"model": "tiny", "messages": MESSAGES, "tool_choice": "auto", "logprobs": True, "top_logprobs": 3,
            "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False},
            "metadata": {"a": "b"}, "return_progress": True, **SAMPLING}),
    (CHAT, {"model": "tiny", "messages": MESSAGES[-1:], "tools": WEATHER, "max_completion_tokens": 12, "n": 2,
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "thinking_budget": 3,
            "reasoning_effort": "low", "response_format": {"type": "text"}, "user": "u", "store": False}),
    (TEXT, {"model": "tiny", "prompt": ["Once", "hot"], "suffix": None, "echo": True, "logprobs": 2,
            "min_tokens": 2, "stop_token_ids": [5], "ignore_eos": True, **SAMPLING}),
    (TEXT, {"model": "tiny", "prompt": [[1, 2, 3], [4]], "max_tokens": 3, "best_of": 1, "user": None}),
    ("/tokenize", {"model": "tiny", "content": "hot", "prompt": "hot", "messages": MESSAGES[-1:], "tools": WEATHER}),
    ("/detokenize", {"model": "tiny", "tokens": [1, 2, 300]}),
    ("/apply-template", {"model": "tiny", "messages": MESSAGES, "tools": WEATHER}),
]
ODD = [None, True, False, 0, -1, 1, 2 ** 31, -2 ** 63, 2 ** 64, 10 ** 400, 0.5, -0.0, 1e308, 5.0, "", "x", "tiny", "0", "\0", "\u2028", "\U0001f600",
       "<|im_end|>", "</think><tool_call>", "a" * 5000, "\ud800", [], {}, [[]], [None], {"": ""}, {"type": "function"},
       {"type": "text", "text": "x"}, [0] * 300, ["x"] * 300, SCHEMA, {"a": {"a": {"a": [[[[[[{}]]]]]]}}}]
METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "CONNECT", "TRACE", "get", "P" * 300, "PO ST"]
PATHS = ["/", "*", "/v1", "/v1/models", "/v1/models/" + "x" * 3000, "/v1/models/%2e%2e%2f%00", "/health?x=%zz", "/metrics#x",
         "//", "/v1/chat/completions?stream=true", "http://[::1]/health", "/\u00e9", "/%F0%9F%98%80", "health"]


def places(value, path=()):
    """The paths of all values inside of one."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def mutate(noise, body):
    """Changes one place: another value, none, a copy, a value of another place."""
    candidates = [p for p in places(body) if p]
    if not candidates:
        return
    path = noise.choice(candidates)
    parent = body
    for key in path[:-1]:
        parent = parent[key]
    key, kind = path[-1], noise.random()
    if kind < 0.6:
        parent[key] = copy.deepcopy(noise.choice(ODD))
    elif kind < 0.7:
        del parent[key]
    elif kind < 0.8 and isinstance(parent, list):
        parent += [copy.deepcopy(parent[key]) for _ in range(noise.choice([1, 200]))]
    elif kind < 0.9 and isinstance(parent, dict):
        parent[noise.choice(["x", "", "stream", "error", "\u00e9", "a" * 300])] = parent[key]
    else:
        other = body
        for step in noise.choice([p for p in places(body) if not p or p[:len(path)] != path]):
            other = other[step]
        parent[key] = copy.deepcopy(other)


def spoil(noise, data):
    """Changes the bytes of a body."""
    kind = noise.randrange(8)
    at = noise.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([noise.randrange(256)]) + data[at + 1:]
    if kind == 2:
        return data[:at] + noise.randbytes(noise.randrange(1, 20)) + data[at:]
    if kind == 3:
        return data + noise.choice([b"\0", b"{}", b"x", b" " * 100000, b"\xff"])
    if kind == 4:
        return noise.choice([b"[", b'{"a":', b'{"messages":[']) * noise.choice([100, 130, 3000, 100000])
    if kind == 5:
        return noise.randbytes(noise.randrange(3000))
    if kind == 6:
        return data.replace(b'"', b"'", noise.randrange(1, 9))
    piece = data[at:at + noise.randrange(1, 60)]
    return data[:at] + piece * noise.randrange(2, 50) + data[at:]


class Hostile:
    """One request: what to send, and how well-behaved its frame is."""

    def __init__(self, seed):
        noise = self.noise = random.Random(seed)
        self.method = "POST"
        self.path, body = copy.deepcopy(noise.choice(VALID))
        for _ in range(noise.choice([0, 1, 1, 2, 3, 5])):
            mutate(noise, body)
        data = json.dumps(body, ensure_ascii=noise.random() < 0.7).encode("utf-8", "surrogatepass")
        if noise.random() < 0.3:
            data = spoil(noise, data)
        self.sound = True  # the frame: an answer must come
        headers = self.headers()
        if noise.random() < 0.1:
            self.path = noise.choice(PATHS)
        if noise.random() < 0.1:
            self.method = noise.choice(METHODS)
        self.data = self.frame(data, headers)
        self.leaves = noise.random() < 0.2

    def headers(self):
        noise, headers = self.noise, {}
        if noise.random() < 0.3:
            headers["Content-Type"] = noise.choice([None, "", "text/plain", "image/png", "application/json;" * 500, "\x01"])
        if noise.random() < 0.2:
            headers[noise.choice(["X-Request-Id", "Authorization", "Origin", "Cookie", "Accept", "Host", "Range"])] = \
                noise.choice(["", "x" * 100, "x" * 9000, "a\tb", "\u00e9", "Bearer", "\"},{\"", "bytes=0-1"])
        return headers

    def frame(self, data, headers):
        noise, kind = self.noise, self.noise.random()
        if kind < 0.75:
            return request_bytes(self.method, self.path, data, **headers)
        if kind < 0.85:
            size = noise.choice([1, 10, 1000])
            pieces = [data[at:at + size] for at in range(0, min(len(data), 3000), size)]
            chunked = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
            return request_bytes(self.method, self.path, None, Transfer_Encoding="chunked", **headers) + chunked
        self.sound = False
        if kind < 0.9:
            length = noise.choice(["0", "-1", "5", "x", str(10 ** 12), str(len(data) + 10), ""])
            return request_bytes(self.method, self.path, data, Content_Length=length, **headers)
        whole = request_bytes(self.method, self.path, data, **headers)
        if kind < 0.95:
            return spoil(noise, whole[:whole.index(b"\r\n\r\n") + 4]) + data
        return spoil(noise, whole)

    def play(self, client):
        """Sends it and reads what comes; the status, None where there was none."""
        noise = self.noise
        try:
            if self.leaves and noise.random() < 0.5:
                client.send(self.data[:noise.randrange(len(self.data) + 1)])
                return None
            client.send(self.data)
            if self.leaves or not self.sound:
                client.socket.settimeout(0.3)
            reply = client.head()
            if self.leaves:
                for _ in range(noise.randrange(3)):
                    client.more()
                return reply.status
            if reply.headers.get("transfer-encoding") != "chunked":
                client.exactly(int(reply.headers.get("content-length", 0)) if self.method != "HEAD" else 0)
                return reply.status
            while piece := client.chunk():
                reply.body += piece
            reply.events()
            return reply.status
        except (Gone, OSError):
            if self.sound and not self.leaves:
                raise
            return None
