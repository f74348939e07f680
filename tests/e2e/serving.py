"""A running `calla serve`, clients for it, and whole answers and streams brought to one form."""

import http.client
import json
import subprocess

import pytest
from serve_process import CALLA, ServeProcess, wait_for

openai = pytest.importorskip("openai", reason="the openai package is not in .venv")

MODEL = "tiny"
OFF = {"reasoning_effort": "none"}
COLD = {"temperature": 0}
REPLAY = CALLA.parent / "tests" / "server" / "replay_server"


def tool(name, **properties):
    """A tool whose arguments have these types."""
    return {"type": "function", "function": {
        "name": name, "description": f"Does {name}",
        "parameters": {"type": "object", "required": list(properties), "properties": {
            key: {"type": value} for key, value in properties.items()}}}}


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content=None, **more):
    return {"role": "assistant", "content": content, **more}


def called(name, arguments, identifier="call_1"):
    """An assistant's message that calls a tool."""
    return assistant(tool_calls=[{"id": identifier, "type": "function", "function": {
        "name": name, "arguments": json.dumps(arguments)}}])


def result(content, identifier="call_1"):
    return {"role": "tool", "tool_call_id": identifier, "content": content}


class Reply:
    """An HTTP answer: status, headers (names in lower case), body as text and, if it is, JSON."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode("utf-8")  # strictly: no broken character may come

    @property
    def json(self):
        return json.loads(self.text)

    def error(self):
        """The error object, whose form is checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, self.text
        assert isinstance(error["message"], str) and error["message"], self.text
        assert isinstance(error["type"], str), self.text
        assert error["param"] is None or isinstance(error["param"], str), self.text
        assert error["code"] is None or isinstance(error["code"], str), self.text
        assert list(self.json) == ["error"]
        return error


class Server(ServeProcess):
    """With the official SDK, and a client that holds answers to their form."""

    # ---- clients ---------------------------------------------------------------------------------

    def client(self, **options):
        """The official SDK's client."""
        return openai.OpenAI(**{"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0,
                                "timeout": 120, **options})

    def async_client(self, **options):
        return openai.AsyncOpenAI(**{"base_url": self.url + "/v1", "api_key": "none",
                                     "max_retries": 0, "timeout": 120, **options})

    def send(self, method, path, body=None, headers=()):
        """A connection that has sent a request, and its response with the headers read."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode("utf-8", "surrogatepass")
        connection.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=()):
        connection, response = self.send(method, path, body, headers)
        try:
            return Reply(response)
        finally:
            connection.close()

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body, **options):
        return self.ask("POST", path, body, **options)

    def chat(self, messages, **fields):
        """The answer's JSON to a chat request that has to succeed; a text is a user's message."""
        reply = self.post("/v1/chat/completions", chat_body(messages, **fields))
        assert reply.status == 200, reply.text
        return reply.json

    def complete(self, prompt, **fields):
        reply = self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **COLD, **fields})
        assert reply.status == 200, reply.text
        return reply.json

    def events(self, path, body):
        """The data of a stream's events, which has to succeed and to end in order."""
        reply = self.post(path, {**body, "stream": True})
        assert reply.status == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["cache-control"] == "no-cache"
        events = []
        assert reply.text.endswith("\n\n")
        for event in reply.text[:-2].split("\n\n"):
            assert event.startswith((": ", "data: ")) and "\n" not in event, event
            if event.startswith("data: "):
                events.append(event[len("data: "):])
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def stream(self, messages, **fields):
        """A streamed chat, in the form of the whole answer; see gather."""
        return gather(self.events("/v1/chat/completions", chat_body(messages, **fields)))

    def prompt(self, messages, **fields):
        """The prompt that messages make."""
        reply = self.post("/apply-template", chat_body(messages, **fields))
        assert reply.status == 200, reply.text
        return reply.json["prompt"]

    def tokens(self, text, **fields):
        """The ids of a text, or of messages."""
        body = {"prompt": text} if isinstance(text, str) else {"messages": text}
        reply = self.post("/tokenize", {"model": MODEL, **body, **fields})
        assert reply.status == 200, reply.text
        return reply.json["tokens"]

    def wait_idle(self):
        """The figures when no request runs or waits."""
        return wait_for(self.is_idle, 20, "an idle server")


class ReplayServer(Server):
    """A server whose model answers with given texts; see tests/server/replay_server.c."""

    def __init__(self, *options):
        super().__init__(*options, program=REPLAY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def say(self, text, **more):
        """What the next answers are: a text, in which tags are tokens; its number of tokens."""
        self.process.stdin.write(json.dumps({"text": text, **more}).encode() + b"\n")
        self.process.stdin.flush()
        line = json.loads(self.process.stdout.readline())
        assert "error" not in line, line
        return line["tokens"]


# ---- answers -------------------------------------------------------------------------------------

def chat_body(messages, **fields):
    """Greedy, unless the fields say otherwise."""
    messages = [user(messages)] if isinstance(messages, str) else messages
    return {"model": MODEL, "messages": messages, **COLD, **fields}


def message(answer, index=0):
    return answer["choices"][index]["message"]


def text_of(answer):
    return message(answer)["content"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def calls(answer, index=0):
    """(name, arguments) of each call."""
    return [(call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message(answer, index).get("tool_calls", [])]


def gather(events):
    """Puts a stream's chunks together as clients do, into the form of the whole answer; checks
    their order, and what has to be in each."""
    first, choices, usage, timings = events[0], {}, [], []
    for event in events:
        assert "error" not in event, event
        assert event["object"] == "chat.completion.chunk"
        for key in ("id", "created", "model", "system_fingerprint"):
            assert event[key] == first[key]
        if event.get("usage"):
            assert event["choices"] == [] and event is events[-1]
            usage.append(event["usage"])
        elif "usage" in first:
            assert event["usage"] is None
        else:
            assert "usage" not in event
        if "timings" in event:
            assert event is events[-1]
            timings.append(event["timings"])
        for choice in event["choices"]:
            take_delta(choices.setdefault(choice["index"], new_choice()), choice)
    assert len(timings) == 1
    whole = {"id": first["id"], "object": "chat.completion", "created": first["created"],
             "model": first["model"], "system_fingerprint": first["system_fingerprint"],
             "choices": [finished(index, choices[index]) for index in sorted(choices)]}
    if "usage" in first:
        assert len(usage) == 1
        whole["usage"] = usage[0]
    return whole


def new_choice():
    return {"deltas": 0, "content": "", "reasoning": "", "calls": [], "logprobs": None,
            "finish": None, "step": 0}


def take_delta(choice, chunk):
    delta = chunk["delta"]
    assert choice["finish"] is None, "nothing comes after the finish reason"
    assert not set(delta) - {"role", "content", "reasoning_content", "reasoning", "tool_calls"}
    if choice["deltas"] == 0:
        assert delta == {"role": "assistant", "content": ""}
    else:
        assert "role" not in delta, "the role comes once"
    choice["deltas"] += 1
    if "reasoning_content" in delta:
        assert "content" not in delta and delta["reasoning_content"]
        choice["reasoning"] += delta["reasoning_content"]
    choice["content"] += delta.get("content", "")
    for piece in delta.get("tool_calls", []):
        take_call(choice["calls"], piece)
    if chunk["logprobs"]:
        choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
        choice["logprobs"]["content"] += chunk["logprobs"]["content"]
    if chunk["finish_reason"]:
        assert delta == {}
        choice["finish"] = chunk["finish_reason"]


def take_call(calls_so_far, piece):
    index = piece["index"]
    if index == len(calls_so_far):
        assert piece["id"] and piece["type"] == "function" and piece["function"]["name"]
        assert piece["function"]["arguments"] == ""
        calls_so_far.append({"id": piece["id"], "type": "function",
                             "function": dict(piece["function"])})
    else:
        assert index == len(calls_so_far) - 1, "a call ends before the next one begins"
        assert set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"}
        calls_so_far[-1]["function"]["arguments"] += piece["function"]["arguments"]


def finished(index, choice):
    assert choice["finish"], "no finish reason came"
    whole = {"role": "assistant", "content": choice["content"] or None, "refusal": None}
    if choice["reasoning"]:
        whole["reasoning_content"] = choice["reasoning"]
    if choice["calls"]:
        whole["tool_calls"] = choice["calls"]
    return {"index": index, "message": whole, "logprobs": choice["logprobs"],
            "finish_reason": choice["finish"]}


def comparable(answer, usage=True):
    """An answer without what differs from request to request."""
    answer = json.loads(json.dumps(answer))
    for key in ("id", "created", "timings", "object", "service_tier"):
        answer.pop(key, None)
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or []:
            call.pop("id")
        if choice.get("message", {}).get("content") == "":
            choice["message"]["content"] = None
        if choice.get("logprobs") and not any(choice["logprobs"].values()):
            choice["logprobs"] = None  # of no tokens at all
    if usage and "usage" in answer:
        answer["usage"].pop("prompt_tokens_details")
    else:
        answer.pop("usage", None)
    return answer


def gather_text(events):
    """The same for a stream of text completions."""
    first, choices = events[0], {}
    for event in events:
        assert "error" not in event and event["object"] == "text_completion"
        assert event["id"] == first["id"] and event["created"] == first["created"]
        for choice in event["choices"]:
            whole = choices.setdefault(choice["index"], {
                "index": choice["index"], "text": "", "logprobs": None, "finish_reason": None})
            assert whole["finish_reason"] is None, "nothing comes after the finish reason"
            whole["text"] += choice["text"]
            whole["finish_reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                whole["logprobs"].setdefault(name, []).extend(values)
            assert choice["finish_reason"] is None or choice["text"] == ""
    assert all(choice["finish_reason"] for choice in choices.values())
    whole = {"id": first["id"], "object": "text_completion", "created": first["created"],
             "model": first["model"], "system_fingerprint": first["system_fingerprint"],
             "choices": [choices[index] for index in sorted(choices)]}
    if "usage" in events[-1] and events[-1]["usage"]:
        assert events[-1]["choices"] == []
        whole["usage"] = events[-1]["usage"]
    return whole
