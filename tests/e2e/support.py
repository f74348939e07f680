"""Processes that a test talks to while they run, pseudo-terminals, and damaged copies of the tiny
model. Nothing here changes models/tiny itself: a copy holds links, and what a test edits is
written anew."""

import errno
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import time

from serve_process import CALLA, ROOT, TINY, default_signals

HOT = "hot (adjective): used of physical heat."  # the greedy answer to "Define hot."
GREEDY = ("--temperature", "0")
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]


def start(*arguments, program=CALLA, **options):
    """A running calla; stdout and stderr are pipes unless told otherwise."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
               "cwd": ROOT, "preexec_fn": default_signals, **options}
    return subprocess.Popen([str(program), *map(str, arguments)], **options)


def read_some(stream, seconds=30):
    """The next bytes of a pipe, as soon as there are any; b"" at its end."""
    ready, _, _ = select.select([stream], [], [], seconds)
    assert ready, f"nothing came for {seconds} s"
    return os.read(stream.fileno(), 65536)


def shell(command, timeout=60):
    """A command line as a user types it, $CALLA and $TINY being set; (code, stdout, stderr)."""
    environment = {**os.environ, "CALLA": str(CALLA), "TINY": str(TINY)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=timeout,
                          env=environment, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def on_terminal(*arguments, env=None, timeout=60):
    """Runs calla with stdin, stdout and stderr on a pseudo-terminal; (code, what it showed)."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        os.execve(CALLA, [str(CALLA), *map(str, arguments)], {**environment, **(env or {})})
    shown, end = b"", time.monotonic() + timeout
    while True:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], shown
        try:
            block = os.read(terminal, 65536)
        except OSError as problem:  # how Linux tells that the other side is closed
            assert problem.errno == errno.EIO
            block = b""
        if not block:
            break
        shown += block
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode().replace("\r\n", "\n")


# ---- checkpoints ---------------------------------------------------------------------------------

def copy_model(folder):
    """A folder that holds the tiny model's files as links."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in TINY.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    return folder


def own(path):
    """Makes a link of the copy a file of its own, which may be changed."""
    target = path.resolve()
    path.unlink()
    shutil.copyfile(target, path)
    return path


def edit_json(path, change):
    """Rewrites a JSON file of the copy; change gets the object and alters it."""
    value = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    change(value)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def cut(path, size):
    """Keeps the first size bytes (a fraction below 1: that part of the file)."""
    own(path)
    os.truncate(path, int(size * path.stat().st_size) if size < 1 else size)


def edit_tensor(folder, name, change):
    """Alters the bytes of one tensor of a copy; change gets them as a bytearray. They must stay as
    many."""
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    path = own(folder / index["weight_map"][name])
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    begin, end = (8 + length + offset
                  for offset in json.loads(data[8:8 + length])[name]["data_offsets"])
    tensor = data[begin:end]
    change(tensor)
    data[begin:end] = tensor
    path.write_bytes(data)


def edit_header(path, change):
    """Rewrites the header of a shard; the data stays."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.unlink()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
