#!/usr/bin/env python3
"""Checks that includes point one way. Prints each that does not, as FILE:LINE; exits 1 then.

    base <- model <- backend <- engine <- library <- server <- cli      text stands on base alone

A backend's folder may include itself, base, model and the headers of backend/. Headers of the
project are included with the layer in the path; calla.h by library, server and cli. System headers are
free, and the tests may include everything.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALLOWED = {
    "base": {"base"},
    "text": {"base", "text"},
    "model": {"base", "model"},
    "backend": {"base", "model", "backend"},
    "engine": {"base", "model", "backend", "engine"},
    "library": {"base", "text", "model", "backend", "engine", "library"},
    "server": {"base", "text", "model", "backend", "engine", "library", "server"},
    "cli": {"base", "text", "model", "backend", "engine", "library", "server", "cli"},
}
PUBLIC = {"library", "server", "cli"}  # may include calla.h
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
SUFFIXES = {".c", ".h", ".m", ".cu", ".cuh", ".metal"}


def problem(place, quote, name):
    """What is wrong with the include of `name` in the file at `place` (below src), or None."""
    layer = place.parts[0]
    if layer not in ALLOWED:
        return f"the layer '{layer}' is not known to scripts/check_includes.py"
    if quote == "<":
        return "wanted quotes, not <>" if (ROOT / "src" / name).exists() else None
    if name == "calla.h":
        return None if layer in PUBLIC else f"{layer} may not include calla.h"
    path = pathlib.PurePosixPath(name)
    if not (ROOT / "src" / name).is_file() or ".." in path.parts or len(path.parts) < 2:
        return "wanted the path from src, with the layer"
    if path.parts[0] not in ALLOWED[layer]:
        return f"{layer} may not include {path.parts[0]}"
    folder = path.parts[1] if path.parts[0] == "backend" and len(path.parts) > 2 else None
    own = place.parts[1] if layer == "backend" and len(place.parts) > 2 else None
    if folder and folder != own:
        return f"only backend/{folder} itself may include its headers"
    return None


def main():
    files = sorted(p for p in (ROOT / "src").rglob("*") if p.suffix in SUFFIXES)
    wrong = 0
    for file in files:
        bad = False
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            found = INCLUDE.match(line)
            why = problem(file.relative_to(ROOT / "src"), *found.groups()) if found else None
            if why:
                print(f"{file.relative_to(ROOT)}:{number}: {line.strip()}: {why}")
                bad = True
        wrong += bad
    print(f"{len(files) - wrong} passed, {wrong} failed, 0 skipped")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
