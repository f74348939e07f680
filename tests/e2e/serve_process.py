"""A running `calla serve`: started on a free port, its log in a file, seen from outside. For tests,
tests/e2e/soak.py and bench/server.py, so it needs nothing but Python."""

import http.client
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLA = pathlib.Path(os.environ.get("CALLA", ROOT / "build" / "calla")).resolve()
TINY = ROOT / "models" / "tiny"


def default_signals():
    """In a new process: as started from a terminal, whatever nohup or `&` made ignored before."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def wait_for(condition, seconds, what="it"):
    """The first true value of condition(); how long it took matters to some callers."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


class ServeProcess:
    """Use it with `with`: it must end in order, with exit code 0."""

    def __init__(self, *options, model=TINY, program=CALLA, ready=True, shell="", env=None, **popen):
        self.log_path = pathlib.Path(tempfile.mkstemp(prefix="calla-serve-", suffix=".log")[1])
        serve = ["serve"] if program == CALLA else []
        command = [program, *serve, model, *(["--port", 0] if serve else []), *options]
        command = list(map(str, command))
        if shell:  # such as "ulimit -n 64"
            command = ["bash", "-c", f'{shell} && exec "$@"', "bash", *command]
        popen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **popen}
        with open(self.log_path, "wb") as sink:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=sink, **popen,
                                            preexec_fn=default_signals, env={**os.environ, **(env or {})})
        self.pid = self.process.pid
        self.url, self.host, port = self.wait_line(r"^listening on (http://(\S+):(\d+))$").groups()
        self.port = int(port)
        if ready:
            self.wait_line(r"^ready after")

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        try:
            if self.process.poll() is None:
                code = self.stop()
                assert problem[0] or code == 0, (code, self.log())
        finally:
            if problem[0]:
                print(self.log()[-4000:])
            self.kill()
            self.log_path.unlink()

    def stop(self, number=signal.SIGTERM, timeout=60):
        """Sends a signal and gives the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def kill(self):
        """Ends it at once, if it still runs."""
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()

    # ---- what it says of itself ------------------------------------------------------------------

    def log(self):
        return self.log_path.read_text(encoding="utf-8")

    @property
    def lines(self):
        return self.log().split("\n")[:-1]

    def wait_line(self, pattern, since=0, seconds=60):
        """The first line on stderr, from number `since` on, that matches."""
        def look():
            ended = self.process.poll() is not None  # looked at first: then the log is whole
            matches = [re.search(pattern, line) for line in self.lines[since:]]
            match = next(filter(None, matches), None)
            assert match or not ended, self.log()
            return match
        return wait_for(look, seconds, f"{pattern} in the log")

    def metrics(self, **headers):
        """Names, with their labels, to numbers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        connection.request("GET", "/metrics", headers=headers)
        text = connection.getresponse().read().decode()
        connection.close()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))}

    def gauge(self, name):
        return self.metrics()[f"calla_{name}"]

    def is_idle(self):
        """Whether no request runs or waits: the figures then, else None."""
        now = self.metrics()
        return now if now["calla_requests_running"] == now["calla_requests_queued"] == 0 else None

    # ---- the process -----------------------------------------------------------------------------

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def resident(self):
        """Bytes."""
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.pid}/status").read_text())[1]) << 10
