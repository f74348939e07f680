"""The Makefile, on a few sources of its own: a tool that is killed leaves nothing that the next make
takes for a whole file."""

import os
import signal
import stat
import subprocess

import pytest
from conftest import ROOT

SOURCES = {
    "src/base/one.c": "int one(void);\nint one(void)\n{\n    return 1;\n}\n",
    "src/backend/ref/two.c": "int two(void);\nint two(void)\n{\n    return 2;\n}\n",
    "src/cli/main.c": "int main(void)\n{\n    return 0;\n}\n",
}


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def project(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "Makefile").symlink_to(ROOT / "Makefile")
    return tmp_path


def make(project, *arguments):
    return subprocess.run(["make", "BACKENDS=ref", "CFLAGS=-O0", *arguments], cwd=project,
                          capture_output=True, text=True, start_new_session=True, timeout=120,
                          env={**os.environ, "MAKEFLAGS": ""}, check=False)


# writes a part of the file that it is to make, and then it and make are killed
KILLED = """for last; do
    case $before in -o | rcs) echo part >"$last" ;; esac
    before=$last
done
kill -9 0"""


@pytest.mark.parametrize("tool, first, target", [
    ("AR", "build/internal.a", "build/internal.a"),
    ("CC", "build/obj/base/one.o", "build/obj/base/one.o"),
    ("CC", "build/calla", "build/calla"),
])
def test_killed_tools_leave_no_part(project, tool, first, target):
    if target == "build/calla":  # its objects are there: the linker is killed
        assert make(project, "all").returncode == 0
        (project / target).unlink()
    # the flags are the same, so that nothing else is made anew
    tools = project / "tools"
    tools.mkdir()
    script(tools / {"AR": "ar", "CC": "cc"}[tool], KILLED)
    done = subprocess.run(["make", "BACKENDS=ref", "CFLAGS=-O0", first], cwd=project,
                          capture_output=True, start_new_session=True, timeout=120, check=False,
                          env={**os.environ, "MAKEFLAGS": "",
                               "PATH": f"{tools}:{os.environ['PATH']}"})
    assert done.returncode == -signal.SIGKILL
    assert list(project.rglob("*.part")), "the tool was not run"
    again = make(project, "all", "build/internal.a")
    assert again.returncode == 0, again.stderr
    names = subprocess.run(["ar", "t", "build/internal.a"], cwd=project, capture_output=True,
                           text=True, check=True).stdout.split()
    assert sorted(names) == ["one.o", "two.o"]
    assert subprocess.run([str(project / "build" / "calla")], check=False).returncode == 0
    assert not list(project.rglob("*.part"))


def test_large_frames_are_refused(project):
    """The stack that the program is promised to be content with is kept so by the compiler."""
    (project / "src/base/one.c").write_text(
        "void use(char *);\nint one(void);\nint one(void)\n{\n    char a[16384];\n    use(a);\n"
        "    return a[0];\n}\n")
    assert "frame" in make(project, "build/obj/base/one.o").stderr
