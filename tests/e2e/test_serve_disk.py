"""--cache-disk: what was read outlives the server, however it ends, and is never wrong."""

import os
import random
import time

import pytest
from conftest import TINY, calla
from serving import COLD, OFF, Server, system, user

CONTEXT = ("--max-context", 2048)


def conversation(number, words=250):
    """Some 600 tokens that begin unlike any other number's."""
    text = " ".join(f"{number} {i * 7}" for i in range(words // 2))
    return [system(text), user("Define hot.")]


def ask(server, number, **fields):
    """(text, cached tokens) of a greedy answer."""
    answer = server.chat(conversation(number), max_tokens=8, **OFF, **COLD, **fields)
    return (answer["choices"][0]["message"]["content"],
            answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def wanted():
    """What a server without any cache answers, by number."""
    with Server(*CONTEXT, "--cache-ram", 0) as server:
        known = {}

        def answer(number):
            if number not in known:
                known[number] = ask(server, number)[0]
            return known[number]
        yield answer


def files(folder):
    return sorted(name for name in os.listdir(folder) if name != "lock")


def size(folder):
    """Bytes of all files, which may come and go meanwhile."""
    total = 0
    for name in files(folder):
        try:
            total += os.stat(folder / name).st_size
        except FileNotFoundError:
            pass
    return total


def test_comes_back_after_a_restart(tmp_path, wanted):
    options = (*CONTEXT, "--cache-disk", tmp_path / "cache")
    with Server(*options) as server:
        assert ask(server, 1) == (wanted(1), 0)
        prompt = len(server.tokens(conversation(1), **OFF))
    assert len(files(tmp_path / "cache")) == 1  # SIGTERM came right behind the answer
    with Server(*options) as server:
        text, cached = ask(server, 1)
        assert text == wanted(1) and prompt - 4 <= cached < prompt
        metrics = server.metrics()
        assert metrics["calla_disk_cache_loads_total"] == 1
        assert metrics["calla_disk_cache_files"] == 1
        other = [conversation(1)[0], user("Define cold.")]  # the system block is there, too
        answer = server.chat(other, max_tokens=1, **OFF, **COLD)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > prompt // 2
    assert files(tmp_path / "cache")


def test_row_15_of_another_context_or_model(tmp_path, wanted):
    cache, other = tmp_path / "cache", tmp_path / "other"
    with Server(*CONTEXT, "--cache-disk", cache) as server:
        ask(server, 1)
    with Server("--max-context", 3072, "--cache-disk", cache) as server:
        server.wait_line(r"cache-disk: .*another context size: removed")
        assert files(cache) == []
        assert ask(server, 1) == (wanted(1), 0)
    assert calla("synth", other, "--shape", "tiny", "--seed", 5).code == 0
    with Server("--max-context", 3072, "--cache-disk", cache, model=other) as server:
        server.wait_line(r"cache-disk: .*another model: removed")
        assert files(cache) == []


def test_one_server_at_a_time(tmp_path):
    with Server(*CONTEXT, "--cache-disk", tmp_path):
        second = calla("serve", TINY, "--port", 0, *CONTEXT, "--cache-disk", tmp_path)
        assert second.code == 1
        assert "cache-disk: " in second.err and "in use by another process" in second.err
    nowhere = calla("serve", TINY, "--port", 0, *CONTEXT, "--cache-disk", tmp_path / "no" / "where")
    assert nowhere.code == 1 and str(tmp_path / "no" / "where") in nowhere.err


def test_bytes_are_bounded(tmp_path, wanted):
    with Server(*CONTEXT, "--cache-disk", tmp_path) as server:
        ask(server, 0)
    limit = 5 * size(tmp_path) // 2
    with Server(*CONTEXT, "--cache-disk", tmp_path, "--cache-disk-bytes", limit) as server:
        for number in range(1, 6):
            assert ask(server, number)[0] == wanted(number)
            assert size(tmp_path) <= limit
        assert server.metrics()["calla_disk_cache_failures_total"] == 0
    assert len(files(tmp_path)) == 2
    with Server(*CONTEXT, "--cache-disk", tmp_path, "--cache-disk-bytes", limit) as server:
        assert ask(server, 5)[1] > 0  # the last ones are there


def test_killed_fifty_times(tmp_path, wanted):
    rng = random.Random(4)
    came_back = 0
    for life in range(50):
        server = Server(*CONTEXT, "--cache-disk", tmp_path)
        assert not [name for name in files(tmp_path) if name.endswith(".part")]
        number = life // 2  # each one again in the next life
        text, cached = ask(server, number)
        assert text == wanted(number)
        came_back += cached > 0
        if rng.random() < 0.8:
            # somewhere in the file: a few milliseconds for what a disk makes of some megabytes
            time.sleep(rng.random() * 0.03)
        server.kill()
        server.log_path.unlink()
    assert came_back > 0  # some were whole
    with Server(*CONTEXT, "--cache-disk", tmp_path) as server:
        for number in range(25):
            assert ask(server, number)[0] == wanted(number)
