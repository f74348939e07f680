"""Sixteen clients of mixed behaviour against a running server, for as long as one likes:

    .venv/bin/python tests/e2e/soak.py [--seconds 1800] [serve's options …]

prints requests by status, memory, descriptors and threads (after a warm-up of a tenth of the time,
and at the end), the gaps between tokens, and errors; exits 1 when memory grew by more than 5 %,
anything else grew at all, or a request failed. The end-to-end tests run a minute of it."""

import argparse
import collections
import contextlib
import json
import random
import sys
import threading
import time

from serve_support import CHAT, TEXT, Gone, Server, chat_body, text_body, wait_for
from support import WEATHER

CLIENTS = 16
SYSTEM = {"role": "system", "content": "You define words. " + "Be brief and exact. " * 10}


class Soak:
    def __init__(self, server):
        self.server = server
        self.statuses, self.kinds = collections.Counter(), collections.Counter()
        self.gaps, self.errors = [], []
        self.end = False

    # ---- what clients do; each gives a status

    def stream(self, client, noise, body, leave_after=None):
        client.request("POST", CHAT, {**body, "stream": True})
        head = client.head()
        if head.status != 200:
            client.exactly(int(head.headers["content-length"]))
            return head.status
        last, n, data = None, 0, b""
        while piece := client.chunk():
            now = time.monotonic()
            if last and piece.startswith(b"data: {"):
                self.gaps.append(now - last)
            last, n, data = now, n + 1, piece
            if n == leave_after:
                client.reset() if noise.random() < 0.5 else client.close()
                return "left"
        assert data.endswith(b"data: [DONE]\n\n") and b'"error"' not in data, data[-300:]
        return 200

    def whole(self, client, body, path=CHAT):
        client.request("POST", path, body)
        reply = client.reply()
        if reply.status == 200:
            usage = reply.json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
        return reply.status

    def chat(self, client, noise):
        """A conversation of three turns that grows."""
        messages = [SYSTEM]
        for _ in range(3):
            messages.append({"role": "user", "content": f"Define {noise.choice(['hot', 'cold', 'red', 'sea'])}."})
            client.request("POST", CHAT, {"model": "tiny", "messages": messages, "max_tokens": 24})
            reply = client.reply()
            if reply.status != 200:
                return reply.status
            message = reply.json()["choices"][0]["message"]
            messages.append({"role": "assistant", "content": message["content"] or ""})
        return 200

    def one(self, client, noise):
        text = noise.choice(["Define hot.", "Define cold.", f"Say {noise.randrange(1000)}."])
        body = chat_body(text, max_tokens=noise.randrange(1, 48))
        kind = noise.choice(["stream"] * 4 + ["whole", "chat", "abort", "leave", "slow", "bad", "long", "tools", "text",
                                              "same", "unknown"])
        self.kinds[kind] += 1
        if kind == "stream":
            return self.stream(client, noise, body)
        if kind == "whole":
            return self.whole(client, body)
        if kind == "chat":
            return self.chat(client, noise)
        if kind == "abort":
            return self.stream(client, noise, {**body, "max_tokens": 2000, "ignore_eos": True}, noise.randrange(1, 20))
        if kind == "leave":
            client.request("POST", CHAT, chat_body("hot " * 500 + str(noise.random()), max_tokens=500))
            time.sleep(noise.random() * 0.3)
            client.close()
            return "left"
        if kind == "slow":
            client.request("POST", CHAT, {**body, "max_tokens": 300, "ignore_eos": True, "stream": True})
            time.sleep(noise.random() * 2)
            client.close()
            return "left"
        if kind == "bad":
            client.request("POST", CHAT, json.dumps(body)[:noise.randrange(5, 40)])
            return client.reply().status
        if kind == "long":
            return self.whole(client, chat_body(f"{noise.randrange(9)} " + "cold " * noise.randrange(200, 800), max_tokens=4))
        if kind == "tools":
            return self.stream(client, noise, {**chat_body("Weather in Rome?", max_tokens=60), "tools": WEATHER,
                                               "tool_choice": "required", "enable_thinking": False})
        if kind == "text":
            return self.whole(client, text_body(["Once", "hot"], n=2, max_tokens=8, logprobs=2, echo=True), TEXT)
        if kind == "same":
            return self.whole(client, {"model": "tiny", "messages": [SYSTEM, {"role": "user", "content": "Define red."}],
                                       "max_tokens": 8})
        client.request("GET", noise.choice(["/metrics", "/health", "/v1/models", "/nothing"]))
        return client.reply().status

    def client(self, seed):
        noise, connection = random.Random(seed), None
        while not self.end:
            try:
                connection = connection or self.server.dial(120)
                status = self.one(connection, noise)
                self.statuses[status] += 1
                if status == 429:
                    time.sleep(0.2)
                if status == "left" or noise.random() < 0.2:
                    connection.close()
                    connection = None
            except Exception as problem:  # whatever it is, it is an error of the server's
                self.errors.append(f"{type(problem).__name__}: {str(problem)[:300]}")
                with contextlib.suppress(Exception):
                    connection.close()
                connection = None
        if connection:
            connection.close()

    # ---- measuring

    def figures(self):
        s = self.server
        return {"memory": s.resident(), "descriptors": s.descriptors(), "threads": s.threads()}

    def run(self, seconds):
        """Figures at rest: after a warm-up, and at the end."""
        rests = []
        for part in (seconds * 0.4 if seconds < 300 else seconds * 0.1, None):
            self.end = False
            threads = [threading.Thread(target=self.client, args=(i + 100 * len(rests),)) for i in range(CLIENTS)]
            for thread in threads:
                thread.start()
            time.sleep(part if part else seconds * (0.6 if seconds < 300 else 0.9))
            self.end = True
            for thread in threads:
                thread.join()
            wait_for(self.server.is_idle, 30, "an idle server")
            time.sleep(0.5)
            rests.append(self.figures())
        return rests


def soak(seconds, *options):
    """Runs it and prints; gives the list of what is not as it should be."""
    with Server("--parallel", 8, "--max-context", 2048, "--cache-ram", "64M", "--queue", 100, *options) as server:
        assert server.chat("hi", max_tokens=1).status == 200
        soaking = Soak(server)
        start = soaking.figures()
        warm, end = soaking.run(seconds)
        values = server.metrics()
    gaps = sorted(soaking.gaps)
    p99 = gaps[int(len(gaps) * 0.99)] if gaps else 0
    print("requests by status:", dict(soaking.statuses), "by kind:", dict(soaking.kinds))
    for name in start:
        print(f"{name}: {start[name]} at the start, {warm[name]} warm, {end[name]} at the end")
    print(f"gaps between tokens: median {gaps[len(gaps) // 2] * 1e3 if gaps else 0:.1f} ms, 99 % {p99 * 1e3:.1f} ms, "
          f"longest {gaps[-1] * 1e3 if gaps else 0:.0f} ms; {values['calla_generated_tokens_total']:.0f} tokens, "
          f"cache {values['calla_cache_bytes'] / 2 ** 20:.0f} MiB, {values['calla_cache_evictions_total']:.0f} evictions")
    print(f"{len(soaking.errors)} errors", *soaking.errors[:10], sep="\n")
    problems = list(soaking.errors)
    problems += [f"status {s}" for s in soaking.statuses if s not in (200, 400, 404, 429, "left")]
    if end["memory"] > warm["memory"] * 1.05:
        problems.append(f"memory grew by {100 * (end['memory'] / warm['memory'] - 1):.1f} %")
    problems += [f"{name} grew" for name in ("descriptors", "threads") if end[name] > warm[name]]
    return problems


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1800)
    arguments, others = parser.parse_known_args()
    found = soak(arguments.seconds, *others)
    print("problems:", *(found or ["none"]))
    sys.exit(1 if found else 0)
