"""calla score on its own terms; test_reference.py compares its numbers with the reference."""

import json
import math
import struct
import time

import pytest
from conftest import REFERENCE, assert_one_line_error, filter_lines, read_jsonl
from support import copy_model, edit_tensor

IDS = json.loads((REFERENCE / "eval.json").read_text())["eval.txt"]["ids"][:129]


def test_fields_and_shapes():
    result = filter_lines("score", [{"ids": IDS[:10]}])
    assert result.code == 0 and result.err.count("calla:") == 0
    (line,) = result.lines()
    assert list(line) == ["nll", "top_ids", "top_logits"]
    assert len(line["nll"]) == 9
    for field in ("top_ids", "top_logits"):
        assert [len(row) for row in line[field]] == [5] * 10
    for ids, logits in zip(line["top_ids"], line["top_logits"]):
        assert logits == sorted(logits, reverse=True) and len(set(ids)) == 5
        assert all(0 <= i <= 4082 for i in ids)  # never a padding row
    assert all(math.isfinite(value) and value >= 0 for value in line["nll"])


def test_one_id():
    (line,) = filter_lines("score", [{"ids": [1]}]).lines()
    assert line["nll"] == [] and len(line["top_ids"]) == 1


def test_row_67_a_prefix_scores_as_part_of_the_whole():
    """Lengths around the chunk and vector sizes: the nll and the candidates of a prefix equal the
    beginning of the longer line's, bit for bit."""
    lengths = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129]
    result = filter_lines("score", [{"ids": IDS[:n]} for n in lengths], "--backend", "ref")
    assert result.code == 0
    found = dict(zip(lengths, result.lines(), strict=True))
    whole = found[129]
    for n in lengths:
        assert found[n]["nll"] == whole["nll"][:n - 1], n
        assert found[n]["top_ids"] == whole["top_ids"][:n], n
        assert found[n]["top_logits"] == whole["top_logits"][:n], n


@pytest.mark.parametrize("n", [1, 31, 32, 33, 63, 64, 65])
def test_row_67_decoding_agrees_with_reading(n, backend, noise):
    """What decoding chooses greedily is what reading the same ids ranks first, with its margin."""
    steps, tolerance = 6, 1e-5 if backend == "ref" else 2 * noise.logit
    arguments = ("--backend", backend)
    (line,) = filter_lines("score", [{"ids": IDS[:n]}], "--greedy", steps, *arguments).lines()
    greedy, margins = line["greedy"], line["greedy_margin"]
    assert len(greedy) == len(margins) == steps
    (whole,) = filter_lines("score", [{"ids": IDS[:n] + greedy}], *arguments).lines()
    for step in range(steps):
        ids, logits = (whole[field][n - 1 + step] for field in ("top_ids", "top_logits"))
        assert ids[0] == greedy[step]
        assert logits[0] - logits[1] == pytest.approx(margins[step], abs=tolerance)


def test_greedy_counts():
    for n in (0, 1, 2):
        (line,) = filter_lines("score", [{"ids": IDS[:3]}], "--greedy", n).lines()
        assert len(line.get("greedy", [])) == n


def test_lines_do_not_disturb_each_other():
    lines = [{"ids": IDS[:20]}, {"ids": IDS[50:58]}, {"ids": [5000]}, {"ids": IDS[:20]}]
    first, _, wrong, last = filter_lines("score", lines).lines()
    assert first == last and "error" in wrong


@pytest.mark.parametrize("ids, words", [
    ([-1], ["ids[0]", "-1", "0 to 4082"]), ([1, 4083], ["ids[1]", "4083", "4082"]),
    ([1.5], ["ids[0]"]), ([1.0], ["ids[0]"]), (["1"], ["ids[0]"]), ([True], ["ids[0]"]),
    ([None], ["ids[0]"]), ([[1]], ["ids[0]"]), ([], ["ids"]), ("1", ["ids", "array"]),
    (None, ["ids"]), (7, ["ids", "array"]), ([2 ** 31], ["ids[0]"]), ([2 ** 32 + 1], ["ids[0]"]),
    ([2 ** 63 - 1], ["ids[0]"]), ([2 ** 63], ["integer"]), ([10 ** 400], ["integer"]),
])
def test_wrong_ids(ids, words):
    result = filter_lines("score", [{"ids": ids}, {"ids": [1]}])
    wrong, right = result.lines()
    assert list(wrong) == ["error"] and len(right["top_ids"]) == 1
    for word in words:
        assert word in wrong["error"], wrong["error"]
    if not words == ["integer"]:
        assert result.code == 1


def test_row_63_line_longer_than_the_context():
    result = filter_lines("score", [{"ids": IDS[:17]}, {"ids": IDS[:16]}], "--max-context", "16")
    wrong, right = result.lines()
    assert "17" in wrong["error"] and "16" in wrong["error"]
    assert len(right["nll"]) == 15


def test_row_63_long_line_is_refused_before_it_is_read():
    begin = time.monotonic()
    result = filter_lines("score", [{"ids": [1] * 40_000}], timeout=20)
    assert time.monotonic() - begin < 5
    assert "40000" in result.lines()[0]["error"] and "32768" in result.lines()[0]["error"]


def test_greedy_beyond_the_context():
    result = filter_lines("score", [{"ids": IDS[:14]}], "--max-context", "16", "--greedy", "8")
    (line,) = result.lines()
    assert "14 and --greedy" in line["error"] and "16" in line["error"]
    (line,) = filter_lines("score", [{"ids": IDS[:14]}], "--max-context", "16", "--greedy",
                           "3").lines()
    assert len(line["greedy"]) == 3  # the last one is chosen, not read


def test_hidden_is_a_safetensors_file(tmp_path):
    path = tmp_path / "hidden.safetensors"
    result = filter_lines("score", [{"name": "a", "ids": IDS[:3]}, {"name": "b", "ids": IDS[:2]}],
                          "--hidden", path)
    assert result.code == 0
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    assert {name.split(".")[0] for name in header} == {"a", "b"}
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - 8 - length


def test_hidden_has_nothing_of_refused_lines(tmp_path):
    model, path = copy_model(tmp_path / "model"), tmp_path / "hidden.safetensors"

    def spoil(scales):  # token 5 becomes no number
        row = len(scales) // 4096
        scales[5 * row:6 * row] = b"\xc0\x7f" * (row // 2)
    edit_tensor(model, "language_model.model.embed_tokens.scales", spoil)
    result = filter_lines("score", [
        {"name": "a", "ids": [1, 5]}, {"name": "a", "ids": [1]}, {"name": "b\0c", "ids": [1]},
        {"name": "a", "ids": [2]}, {"name": "d", "ids": [5]}], "--hidden", path, model=model)
    assert result.code == 1
    errors = [line.get("error") for line in result.lines()]
    assert "finite" in errors[0] and errors[1] is None and "U+0000" in errors[2]
    assert "earlier" in errors[3] and "finite" in errors[4]
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    assert {name.split(".")[0] for name in header} == {"a"} and header["a.ids"]["shape"] == [1]


def test_hidden_cannot_be_written(tmp_path):
    result = filter_lines("score", [{"name": "a", "ids": [1]}], "--hidden", tmp_path / "no" / "x")
    assert_one_line_error(result, 1, str(tmp_path / "no" / "x"), "No such file")
    result = filter_lines("score", [{"name": "a", "ids": [1]}], "--hidden", "/dev/full")
    assert_one_line_error(result, 1, "/dev/full", "No space left")


def test_reference_ids_are_those_of_the_texts():
    """The program's tokenizer makes the reference's ids of the reference's texts."""
    cases = [case for case in read_jsonl(REFERENCE / "cases.jsonl") if case["encodes_back"]]
    answers = filter_lines("tokenize", [{"text": case["text"], "special": True} for case in cases])
    assert answers.code == 0 and len(cases) > 10
    for case, answer in zip(cases, answers.lines(), strict=True):
        assert answer["ids"] == case["ids"], case["name"]
