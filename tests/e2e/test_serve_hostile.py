"""2,000 hostile requests by 8 threads. The sanitizer stages of scripts/test run this, too, with
CALLA set to their builds."""

import collections
import re
import threading
import time
import traceback

from hostile import Hostile
from serve_process import wait_for
from serve_support import CHAT, TEXT, Server, chat_body, text_body
from support import WEATHER

THREADS, EACH = 8, 250
REPORT = re.compile(r"Sanitizer|runtime error|Assertion|stack smashing|free\(\)|malloc\(")


def attack(server, first, results, problems):
    for seed in range(first, first + EACH):
        request = Hostile(seed)
        client = server.dial(120)
        try:
            status = request.play(client)
        except Exception:
            problems.append(f"seed {seed}: {request.data[:300]!r}\n{traceback.format_exc()}")
            status = None
        finally:
            client.reset() if seed % 2 else client.close()
        if status is not None and status >= 500 and status != 503:
            if not (status in (501, 505) and not request.sound):  # methods and versions
                problems.append(f"seed {seed}: {status} for {request.data[:2000]!r}")
        results[status] += 1


def test_2000_hostile_requests():
    first = 1000
    with Server("--parallel", 4, "--max-context", 288, "--queue", 100) as server:
        assert server.chat("hi", max_tokens=1).status == 200
        descriptors = server.descriptors()
        results, problems = collections.Counter(), []
        threads = [threading.Thread(target=attack, args=(server, first + i * EACH, results, problems))
                   for i in range(THREADS)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - start
        values = server.metrics()
        print(f"{seconds:.0f} s, by status: {dict(results)}; tokens read, generated:",
              values["calla_prompt_tokens_read_total"], values["calla_generated_tokens_total"],
              "in", values["calla_prefill_seconds_total"], values["calla_decode_seconds_total"], "s")
        assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:5])
        assert server.process.poll() is None and sum(results.values()) == THREADS * EACH
        wait_for(server.is_idle, 20, "an idle server")
        wait_for(lambda: server.descriptors() <= descriptors, 10, "descriptors given back")
        reply = server.chat("Define hot.", max_tokens=40, temperature=0, enable_thinking=False)
        assert reply.status == 200 and "hot" in reply.text()
        assert results[200] > 80 and results[400] > 300  # it is not all refused at the door
        assert server.stop() == 0, server.log()[-5000:]
        assert not REPORT.search(server.log()), server.log()[-5000:]


def test_leaving_while_the_engine_uses_the_request():
    """What a request owns (stop ids, biases, a forced call) outlives the step that still reads it."""
    fields = {"min_tokens": 400, "stop_token_ids": list(range(200)), "logit_bias": {str(i): 1 for i in range(250)},
              "max_tokens": 400}
    bodies = [(CHAT, chat_body("hi", tools=WEATHER, tool_choice="required", n=4, **fields)),
              (CHAT, chat_body("hi", stream=True, thinking_budget=3, logprobs=True, top_logprobs=20, **fields)),
              (TEXT, text_body(["hi", "ho"], n=2, echo=True, logprobs=5, stream=True, **fields))]
    with Server("--parallel", 4, "--max-context", 512) as server:
        for i in range(60):
            with server.dial() as client:
                client.request("POST", *bodies[i % 3])
                time.sleep(i % 10 * 0.01)
        wait_for(server.is_idle, 20, "an idle server")
        assert server.chat("hi", max_tokens=1).status == 200
        assert server.stop() == 0, server.log()[-5000:]
        assert not REPORT.search(server.log()), server.log()[-5000:]
