"""The client programs in examples/, the commands of the README, and contrib/, against a server."""

import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, calla
from serving import Server


@pytest.fixture(scope="module")
def server():
    with Server() as one:
        yield one


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT,
                          timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_openai_sdk(server):
    out = run(sys.executable, "examples/openai_sdk.py", server.url + "/v1")
    assert "hot (adjective)" in out and "call: get_weather {'city': 'Rome'}" in out
    assert re.search(r"\n\d+ tokens, \d+ of the prompt cached\n", out)
    assert out.strip().split("\n")[-1] != ""


def test_langchain_body(server):
    assert "hot (adjective)" in run(sys.executable, "examples/langchain_body.py", server.url)


def test_curl(server):
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    out = run("sh", "examples/curl.sh", server.url)
    assert '{"status":"ok"}' in out and "data: [DONE]" in out
    assert "calla_generated_tokens_total" in out and " cold" in out


def test_curl_without_a_content_type(server):
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    body = '{"model": "tiny", "prompt": "The opposite of hot is", "max_tokens": 4, "temperature": 0}'
    assert '"text":" cold' in run("curl", "-s", server.url + "/v1/completions", "-d", body)


def test_readme_has_every_option():
    readme = (ROOT / "README.md").read_text()
    for row in calla("serve", "--help-table").out.splitlines():
        kind, *fields = row.split("\t")
        if kind == "option" and fields[0] != "help":
            name, argument, text = fields[:3]
            assert f"| `--{name}{' ' if argument else ''}{argument}` | {text} |" in readme


@pytest.mark.parametrize("path", ["contrib/calla.service", "contrib/org.calla.serve.plist"])
def test_contrib_uses_real_options(path):
    known = {row.split("\t")[1] for row in calla("serve", "--help-table").out.splitlines()
             if row.startswith("option\t")}
    text = (ROOT / path).read_text()
    used = [name for line in text.splitlines() if not line.startswith("#")
            for name in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", line)]
    assert used and set(used) <= known
