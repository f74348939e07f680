"""bench/peers.py with a llama-bench that answers by heart: what it runs, its table and its CSV."""

import csv
import io
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import CALLA, ROOT, calla

PEERS = ROOT / "bench" / "peers.py"
# prompt tokens a second, then decoded ones by depth; the n-th process is n times as fast
FAKE = """#!{python}
import json, sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
with open({log!r}) as log:
    n = len(log.readlines())
get = lambda name: int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else 0
results, depth = [], get("-d")
for key, other, rate in (("n_prompt", "n_gen", 100), ("n_gen", "n_prompt", 10)):
    value = get("-p" if key == "n_prompt" else "-n")
    if value:
        results.append({{"build_commit": "abc", key: value, other: 0, "n_depth": depth,
                        "samples_ts": [n * rate / (depth + 1)] * get("-r")}})
print("a line before")
print(json.dumps(results))
"""


def write_gguf(path):
    """One with an embedding, 4 expert matrices of which a quarter is chosen, and a norm."""
    text = lambda t: struct.pack("<Q", len(t)) + t.encode()
    number = lambda key, n: text("qwen35moe." + key) + struct.pack("<II", 4, n)
    values = [number(key, n) for key, n in {
        "expert_used_count": 1, "expert_count": 4, "ssm.inner_size": 16, "ssm.state_size": 8,
        "ssm.group_count": 1, "ssm.conv_kernel": 4, "block_count": 4, "full_attention_interval": 4,
        "attention.head_count_kv": 2, "attention.key_length": 32}.items()]
    values.append(text("list") + struct.pack("<IIQ", 9, 5, 2) + struct.pack("<ii", 1, 2))
    values.append(text("name") + struct.pack("<I", 8) + text("x"))
    tensors = [("token_embd.weight", (32, 1000), 2), ("blk.0.ffn_up_exps.weight", (32, 10, 4), 2),
               ("output_norm.weight", (32,), 0)]
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    for name, dims, kind in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, 0)
    path.write_bytes(out)
    states = 3 * 2 * 4 * (16 * 8 + 3 * (16 + 2 * 8))
    return 10 * 18 + 32 * 4 + states, 2 * 2 * 2 * 32


def fake(folder, name):
    program, log = folder / name, folder / (name + ".log")
    program.write_text(FAKE.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    return program, log


def peers(*arguments):
    command = [sys.executable, PEERS, "--calla", CALLA, "--shape", "tiny", "--prompt", "16",
               "--decode", "4", "--threads", "2", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_table_and_csv(tmp_path):
    gguf, file = tmp_path / "a.gguf", tmp_path / "a.csv"
    moved, kv_row = write_gguf(gguf)
    program, log = fake(tmp_path, "llama-bench")
    done = peers("--gguf", gguf, "--llama-bench", program, "--rounds", "3", "--depth", "9",
                 "--csv", file)
    assert done.returncode == 0, done.stderr
    # ours and theirs alternate; a deep context once
    assert [("calla bench" in line, "-d 9" in line or "--depth 9" in line)
            for line in done.stderr.strip().split("\n")] == [
                (True, False), (False, False), (True, True), (False, True),
                (True, False), (False, False), (True, False), (False, False)]
    assert [line.split()[-4:] for line in log.read_text().strip().split("\n")] == [
        ["-p", "16", "-n", "4"], ["-n", "4", "-d", "9"], ["-p", "16", "-n", "4"],
        ["-p", "16", "-n", "4"]]
    lines = done.stdout.strip().split("\n")
    assert lines[0].startswith("NOT COMPARABLE") and "llama.cpp abc" in lines[1]
    table = [cells(line) for line in lines if line.startswith("|")]
    assert table[0][:4] == ["test", "calla", "llama.cpp", "ratio to llama.cpp"]
    assert [row[0] for row in table[2:]] == ["prefill 16", "decode 4, depth 0", "decode 4, depth 9"]
    assert table[2][2] == "300 (100-400)"  # processes 1, 3 and 4
    assert re.fullmatch(r"30 \(10-40\), \d+ %", table[3][2])
    assert table[4][2].startswith("2 (2-2), ")
    assert table[2][4] == "576 (llama.cpp x 1.92, not measured)"
    assert table[3][4] == "34.5 (llama.cpp x 1.15, not measured)"
    for row in table[2:]:
        ours, theirs = (float(row[i].split()[0]) for i in (1, 2))
        assert float(row[3][:-1]) == pytest.approx(ours / theirs, rel=0.01, abs=0.006)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [(row["engine"], row["context_tokens"]) for row in rows] == [
        (engine, n) for engine in ("calla", "llama.cpp") for n in ("16", "0", "9")]
    assert rows[3]["prefill_tok_per_s"] == "300.0" and rows[4]["decode_tok_per_s"] == "30.0"
    assert rows[4]["bytes_per_token"] == str(moved)
    assert rows[5]["bytes_per_token"] == str(moved + 9 * kv_row)
    assert rows[3]["repeats"] == "3" and rows[5]["repeats"] == "1"
    svg = tmp_path / "a.svg"
    assert calla("bench", "--plot", svg, file).code == 0
    texts = ["".join(e.itertext()) for e in ElementTree.parse(svg).iter() if e.tag[-4:] == "text"]
    assert any("llama.cpp abc" in text for text in texts)


def test_ik_llama(tmp_path):
    gguf = tmp_path / "a.gguf"
    write_gguf(gguf)
    llama, _ = fake(tmp_path, "llama-bench")
    ik, log = fake(tmp_path, "ik-bench")
    done = peers("--gguf", gguf, "--llama-bench", llama, "--ik-llama-bench", ik, "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "-rtr 1" in log.read_text() and "published" not in done.stdout
    head = next(cells(line) for line in done.stdout.split("\n") if line.startswith("| test"))
    assert head == ["test", "calla", "llama.cpp", "ik_llama.cpp", "ratio to llama.cpp",
                    "ratio to ik_llama.cpp"]


@pytest.mark.parametrize("arguments, words", [
    ([], ["--llama-bench BIN or --build"]),
    (["--llama-bench", "/no/such"], ["/no/such", "No such file"]),
    (["--llama-bench", "/bin/false"], ["/bin/false ended with 1"]),
    (["--llama-bench", "/bin/true", "--rounds", "0"], ["--rounds"]),
])
def test_failures(tmp_path, arguments, words):
    gguf = tmp_path / "a.gguf"
    write_gguf(gguf)
    done = peers("--gguf", gguf, *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_broken_gguf(tmp_path):
    gguf = tmp_path / "a.gguf"
    gguf.write_bytes(b"no")
    program, _ = fake(tmp_path, "llama-bench")
    done = peers("--gguf", gguf, "--llama-bench", program, "--rounds", "1")
    assert done.returncode == 1 and "not a GGUF file" in done.stderr
