"""calla bench: figures that can be, tokens that are the model's, cuts that are told, charts."""

import csv
import hashlib
import io
import json
import re
import struct
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import TINY, assert_one_line_error, calla, filter_lines
from support import copy_model, read_some, start

QUICK = ["--no-bandwidth", "--repeat", "2", "--decode", "4"]
TEXT = "A dictionary gives the meaning of words. " * 8
SYNTHETIC = ["--synthetic", "tiny"]


def bench(*arguments, code=0, **options):
    result = calla("bench", *arguments, **options)
    assert result.code == code, result.err
    return result


def bench_json(*arguments):
    result = bench(*arguments, "--json")
    assert result.out.count("\n") == 1 and result.err == ""
    return json.loads(result.out)


def digest(ids):
    return hashlib.sha256(b"".join(struct.pack("<i", i) for i in ids)).hexdigest()


def read_csv(path):
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


# ---- what is measured ----------------------------------------------------------------------------

def test_tokens_are_the_greedy_ones(tmp_path, backend):
    """The digest is that of the ids that `calla score` gives for the same prompt."""
    file = tmp_path / "text"
    file.write_text(TEXT)
    ids = filter_lines("tokenize", [{"text": TEXT}]).lines()[0]["ids"][:48]
    greedy = filter_lines("score", [{"ids": ids}], "--greedy", 5,
                          "--backend", backend).lines()[0]["greedy"]
    found = bench_json(TINY, *QUICK, "--text", file, "--prompt-lengths", "48",
                       "--backend", backend)
    [result] = found["results"]
    assert result["tokens_sha256"] == digest(greedy)
    assert result["repetitions_differ"] is False
    assert result["decode_tokens"] == 4 and found["backend"] == backend


def test_figures(backend):
    found = bench_json(TINY, *QUICK, "--prompt-lengths", "16,32", "--depth", "0,8",
                       "--rows", "1,2", "--backend", backend)
    assert found["shape"] == "tiny" and found["synthetic"] is False and found["load_s"] > 0
    assert found["sequences"] == 2 and found["sequence_tokens"] >= 36
    assert found["read_bandwidth_bytes_per_s"] is None
    tests = [(r["context_tokens"], r["rows"], r["prefill_tok_per_s"] is not None)
             for r in found["results"]]
    assert tests == [(16, 1, True), (16, 2, True), (32, 1, True), (32, 2, True),
                     (0, 1, False), (0, 2, False), (8, 1, False), (8, 2, False)]
    for result in found["results"]:
        for figure in filter(None, (result["prefill_tok_per_s"], result["decode_tok_per_s"])):
            assert 0 < figure["min"] <= figure["median"] <= figure["max"]
            assert figure["repeats"] == 2
        if result["prefill_tok_per_s"]:
            assert result["first_token_s"] == pytest.approx(
                result["context_tokens"] / result["prefill_tok_per_s"]["median"], rel=0.2)
        assert result["peak_memory_bytes"] > 2_000_000 and "cut" not in result
    one, two = (found["results"][i]["weight_bytes_per_token"] for i in (0, 1))
    assert two < one < found["weight_bytes"]
    parts = {part["name"]: part["bytes"] for part in json.loads(
        calla("inspect", TINY, "--json").out)["parts"]}
    token = sum(b for name, b in parts.items() if "skipped" not in name) - parts["embedding"] * (
        4095 / 4096) - parts["experts"] * 3 / 4
    assert one == pytest.approx(token, rel=1e-6)
    depths = {r["context_tokens"]: r["bytes_per_token"] for r in found["results"]
              if r["rows"] == 1}
    assert depths[0] < depths[8] < depths[16] < depths[32]


def test_same_context_same_tokens():
    """A depth is the prompt of that length; a second row changes nothing for the first one."""
    found = bench_json(*SYNTHETIC, *QUICK, "--prompt-lengths", "40", "--depth", "40")
    prompt, depth = found["results"]
    assert prompt["tokens_sha256"] == depth["tokens_sha256"]
    assert prompt["prefill_tok_per_s"] and depth["prefill_tok_per_s"] is None
    again, other = (bench_json(*SYNTHETIC, *QUICK, "--prompt-lengths", "40", "--seed", seed)
                    for seed in (1, 2))
    assert again["results"][0]["tokens_sha256"] == prompt["tokens_sha256"]
    assert other["results"][0]["tokens_sha256"] != prompt["tokens_sha256"]


def test_synthetic_weights():
    found = bench_json(*SYNTHETIC, *QUICK, "--prompt-lengths", "8")
    assert found["synthetic"] is True and found["model"] == found["shape"] == "tiny"
    experts = found["distinct_experts"]
    assert experts["tokens"] == 64 and experts["of"] == 32
    assert 28 <= experts["min"] <= experts["mean"] <= experts["max"] <= 32
    assert found["results"][0]["peak_memory_bytes"] >= found["weight_bytes"]


def test_level_is_told():
    found = bench_json(*SYNTHETIC, *QUICK, "--depth", "0", "--backend", "cpu", "--cpu", "portable",
                       "--threads", "1")
    assert found["backend"] == "cpu/portable" and found["threads"] == 1


def test_filled_depth():
    found = bench_json(*SYNTHETIC, *QUICK, "--depth", "200,700", "--fake-depth")
    short, long = found["results"]
    assert short["filled"] is False and long["filled"] is True  # 256 real rows
    assert long["decode_tok_per_s"]["median"] > 0 and long["repetitions_differ"] is False
    real = bench_json(*SYNTHETIC, *QUICK, "--depth", "200")["results"][0]
    assert real["tokens_sha256"] == short["tokens_sha256"]
    table = bench(*SYNTHETIC, *QUICK, "--depth", "700", "--fake-depth").out
    assert "context filled with copied rows" in table


def test_bandwidth_and_share():
    found = bench_json(*SYNTHETIC, "--depth", "0", "--decode", "4", "--repeat", "1", "--threads",
                       "2")
    rate = found["read_bandwidth_bytes_per_s"]
    assert rate > 1e8 and found["read_bandwidth_after_bytes_per_s"] > 1e8
    [result] = found["results"]
    assert result["bandwidth_share"] == pytest.approx(
        result["decode_tok_per_s"]["median"] * result["bytes_per_token"] / rate)
    # the buffer of 1 GiB that the bandwidth was measured with is not the model's
    assert result["peak_memory_bytes"] < 500_000_000


# ---- what is left out ----------------------------------------------------------------------------

def test_time_limit(tmp_path):
    file = tmp_path / "out.csv"
    result = bench(TINY, "--no-bandwidth", "--time-limit", "0.001", "--csv", file)
    assert "\ntime limit     0.001 s; --time-limit SECONDS allows more, 0 all\n" in result.out
    rows = [line for line in result.out.split("\n") if line.endswith("cut by --time-limit")]
    # 32K and more exceed the model's own limit once something is decoded after it
    assert len(rows) == 7 and result.out.count("cut by the model's longest context") == 3
    assert file.read_text().count("\n") == 1 and read_csv(file) == []
    result = bench_json(*SYNTHETIC, "--no-bandwidth", "--time-limit", "2", "--prompt-lengths",
                        "16,100K", "--decode", "1", "--repeat", "1")
    short, long = result["results"]
    assert "cut" not in short and long["cut"] == "--time-limit"
    assert long["prefill_tok_per_s"] is None and long["decode_tok_per_s"] is None


def test_rows_come_as_they_are_measured():
    """And before them what is known of the machine, also where stdout is no terminal."""
    process = start("bench", *SYNTHETIC, "--no-bandwidth", "--prompt-lengths", "8,128K", "--decode", "1",
                    "--repeat", "1")
    shown = b""
    while b"\n      8    1 " not in shown:
        shown += read_some(process.stdout)
    assert process.poll() is None and shown.startswith(b"machine ")
    process.kill()
    process.wait()


def test_context_and_memory():
    found = bench_json(TINY, *QUICK, "--prompt-lengths", "16,32K,1000K")["results"]
    assert [r.get("cut") for r in found] == [None] + 2 * ["the model's longest context"]
    # 64 sequences of 250,000 tokens: more than 100 GB of KV cache in any format of 16 bits and more
    found = bench_json(*SYNTHETIC, *QUICK, "--rows", "2,64", "--depth", "0,250000", "--fake-depth",
                       "--time-limit", "20")
    assert found["results"][3]["cut"] in ("memory", "--time-limit")
    result = bench(TINY, *QUICK, "--prompt-lengths", "40K", code=1)
    assert_one_line_error(result, 1, "no test fits", "32768")


# ---- CSV and charts ------------------------------------------------------------------------------

def test_csv(tmp_path):
    model = copy_named(tmp_path / 'a "b", c')
    file = tmp_path / "out.csv"
    result = bench(model, *QUICK, "--prompt-lengths", "16", "--depth", "0", "--csv", file)
    prefill, decode = rows = read_csv(file)
    for row in rows:
        assert row["engine"] == "calla" and row["model"] == str(model) and row["cpu"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["date"])
        assert int(row["threads"]) >= 1 and row["rows"] == "1" and row["repeats"] == "2"
        assert len(row["tokens_sha256"]) == 64 and row["filled"] == "0"
        assert row["tokens_sha256"][:12] in result.out
        assert None not in row and None not in row.values()
    assert (prefill["context_tokens"], decode["context_tokens"]) == ("16", "0")
    assert float(prefill["prefill_tok_per_s"]) > 0 and decode["prefill_tok_per_s"] == ""
    assert decode["read_bandwidth_bytes_per_s"] == decode["bandwidth_share"] == ""


def copy_named(folder):
    copy_model(folder)
    return folder


PEER = """engine,context_tokens,cpu,prefill_tok_per_s,decode_tok_per_s\r
"a <peer> & ""more"", \x01é",64,X,10.5,4\r
"a <peer> & ""more"", \x01é",0,X,,5\r
"""


def test_plot(tmp_path):
    ours, theirs, svg = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.svg"
    bench(*SYNTHETIC, *QUICK, "--prompt-lengths", "16,64,256", "--depth", "0", "--csv", ours)
    theirs.write_text(PEER, encoding="utf-8", newline="")
    result = bench("--plot", svg, ours, theirs)
    assert result.out == result.err == ""
    root = ElementTree.parse(svg).getroot()
    names = [element.tag.split("}")[1] for element in root.iter()]
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    assert {"Prefill, tokens a second", "Decode, tokens a second"} <= set(texts)
    assert 'a <peer> & "more", ?é' in [text.split(", X")[0] for text in texts]
    assert any(text.startswith("calla ") for text in texts)
    assert {"0", "16", "64", "256"} <= set(texts)
    # marks: 3 + 4 of ours and one in the legend; 1 + 2 of theirs and one; and the background
    assert names.count("circle") == 8 and names.count("rect") == 5
    style = next("".join(element.itertext()) for element in root.iter()
                 if element.tag.endswith("style"))
    assert "prefers-color-scheme:dark" in style
    numbers = [float(n) for element in root.iter() if element.tag.endswith("circle")
               for n in (element.get("cx"), element.get("cy"))]
    assert all(0 <= n <= 1000 for n in numbers)


@pytest.mark.parametrize("text, words", [
    ("", ["no column context_tokens"]),
    ("context_tokens,rows\n1,2\n", ["no column context_tokens or no speeds"]),
    ("context_tokens,decode_tok_per_s\n", ["no measured test"]),
    ("context_tokens,decode_tok_per_s\n1,\n", ["no measured test"]),
    ("context_tokens,decode_tok_per_s\n1,2\n\n2,x\n", ["line 4", "decode_tok_per_s", "'x'"]),
    ("context_tokens,decode_tok_per_s\n1,nan\n", ["line 2", "'nan'"]),
    ("context_tokens,decode_tok_per_s\n-1,2\n", ["line 2", "context_tokens", "'-1'"]),
    ("context_tokens,decode_tok_per_s\n1,1e-320\n", ["line 2", "'1e-320'", "from 1e-09 to 1e15"]),
    ("context_tokens,decode_tok_per_s\n1e-300,1\n", ["line 2", "'1e-300'"]),
    ("context_tokens,decode_tok_per_s\n1,inf\n", ["line 2", "'inf'"]),
    ("context_tokens,decode_tok_per_s,decode_min_tok_per_s\n1,1,1e-310\n", ["line 2", "1e-310"]),
    ('context_tokens,decode_tok_per_s\n"1,2\n', ["no end of a quoted field"]),
    ('context_tokens,decode_tok_per_s\n"1"2,2\n', ["line 2", "after a quoted field"]),
    ("context_tokens,decode_tok_per_s" + 80 * ",x" + "\n", ["more than 64 fields"]),
    ("context_tokens,decode_tok_per_s,rows\n" + "".join(f"1,1,{i}\n" for i in range(9)),
     ["more than 8 lines"]),
    ("context_tokens,decode_tok_per_s\n" + 1025 * "1,1\n", ["more than 1024 points"]),
])
def test_plot_refuses(tmp_path, text, words):
    file, svg = tmp_path / "a.csv", tmp_path / "a.svg"
    file.write_text(text)
    assert_one_line_error(bench("--plot", svg, file, code=1), 1, str(file)[-5:] if "8 lines" not in
                          words[0] else "lines", *words)
    assert not svg.exists()


NUMBER = re.compile(r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)")


def assert_all_inside(text):
    """Every coordinate is a number inside the picture."""
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.get("viewBox").split())
    places = [(element.get(name), limit) for element in root.iter()
              for names, limit in ((("x", "cx", "width"), width), (("y", "cy", "height"), height))
              for name in names if element.get(name)]
    for element in root.iter():
        # absolute commands: M x y, L x y, V y, H x; what follows in small letters is relative
        for command, rest in re.findall(r"([MLVH])([^MLVHa-z]*)", element.get("d", "")):
            for i, number in enumerate(NUMBER.findall(rest)):
                is_x = command == "H" or (command in "ML" and i % 2 == 0)
                places.append((number, width if is_x else height))
    assert places and all(0 <= float(number) <= limit for number, limit in places), text


def test_plot_odd_files(tmp_path):
    """No line end at the end, empty last fields, one point, speeds of any size, a byte order mark."""
    for i, text in enumerate(["context_tokens,decode_tok_per_s,rows\n0,1e-3,",
                              "context_tokens,prefill_tok_per_s\r\n131072,9e14\r\n",
                              'context_tokens,"decode_tok_per_s"\n"3","7"',
                              "context_tokens,decode_tok_per_s\n\n\n5,1,,,,\n",
                              "\ufeffcontext_tokens,decode_tok_per_s\n5,1\n",
                              "\ufeff\"context_tokens\",decode_tok_per_s\n5,1\n",
                              "context_tokens,decode_tok_per_s\n1e-9,1e-9\n0.5,2e-9\n3,1e-8\n",
                              "context_tokens,decode_tok_per_s\n1,1e-9\n9e14,9e14\n0,1\n",
                              "context_tokens,decode_tok_per_s,decode_min_tok_per_s,"
                              "decode_max_tok_per_s\n1,2,1e-9,9e14\n2,5,7,6\n",
                              "engine,context_tokens,decode_tok_per_s\n\ufffe<\uffff\x07\ufffd,5,1"]):
        file, svg = tmp_path / f"{i}.csv", tmp_path / f"{i}.svg"
        file.write_text(text, newline="", encoding="utf-8")
        bench("--plot", svg, file)
        text = svg.read_text()
        assert "nan" not in text and "inf" not in text
        assert_all_inside(text)


# ---- usage ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments, words", [
    ([], ["either one MODEL or --synthetic"]),
    (["a", "b"], ["either one MODEL or --synthetic"]),
    ([TINY, "--synthetic", "tiny"], ["either one MODEL or --synthetic"]),
    (["--plot", "x.svg"], ["no CSV file"]),
    (["--plot", "x.csv", "y.csv"], ["--plot", "FILE.svg first"]),
    (["--synthetic", "tiny", "--text", "x"], ["no tokenizer"]),
    (["--repeat", "0", TINY], ["--repeat", "'0'"]),
    (["--synthetic", "huge"], ["--synthetic", "'huge'", "35b-a3b or tiny"]),
    ([TINY, "--prompt-lengths", "1,,2"], ["--prompt-lengths", "'1,,2'"]),
    ([TINY, "--prompt-lengths", "0"], ["--prompt-lengths", "0", "1 to"]),
    ([TINY, "--prompt-lengths", "99999999999"], ["--prompt-lengths"]),
    ([TINY, "--prompt-lengths", ",".join(["1"] * 33)], ["more than 32"]),
    ([TINY, "--depth", "-1"], ["--depth", "'-1'"]),
    ([TINY, "--rows", "0"], ["--rows", "1 to 64"]),
    ([TINY, "--depth", "0", "--decode", "0"], ["--decode", "--depth"]),
    ([TINY, "--fake-depth"], ["--fake-depth wants --depth"]),
    ([TINY, "--backend", "abacus"], ["--backend", "'abacus'", "ref"]),
    ([TINY, "--backend", "ref", "--threads", "2"], ["--threads: found 2", "ref takes none"]),
    ([TINY, "--decode", "1G"], ["--decode: found 1G", "1048576"]),
])
def test_usage(arguments, words):
    assert_one_line_error(bench(*arguments, code=2), 2, *[w.replace("'", "") for w in words])


@pytest.mark.parametrize("arguments, words", [
    ([TINY, "--text", "/no/such"], ["/no/such", "No such file"]),
    ([TINY, "--text", "/dev/null"], ["/dev/null", "no text"]),
    (["/no/such/model"], ["/no/such/model"]),
    ([TINY, "--prompt-lengths", "1", "--decode", "0", "--repeat", "1", "--csv", "/no/such/file"],
     ["/no/such/file"]),
    (["--plot", "/tmp/x.svg", "/no/such.csv"], ["/no/such.csv"]),
])
def test_failures(arguments, words):
    assert_one_line_error(bench("--no-bandwidth", *arguments, code=1), 1, *words)
