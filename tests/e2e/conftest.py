"""What every end-to-end test needs: the program as a user runs it, and the files of the project."""

import json
import os
import subprocess

import pytest
from serve_process import CALLA, ROOT, TINY

REFERENCE = TINY / "reference"


class Result:
    """A finished run: exit code, stdout and stderr as bytes and as text."""

    def __init__(self, done):
        self.code = done.returncode
        self.out_bytes, self.err_bytes = done.stdout, done.stderr
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode("utf-8", "replace")

    def lines(self):
        """The JSON objects of a filter's output; lines end at \\n only."""
        return [json.loads(line) for line in self.out.split("\n") if line]


def calla(*arguments, stdin=b"", timeout=120, **options):
    """Runs calla with the arguments from the project's root."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    environment = {**os.environ, **options.pop("env", {})}
    done = subprocess.run([str(CALLA), *map(str, arguments)], input=stdin, capture_output=True,
                          cwd=ROOT, timeout=timeout, env=environment, **options)
    return Result(done)


def filter_lines(command, objects, *arguments, model=TINY, timeout=600):
    """Runs a JSONL filter over objects (or raw lines) and returns the result."""
    text = "".join((o if isinstance(o, str) else json.dumps(o)) + "\n" for o in objects)
    return calla(command, model, *arguments, stdin=text, timeout=timeout)


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def assert_one_line_error(result, code, *words):
    """Failed with one line on stderr that begins with the program's name and has all the words."""
    assert result.code == code, (result.code, result.err)
    lines = result.err.strip().split("\n")
    assert len(lines) == 1, result.err
    assert lines[0].startswith("calla"), result.err
    for word in words:
        assert word in lines[0], (word, lines[0])


class Noise:
    """How far a backend's numbers lie from float32 ones, with room of a factor of about four.

    `logit`: logits, in nats. `part`: inner tensors, as a part of their largest value. `rare`: the
    share of positions that see a place where two experts are as good as equal and noise chose the
    other one (6 % in cases.jsonl): logits there may lie `rare_logit` apart."""

    def __init__(self, logit, part, rare=0.0, rare_logit=0.0):
        self.logit, self.part, self.rare, self.rare_logit = logit, part, rare, rare_logit

    def assert_near(self, differences, what):
        """Differences of logits, one for each position."""
        beyond = [d for d in differences if not d <= self.logit]
        print(f"{what}: {len(differences)} positions, worst difference "
              f"{max(differences, default=0):.1e}, {len(beyond)} above {self.logit:.0e}")
        assert len(beyond) <= (max(3, self.rare * len(differences)) if self.rare else 0), what
        assert all(d <= self.rare_logit for d in beyond), what


NOISE = {"ref": Noise(1e-4, 2e-6), "cpu": Noise(5e-3, 4e-4, 0.12, 2.0)}


def pytest_addoption(parser):
    parser.addoption("--backend", help="the backend to test (cpu; each in test_reference.py)")
    parser.addoption("--full", action="store_true", help="whole evaluation files instead of 4 chunks")


def pytest_generate_tests(metafunc):
    """`backend` is the one of the option, else each of the module's BACKENDS, else cpu."""
    if "backend" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--backend")
        names = [chosen] if chosen else getattr(metafunc.module, "BACKENDS", ["cpu"])
        metafunc.parametrize("backend", names)


@pytest.fixture
def noise(backend):
    return NOISE[backend]


@pytest.fixture(scope="session")
def server():
    """A server that all tests share: what they say about its cache and figures is relative."""
    from serving import Server  # wants packages that other tests do not need
    with Server("--cache-ram", "400M", "--queue", 300) as running:
        yield running


@pytest.fixture(scope="session")
def exact():
    """A server on the ref backend, which gives the same bits for every cut of a prompt."""
    from serving import Server
    with Server("--backend", "ref", "--cache-ram", "100M") as running:
        yield running


@pytest.fixture(scope="session")
def replay():
    """A server that answers with given texts."""
    from serving import REPLAY, ReplayServer
    if not REPLAY.exists():
        pytest.skip(f"{REPLAY} is not there: make tests")
    with ReplayServer() as running:
        yield running


@pytest.fixture
def full(request):
    return request.config.getoption("--full")


def pytest_make_parametrize_id(val):
    """Long texts get short names: pytest puts a test's name into the environment of what it starts."""
    if isinstance(val, (str, bytes)) and len(val) > 80:
        return f"{val[:40]!r}…{len(val)}"
    return None
