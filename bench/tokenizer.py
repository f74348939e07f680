#!/usr/bin/env python3
"""Compares the tokenizer's speed with Hugging Face tokenizers: same texts, same ids, one thread.

    make bench
    pip install tokenizers
    python3 bench/tokenizer.py TOKENIZER.json [--folder build/bench/texts] [--size 24]

Texts are made from what the machine has: English from the licences, the documentation inside
Python's and Perl's libraries and models/tiny (paragraphs that were met before are left out);
multilingual from the texts of tests/golden/tokenizer.jsonl, shuffled and repeated.
"""
import argparse
import ast
import glob
import json
import os
import random
import re
import struct
import subprocess
import sys
import sysconfig
import time
import warnings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def read(path):
    with open(path, encoding="utf-8", errors="ignore", newline="\n") as file:
        return file.read()


def docstrings(path):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(read(path))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def sources():
    yield read(os.path.join(ROOT, "models/tiny/reference/eval.txt"))
    for path in sorted(glob.glob("/usr/share/common-licenses/*")):
        yield read(path)
    for pattern in ("/usr/share/perl/**/*.p[om]d", "/usr/share/perl/**/*.pm",
                    "/usr/lib/*/perl*/**/*.p[om]*"):
        for path in sorted(glob.glob(pattern, recursive=True)):
            yield "\n\n".join(re.findall(r"^=(?:pod|head).*?(?=^=cut|\Z)", read(path), re.M | re.S))
    for path in sorted(glob.glob("/usr/share/doc/*/copyright")):
        yield read(path)
    for path in sorted(glob.glob(sysconfig.get_path("stdlib") + "/**/*.py", recursive=True)):
        yield from docstrings(path)
    for path in sorted(glob.glob(sysconfig.get_path("stdlib") + "/**/*.py", recursive=True)):
        yield read(path)  # comments and code, when prose does not suffice


def english(size):
    seen, parts, length = set(), [], 0
    for source in sources():
        for paragraph in re.split(r"\n\s*\n", source):
            key = hash(paragraph)
            if len(paragraph) < 40 or key in seen:
                continue
            seen.add(key)
            parts.append(paragraph)
            length += len(paragraph) + 2
            if length >= size:
                return "\n\n".join(parts)
    return "\n\n".join(parts)


def multilingual(size):
    lines = read(os.path.join(ROOT, "tests/golden/tokenizer.jsonl")).split("\n")
    texts = [json.loads(line).get("text", "") for line in lines if '"kind":"encode"' in line]
    # without added tokens: `tokenizers` cannot be told to take all of them for text
    texts = [text for text in texts if 0 < len(text) < 2000 and "<" not in text]
    shuffle, parts, length = random.Random(1), [], 0
    while length < size:
        shuffle.shuffle(texts)
        parts += texts
        length += sum(len(text.encode()) + 1 for text in texts)
    return "\n".join(parts)


def documents(text):
    """Pieces of 64 KiB to the next line end, as bench/tokenizer.c cuts them."""
    data, at = text.encode(), 0
    while at < len(data):
        end = data.find(b"\n", at + 65536)
        end = len(data) if len(data) - at <= 65536 or end < 0 else end + 1
        yield data[at:end].decode()
        at = end


def time_reference(path, text):
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(path)
    pieces, best = list(documents(text)), 1e9
    for _ in range(2):
        ids, begin = [], time.perf_counter()
        for piece in pieces:
            ids.append(tokenizer.encode(piece, add_special_tokens=False))
        best = min(best, time.perf_counter() - begin)
    ids = [i for piece in ids for i in piece.ids]
    return len(text.encode()) / best * 1e-6, struct.pack(f"={len(ids)}i", *ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("--folder", default="build/bench/texts")
    parser.add_argument("--program", default="build/bench/tokenizer")
    parser.add_argument("--size", type=float, default=24, help="MB of English; half of it else")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs(options.folder, exist_ok=True)
    texts = {}
    for make, size in ((english, options.size), (multilingual, options.size / 2)):
        path = os.path.join(options.folder, make.__name__ + ".txt")
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(make(int(size * 1e6)))
        texts[path] = read(path)
    out = subprocess.run([options.program, options.tokenizer, *texts], check=True,
                         capture_output=True, text=True).stdout
    results = [json.loads(line) for line in out.splitlines()]
    print(f"load: {results[0]['load_seconds']:.3f} s")
    same = True
    for result in results[1:]:
        speed, ids = time_reference(options.tokenizer, texts[result["text"]])
        with open(result["text"] + ".ids", "rb") as file:
            agree = file.read() == ids
        same = same and agree
        print(f"{os.path.basename(result['text'])}: {result['bytes'] / 1e6:.1f} MB, "
              f"{result['tokens']} tokens, {result['mb_per_s']:.1f} MB/s; tokenizers "
              f"{speed:.2f} MB/s; ratio {result['mb_per_s'] / speed:.1f}; "
              f"ids {'equal' if agree else 'DIFFER'}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
