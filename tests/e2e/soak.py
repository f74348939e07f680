#!/usr/bin/env python3
"""A server under clients of every kind for a while: whether its memory, descriptors and threads stay
where they are, and whether everybody is answered as they should be.

    make && python3 tests/e2e/soak.py [--seconds 1800] [--clients 16] [-- OPTIONS OF calla serve]

Clients stream, ask for whole answers, go on with conversations, call tools, leave in the middle of a
prompt or of an answer, read slowly, send what is no JSON or too long. Prints figures as JSON; exits
with 1 when something is wrong. Gaps between tokens are as these clients see them, who share one
interpreter. test_serve_soak.py runs it for a minute.
"""
import argparse
import collections
import http.client
import json
import random
import socket
import statistics
import sys
import threading
import time

from serve_process import ServeProcess

# small enough that caches and pools are full, and entries go, within the first seconds
OPTIONS = ("--max-context", "4K", "--parallel", "8", "--cache-ram", "48M", "--queue", "12")
WORDS = ("hot cold warm useful useless water stone weather city Rome Paris define opposite what is "
         "the of and a word that means").split()
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]
GROWTH = 1.05    # of resident memory, in a run that is long enough for everything to be full
LONG = 600       # seconds
BESIDE = 96 << 20 # bytes beside the plan: program, libraries, requests
SPARE = 8        # descriptors and threads more than at the start, of connections that just ended


class Soak:
    def __init__(self, port, seed):
        self.port = port
        self.rng = random.Random(seed)
        self.statuses = collections.Counter()
        self.wrong = []
        self.gaps = []

    # ---- requests --------------------------------------------------------------------------------

    def words(self, n):
        return " ".join(self.rng.choice(WORDS) for _ in range(n))

    def body(self, **fields):
        return {"model": "tiny", "max_tokens": self.rng.randint(1, 60), "seed": self.rng.randint(0, 9),
                "messages": [{"role": "user", "content": self.words(self.rng.randint(1, 40))}],
                "enable_thinking": self.rng.random() < 0.5, **fields}

    def open(self, body, path="/v1/chat/completions"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        return connection

    def answer(self, body, wanted=(200, 429), path="/v1/chat/completions"):
        """(status, JSON) of a whole answer."""
        connection = self.open(body, path)
        try:
            response = connection.getresponse()
            text = response.read()
            self.statuses[response.status] += 1
            if response.status not in wanted:
                self.wrong.append(f"status {response.status}: {text[:200]}")
            return response.status, json.loads(text)
        finally:
            connection.close()

    # ---- clients ---------------------------------------------------------------------------------

    def whole(self):
        status, answer = self.answer(self.body(n=self.rng.choice((1, 1, 1, 3))))
        if status == 200 and not answer["usage"]["completion_tokens"]:
            self.wrong.append(f"no token: {answer}")

    def completion(self):
        self.answer({"model": "tiny", "prompt": self.words(8), "max_tokens": 20, "echo": True,
                     "logprobs": 2}, path="/v1/completions")

    def conversation(self):
        messages = [{"role": "system", "content": self.words(120)}]
        for _ in range(3):
            messages.append({"role": "user", "content": self.words(30)})
            status, answer = self.answer(self.body(messages=messages, max_tokens=20))
            if status != 200:
                return
            messages.append(answer["choices"][0]["message"])
            messages[-1] = {key: value for key, value in messages[-1].items() if value is not None}

    def tools(self):
        status, answer = self.answer(self.body(tools=TOOLS, tool_choice="required",
                                               enable_thinking=False, max_tokens=60))
        choice = answer["choices"][0] if status == 200 else {"finish_reason": "length"}
        if choice["finish_reason"] == "stop":  # a call that the model spoilt behind its opening
            content = choice["message"]["content"] or ""
            if not content.startswith("<tool_call>\n<function=get_weather>\n"):
                self.wrong.append(f"no call: {answer}")

    def stream(self, stop_after=None, pause=0):
        connection = self.open(self.body(stream=True, max_tokens=self.rng.randint(1, 150)))
        try:
            response = connection.getresponse()
            self.statuses[response.status] += 1
            if response.status == 429:
                return
            last, n = None, 0
            for line in response:
                now = time.monotonic()
                if line.startswith(b"data: {"):
                    if b'"error"' in line:
                        self.wrong.append(line[:200].decode())
                    if last and not pause:
                        self.gaps.append(now - last)
                    last = now
                    n += 1
                    time.sleep(pause)
                if n == stop_after:
                    return
            if line.strip() and stop_after is None:
                self.wrong.append(f"a stream ended with {line[:100]}")
        finally:
            connection.close()

    def leaver(self):
        self.stream(stop_after=self.rng.randint(1, 20))

    def slow(self):
        self.stream(pause=0.02)

    def long_prompt_left(self):
        connection = self.open(self.body(messages=[{"role": "user", "content": self.words(1500)}]))
        time.sleep(self.rng.random() * 0.5)
        connection.close()

    def too_long(self):
        self.answer(self.body(messages=[{"role": "user", "content": self.words(9000)}]), (400,))

    def broken(self):
        good = json.dumps(self.body()).encode()
        bad = self.rng.choice((good[:self.rng.randint(0, len(good) - 1)], b"\xff\xfe", b"[" * 5000,
                               json.dumps(self.body(temperature="hot")).encode(),
                               json.dumps(self.body(n=100)).encode()))
        self.answer(bad, (400,))

    def garbage(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as raw:
            raw.sendall(bytes(self.rng.randrange(256) for _ in range(200)) + b"\r\n\r\n")
            try:
                raw.recv(1000)
            except OSError:
                pass

    def run(self, until):
        kinds = [(self.whole, 5), (self.completion, 3), (self.conversation, 3), (self.tools, 2),
                 (self.stream, 5), (self.leaver, 4), (self.slow, 1), (self.long_prompt_left, 1),
                 (self.too_long, 1), (self.broken, 3), (self.garbage, 1)]
        choices = [kind for kind, weight in kinds for _ in range(weight)]
        while time.monotonic() < until:
            kind = self.rng.choice(choices)
            try:
                kind()
            except (OSError, http.client.HTTPException, ValueError, KeyError) as problem:
                self.wrong.append(f"{kind.__name__}: {problem!r}")


# ---- the process ---------------------------------------------------------------------------------

def look(server):
    """(resident bytes, descriptors, threads)"""
    return server.resident(), server.descriptors(), server.threads()


def planned(server):
    """Bytes."""
    stated = server.wait_line(r"memory: ([\d.]+) GiB .*of which ([\d.]+) outside")
    return round((float(stated[1]) + float(stated[2])) * (1 << 30))


def soak(seconds, clients, options):
    """Figures; "wrong" lists what must not be."""
    with ServeProcess(*options) as server:
        plan, fresh, begin = planned(server), look(server), time.monotonic()
        soaks = [Soak(server.port, seed) for seed in range(clients)]
        threads = [threading.Thread(target=one.run, args=(begin + seconds,)) for one in soaks]
        for thread in threads:
            thread.start()
        samples = []
        while time.monotonic() < begin + seconds and server.process.poll() is None:
            samples.append((time.monotonic() - begin, *look(server)))
            time.sleep(seconds / 300)
        for thread in threads:
            thread.join()
        wrong = [line for one in soaks for line in one.wrong]
        if server.process.poll() is not None:
            return {"wrong": [f"the server ended with {server.process.returncode}", *wrong[:10]]}
        time.sleep(1)
        idle = look(server)
        code = server.stop()
        wrong += [f"the server ended with {code}"] if code else []
    early = [row for row in samples if 0.3 * seconds <= row[0] < 0.5 * seconds]
    late = [row for row in samples if row[0] >= 0.8 * seconds]
    middle = [[statistics.median(row[k] for row in rows) for k in (1, 2, 3)]
              for rows in (early, late)]
    if max(row[1] for row in samples) > plan + BESIDE:
        wrong.append(f"resident memory was above the plan of {plan} bytes")
    if seconds >= LONG and middle[1][0] > GROWTH * middle[0][0]:
        wrong.append(f"resident memory grew from {middle[0][0]} to {middle[1][0]} bytes")
    if idle[1] > fresh[1] + SPARE or idle[2] > fresh[2] + SPARE:
        wrong.append(f"idle again with {idle[1]} descriptors and {idle[2]} threads, at the start "
                     f"{fresh[1]} and {fresh[2]}")
    gaps = sorted(gap for one in soaks for gap in one.gaps)
    statuses = sum((one.statuses for one in soaks), collections.Counter())
    names = ("after 30 to 50 %", "last 20 %", "idle")
    return {"seconds": seconds, "clients": clients, "requests": dict(sorted(statuses.items())),
            "planned_bytes": plan,
            "resident_bytes": dict(zip(names, (middle[0][0], middle[1][0], idle[0]))),
            "descriptors": dict(zip(names, (middle[0][1], middle[1][1], idle[1]))),
            "threads_idle": idle[2],
            "gap_p99_ms": 1000 * gaps[len(gaps) * 99 // 100] if gaps else None,
            "wrong": wrong}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    figures = soak(given.seconds, given.clients, given.options or OPTIONS)
    print(json.dumps(figures, indent=1))
    sys.exit(1 if figures["wrong"] else 0)


if __name__ == "__main__":
    main()
