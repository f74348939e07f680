#!/usr/bin/env python3
"""The bars of `calla serve`, each beside what it is compared with, in one run.

    make && make bench && python3 bench/server.py [--rounds 5] [--model DIR] [NAME …]

  share       one streaming client against `calla bench` (models/tiny on ref, whose token takes
              over 5 ms; another model on cpu)
  overhead    processor time of everything but the engine's threads, for a token
  clients     16 streaming clients against one, and against `calla bench --rows 16`
  turns       time to the first token at turn 10 of a chat against turn 2
  chunks      a prompt of 2,000 tokens in one piece and in slices of 0.5, 0.25 and 0.1 seconds
  disk        first token of a prompt of 4K tokens: cold, and after a restart with --cache-disk

Clients are build/bench/stream_clients. What is compared alternates within a round, since machines
drift; a ratio is the median of the rounds' ratios, with its range.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "e2e"))
from serve_process import CALLA, ROOT, TINY, ServeProcess

CLIENTS = ROOT / "build/bench/stream_clients"
model = TINY
TEXT = "Tell me everything that you know about hot and cold water in the north of the country."


class Server(ServeProcess):
    def __init__(self, *options):
        super().__init__(*options, model=model)

    def chat(self, messages, **fields):
        body = {"model": model.name, "messages": messages, "temperature": 0, "enable_thinking": False,
                **fields}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def stream(self, n, tokens):
        """n clients at once, each for `tokens` tokens of text."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i in range(n):
                paths.append(pathlib.Path(folder) / f"{i}.json")
                paths[-1].write_text(json.dumps({
                    "model": model.name, "stream": True, "stream_options": {"include_usage": True},
                    "seed": i, "ignore_eos": True, "max_tokens": tokens, "enable_thinking": False,
                    "messages": [{"role": "user", "content": f"{i}. {TEXT}"}]}))
            done = subprocess.run([CLIENTS, str(self.port), str(n), *paths], capture_output=True,
                                  text=True)
            if done.returncode:
                sys.exit(done.stderr)
            return json.loads(done.stdout)

    def processor_seconds(self):
        """Of all threads, and of the engine's."""
        def look(folder):
            name, rest = (folder / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            return name, sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")
        process = pathlib.Path(f"/proc/{self.pid}")
        threads = [look(task) for task in (process / "task").iterdir()]
        return look(process)[1], sum(seconds for name, seconds in threads
                                     if name in ("calla-engine", "calla-worker"))


def bench(*options):
    """tok/s that `calla bench` decodes with, all sequences together."""
    done = subprocess.run([CALLA, "bench", model, "--json", "--no-bandwidth", "--repeat", "1",
                           *map(str, options)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["results"][0]["decode_tok_per_s"]["median"]


def spread(values, digits=1):
    return (f"{statistics.median(values):.{digits}f} "
            f"({min(values):.{digits}f}-{max(values):.{digits}f})")


def ratio(above, below):
    return spread([a / b for a, b in zip(above, below)], 2)


def measure_share(rounds):
    ours, theirs = [], []
    backend = ("--backend", "ref" if model == TINY else "cpu")
    with Server("--parallel", 1, *backend) as server:
        server.stream(1, 32)
        for _ in range(rounds):
            ours.append(server.stream(1, 256)["tokens_per_second"])
            theirs.append(bench(*backend, "--depth", 32, "--decode", 256))
    print(f"share: one client {spread(ours)} tok/s, bench {spread(theirs)} tok/s: "
          f"{ratio(ours, theirs)} (bar 0.97)")


def measure_overhead(rounds):
    cost = []
    with Server() as server:
        server.stream(1, 200)
        for _ in range(rounds):
            every, engine = server.processor_seconds()
            tokens = server.stream(1, 4000)["tokens"]
            later, later_engine = server.processor_seconds()
            cost.append(((later - every) - (later_engine - engine)) / tokens * 1e6)
    print(f"overhead: {spread(cost)} us of processor time a token (bar 30)")


def measure_clients(rounds):
    one, many, rows, gaps = [], [], [], []
    with Server("--parallel", 16) as server:
        server.stream(16, 50)
        for _ in range(rounds):
            one.append(server.stream(1, 1000)["tokens_per_second"])
            result = server.stream(16, 400)
            many.append(result["tokens_per_second"])
            gaps.append(result["gap_p99_ms"])
            rows.append(bench("--rows", 16, "--depth", 200, "--decode", 400))
        most = server.gauge("decode_rows_max")
    print(f"clients: one {spread(one)} tok/s, 16 {spread(many)} tok/s: {ratio(many, one)} times "
          f"(bar 2); bench --rows 16 {spread(rows)} tok/s: {ratio(many, rows)} (bar 0.90); "
          f"rows of a step at most {most:.0f} (bar 16); p99 gap {spread(gaps)} ms")


def first_token(answer):
    return answer["timings"]["prompt_ms"]


def measure_turns(rounds):
    second, tenth, cached = [], [], []
    for turn in range(rounds):
        with Server() as server:
            messages = []
            for i in range(1, 11):
                messages.append({"role": "user", "content": f"{turn} {i} " + TEXT * 15})
                answer = server.chat(messages, max_tokens=12)
                messages.append({"role": "assistant",
                                 "content": answer["choices"][0]["message"]["content"]})
                if i == 2:
                    second.append(first_token(answer))
            tenth.append(first_token(answer))
            usage = answer["usage"]
            cached.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
    print(f"turns: first token at turn 2 {spread(second)} ms, at turn 10 {spread(tenth)} ms: "
          f"{ratio(tenth, second)} times (bar 1.3); "
          f"{statistics.median(cached):.0f} tokens of turn 10 were read")


def measure_disk(rounds):
    cold, warm, tokens = [], [], 0
    words = " ".join(f"number {i} is {i * 7}" for i in range(520))
    for turn in range(rounds):
        folder = tempfile.mkdtemp()
        messages = [{"role": "system", "content": f"{turn} {words}"},
                    {"role": "user", "content": "Define hot."}]
        options = ("--max-context", "8K", "--cache-disk", folder)
        for times in (cold, warm):
            with Server(*options) as server:
                start = time.monotonic()
                answer = server.chat(messages, max_tokens=1)
                times.append(1000 * (time.monotonic() - start))
                tokens = answer["usage"]["prompt_tokens"]
        shutil.rmtree(folder)
    print(f"disk: a prompt of {tokens} tokens, first token cold {spread(cold)} ms, restarted "
          f"{spread(warm)} ms: {ratio(cold, warm)} times faster (bar 5)")


def measure_chunks(rounds):
    seconds = (60, 0.5, 0.25, 0.1)
    times, gaps = {chunk: [] for chunk in seconds}, {chunk: [] for chunk in seconds}
    for turn in range(rounds):
        for chunk in seconds:
            with Server("--parallel", 2, "--chunk-seconds", chunk) as server:
                long_one = lambda: server.chat(
                    [{"role": "user", "content": f"{time.time()} " + TEXT * 100}], max_tokens=1)
                server.chat([{"role": "user", "content": TEXT * 5}], max_tokens=1)
                times[chunk].append(first_token(long_one()))
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    stream = pool.submit(server.stream, 1, 4000 if model == TINY else 60)
                    time.sleep(1)
                    answer = long_one()
                    gaps[chunk].append(stream.result()["gap_max_ms"])
    for chunk in seconds:
        print(f"chunks: {answer['usage']['prompt_tokens']} tokens in slices of {chunk} s: "
              f"{spread(times[chunk])} ms, {ratio(times[chunk], times[60])} times those of 60 s; "
              f"longest gap of another's answer {spread(gaps[chunk])} ms")


def main():
    global model
    tests = {name[8:]: function for name, function in globals().items()
             if name.startswith("measure_")}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=pathlib.Path, default=TINY)
    parser.add_argument("tests", nargs="*", metavar="NAME", help=", ".join(tests))
    given = parser.parse_args()
    model = given.model.resolve()
    for name in given.tests or tests:
        if name not in tests:
            parser.error(f"found '{name}', wanted {', '.join(tests)}")
        tests[name](given.rounds)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
