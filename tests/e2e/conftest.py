"""What every end-to-end test needs: the program as a user runs it, and the files of the project."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLA = pathlib.Path(os.environ.get("CALLA", ROOT / "build" / "calla")).resolve()
TINY = ROOT / "models" / "tiny"
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


def pytest_addoption(parser):
    parser.addoption("--backend", default="ref", help="the backend to hold against the reference")
    parser.addoption("--full", action="store_true", help="whole evaluation files instead of 4 chunks")


@pytest.fixture
def backend(request):
    return request.config.getoption("--backend")


@pytest.fixture
def full(request):
    return request.config.getoption("--full")


def pytest_make_parametrize_id(val):
    """Long texts get short names: pytest puts a test's name into the environment of what it starts."""
    if isinstance(val, (str, bytes)) and len(val) > 80:
        return f"{val[:40]!r}…{len(val)}"
    return None
