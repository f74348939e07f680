"""What the shell allows a program: a small stack, little memory; and inputs that never end."""

import json
import resource
import subprocess

import pytest
from conftest import CALLA, ROOT, TINY, assert_one_line_error, calla
from support import GREEDY, HOT, shell

LEVELS = ["portable", "avx2", "avx512", "avx512vnni", "amx"]
GIB = 1 << 30


def limited(*arguments, stack=None, space=None, data=None, stdin=b"", **options):
    def limit():
        for kind, value in ((resource.RLIMIT_STACK, stack), (resource.RLIMIT_AS, space),
                            (resource.RLIMIT_DATA, data)):
            if value:
                resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
    return calla(*arguments, stdin=stdin, preexec_fn=limit, **options)


# ---- a stack of 64 KB ----------------------------------------------------------------------------

@pytest.mark.parametrize("level", LEVELS)
def test_small_stack_at_each_level(level):
    """A prompt long enough for the chunked forms, and decoding; one thread and several."""
    text = "Define hot. " * 40
    for threads in (1, 3):
        arguments = ("run", TINY, text, "--no-think", *GREEDY, "--max-tokens", 8, "--cpu", level,
                     "--threads", threads)
        wanted = calla(*arguments)
        if "this CPU cannot run" in wanted.err:
            pytest.skip(f"this CPU cannot run {level}")
        found = limited(*arguments, stack=64 << 10)
        assert (found.code, found.out) == (0, wanted.out), found.err


@pytest.mark.parametrize("arguments", [
    ("run", TINY, "Define hot.", "--no-think", *GREEDY, "--backend", "ref"),
    ("bench", TINY, "--prompt-lengths", "64", "--decode", "4", "--repeat", "1", "--no-bandwidth"),
    ("bench", "--synthetic", "tiny", "--depth", "64", "--rows", "1,9", "--decode", "4"),
    ("doctor", TINY),
    ("inspect", TINY),
    ("compare", TINY, TINY / "reference" / "eval.txt", "--against", "ref", "--max-chunks", "1",
     "--chunk", "128"),
    ("perplexity", TINY, TINY / "reference" / "eval.txt", "--max-chunks", "2"),
], ids=lambda arguments: " ".join(map(str, arguments[:2])))
def test_small_stack(arguments):
    result = limited(*arguments, stack=64 << 10, timeout=300)
    assert result.code == 0, (result.code, result.err)


def test_small_stack_of_filters_chat_and_synth(tmp_path):
    result = limited("chat", TINY, "--no-think", *GREEDY, stack=64 << 10, stdin=b"Define hot.\n")
    assert (result.code, result.out) == (0, HOT + "\n"), result.err
    result = limited("tokenize", TINY, stack=64 << 10, stdin=b'{"text": "Define hot."}\n')
    assert result.code == 0 and "ids" in result.out
    result = limited("score", TINY, stack=64 << 10, stdin=b'{"name": "a", "ids": [1, 2, 3]}\n')
    assert result.code == 0, result.err
    result = limited("synth", "--shape", "tiny", tmp_path / "new", stack=64 << 10)
    assert result.code == 0, result.err


# ---- memory --------------------------------------------------------------------------------------

def planned(result):
    """(GiB, tokens) of the memory line."""
    line = next(line for line in result.err.split("\n") if line.startswith("memory: "))
    words = line.split()
    return float(words[1]), int(words[words.index("of") + 1])


@pytest.mark.parametrize("kind", ["space", "data"])
def test_default_context_within_own_limits(kind):
    """It becomes shorter until the plan fits; what is asked for and does not fit is refused."""
    arguments = ("run", TINY, "Define hot.", "--no-think", *GREEDY)
    longest = planned(calla(*arguments))
    found = limited(*arguments, **{kind: 400 << 20})
    assert found.code == 0 and found.out == HOT + "\n", found.err
    assert planned(found)[1] < longest[1] and planned(found)[0] < 0.4
    refused = limited(*arguments, "--max-context", longest[1], **{kind: 180 << 20})
    assert_one_line_error(refused, 1, "memory: ", "ulimit leaves 0.", "smaller context")


def test_doctor_tells_own_limits():
    assert "ulimit leaves" not in calla("doctor").out
    assert "; ulimit leaves 0." in limited("doctor", space=GIB).out


# ---- inputs without end --------------------------------------------------------------------------

@pytest.mark.parametrize("command", [
    "bench $TINY --text /dev/zero --no-bandwidth",
    "perplexity $TINY /dev/zero",
    "run $TINY < /dev/zero",
    "run $TINY x --tools /dev/zero",
    "run $TINY --messages /dev/zero",
    "tokenize $TINY < /dev/zero",
    "score $TINY < /dev/zero",
    "chat $TINY < /dev/zero",
    "chat $TINY < <(yes '\\')",
])
def test_inputs_without_end(command):
    """Refused as soon as they are longer than any text may be, with no more memory than that."""
    code, _, err = shell(f"ulimit -v 1500000; $CALLA {command}", timeout=120)
    lines = [line for line in err.split("\n") if line and not line.startswith("memory: ")]
    assert code == 1 and len(lines) == 1, (code, err)
    assert "found more than 268435456 bytes" in lines[0], err


def test_longest_line_is_read():
    """One that ends where the limit is: the line after it is answered, too."""
    script = "import sys; w = sys.stdout.write; w(' ' * (1 << 28)); w('\\n{\"text\": \"a\"}\\n')"
    with subprocess.Popen(["python3", "-c", script], stdout=subprocess.PIPE) as writer:
        done = subprocess.run([str(CALLA), "tokenize", str(TINY)], stdin=writer.stdout, cwd=ROOT,
                              capture_output=True, timeout=120, check=False)
    assert done.returncode == 0 and len(json.loads(done.stdout)["ids"]) == 1, done.stderr
