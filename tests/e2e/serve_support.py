"""A client over a bare socket that sends what no SDK would."""

import contextlib
import json
import re
import socket
import struct

from serve_process import ServeProcess

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


class Server(ServeProcess):
    """With a log in JSON, unless told otherwise."""

    def __init__(self, *options, log="json", **more):
        super().__init__("--log", log, *options, **more)

    def records(self):
        """The JSON lines of requests."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    # ---- talking to it

    def dial(self, timeout=30, **options):
        return Client(self.port, timeout, **options)

    def ask(self, method, path, body=None, timeout=30, **headers):
        """A request on a connection of its own; the reply."""
        with contextlib.closing(self.dial(timeout)) as client:
            client.request(method, path, body, **headers)
            return client.reply(method)

    def chat(self, text, timeout=60, **fields):
        return self.ask("POST", CHAT, chat_body(text, **fields), timeout)


def chat_body(text, **fields):
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def text_body(prompt, **fields):
    return {"model": "tiny", "prompt": prompt, **fields}


class Gone(Exception):
    """The server closed the connection before a reply was whole."""


class Reply:
    def __init__(self, status, headers, body=b""):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The error object, whose form is held to what clients expect."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"]
        assert isinstance(error["type"], str) and error["type"]
        return error

    def text(self):
        return self.json()["choices"][0]["message"]["content"]

    def events(self):
        """The data of a whole stream, which must end as streams do."""
        assert self.body.endswith(b"\n\n")
        events = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]", self.body[-300:]
        return [json.loads(event) for event in events[:-1]]


class Client:
    """One connection. Reads replies one after the other, so that pipelined ones can be told apart."""

    def __init__(self, port, timeout=30, receive_buffer=None):
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = b""

    def close(self):
        self.socket.close()

    def reset(self):
        """Ends the connection without a goodbye (RST)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def request(self, method, path, body=None, **headers):
        self.send(request_bytes(method, path, body, **headers))

    def more(self):
        """The next bytes; b"" at the end."""
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def fill(self):
        piece = self.more()
        if not piece:
            raise Gone(self.held)
        self.held += piece

    def until(self, mark):
        while mark not in self.held:
            self.fill()
        head, self.held = self.held.split(mark, 1)
        return head

    def exactly(self, n):
        while len(self.held) < n:
            self.fill()
        data, self.held = self.held[:n], self.held[n:]
        return data

    def head(self):
        """Status and headers; the body is still to come."""
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        match = re.fullmatch(r"HTTP/1\.[01] (\d{3}) .*", lines[0])
        assert match, lines[0]
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
        return Reply(int(match[1]), headers)

    def chunk(self):
        """The next piece of a chunked body; b"" is the last one."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        return data

    def reply(self, method="GET"):
        reply = self.head()
        while reply.status == 100:
            reply = self.head()
        if method == "HEAD" or reply.status in (204, 304):
            return reply
        if reply.headers.get("transfer-encoding") == "chunked":
            while piece := self.chunk():
                reply.body += piece
        elif "content-length" in reply.headers:
            reply.body = self.exactly(int(reply.headers["content-length"]))
        else:
            reply.body, self.held = self.held, b""
            while piece := self.more():
                reply.body += piece
        return reply

    def is_closed(self, seconds=5):
        """Whether the server ends the connection, having sent nothing more."""
        self.socket.settimeout(seconds)
        try:
            return not self.held and self.more() == b""
        except TimeoutError:
            return False


def request_bytes(method, path, body=None, **headers):
    """A request as bytes; objects as JSON. A header's underscores stand for hyphens."""
    fields = {"Host": "localhost"}
    if body is not None:
        body = json.dumps(body).encode() if not isinstance(body, (bytes, str)) else body
        body = body.encode() if isinstance(body, str) else body
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items() if v is not None)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")
