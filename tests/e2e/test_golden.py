"""Every line of tests/golden through the program (tests/golden/README.md says where they come
from). The tokenizer's lines belong to the official tokenizer.json, which is not in the project:
CALLA_TOKENIZER names it (tests/golden/make_tokenizer.py writes it)."""

import json
import os
import pathlib
import unicodedata

import pytest
from conftest import ROOT, TINY, calla, filter_lines, read_jsonl
from support import copy_model

GOLDEN = ROOT / "tests" / "golden"


def raw_lines(name):
    text = (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line]


def same(a, b):
    """Equal values of the same JSON type; numbers by value, fields in the same order."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and isinstance(a, str) == isinstance(b, str)


def test_same_tells_types_and_order():
    assert same(1, 1.0) and same({"a": [1]}, {"a": [1.0]}) and same(None, None)
    assert not same(True, 1) and not same("1", 1) and not same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_template():
    lines = raw_lines("template")
    result = filter_lines("render", lines)
    found = result.lines()
    assert len(found) == len(lines) == 400
    refused = 0
    for text, answer in zip(lines, found):
        want = json.loads(text)
        tag = want["tag"]
        if "error" in answer and "error" not in want:
            refused += 1  # numbers beyond 64 bits and U+0000 in keys may be refused
            assert "bigint" in tag or "nul key" in tag, (tag, answer)
        elif "error" in want:
            assert want["error"] in answer["error"], tag
        else:
            assert answer["text"] == want["rendered"], tag
    assert refused <= 10
    assert result.code == 0  # a line refused for its content is no failure
    assert result.err == ""


def test_rendered_ids_are_the_text():
    """Each rendered prompt's ids decode to its NFC form. Only texts without marks that change
    between the pieces of a prompt are compared: ASCII."""
    rendered = [line["rendered"] for line in read_jsonl(GOLDEN / "template.jsonl")
                if "rendered" in line]
    answers = [answer for answer in filter_lines("render", raw_lines("template")).lines()
               if "text" in answer and answer["text"].isascii()]
    assert len(answers) > len(rendered) / 3
    back = filter_lines("detokenize", [{"ids": answer["ids"], "skip_special": False}
                                       for answer in answers]).lines()
    for answer, decoded in zip(answers, back):
        assert decoded["text"] == answer["text"]


REPLY_FIELDS = ("reasoning", "content", "tool_calls", "finish")


@pytest.mark.parametrize("split", [None, 1, 2, 3, 4, 5, 6, 7])
def test_reply(split):
    lines = raw_lines("reply")
    arguments = [] if split is None else ["--split", split]
    result = filter_lines("parse", lines, *arguments)
    assert result.code == 0 and result.err == ""
    found = result.lines()
    assert len(found) == len(lines) == 172
    for text, answer in zip(lines, found):
        want = json.loads(text)
        for field in REPLY_FIELDS:
            assert same(answer[field], want[field]), (want["why"], field, answer[field])


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    name = os.environ.get("CALLA_TOKENIZER")
    if not name:
        pytest.skip("CALLA_TOKENIZER does not name the official tokenizer.json "
                    "(tests/golden/make_tokenizer.py writes it): 4,396 golden lines not tried")
    folder = tmp_path_factory.mktemp("official")
    (folder / "tokenizer.json").symlink_to(pathlib.Path(name).resolve(strict=True))
    return folder


def tokenizer_lines(kind):
    return [line for line in read_jsonl(GOLDEN / "tokenizer.jsonl") if line["kind"] == kind]


def test_row_73_encode(official):
    lines = tokenizer_lines("encode")
    result = filter_lines("tokenize", lines, model=official)
    assert result.code == 0 and result.err == "" and len(lines) == 3805
    for line, answer in zip(lines, result.lines(), strict=True):
        assert answer == {"ids": line["ids"]}, (line["tag"], line["text"][:80])


def test_row_73_decode(official):
    lines = tokenizer_lines("decode")
    result = filter_lines("detokenize", lines, model=official)
    assert result.code == 0 and result.err == "" and len(lines) == 442
    for line, answer in zip(lines, result.lines(), strict=True):
        assert answer == {"text": line["text"]}, line["tag"]


def test_row_51_stream(official):
    lines = tokenizer_lines("stream")
    result = filter_lines("detokenize", [{**line, "stream": True, "skip_special": False}
                                         for line in lines], model=official)
    assert result.code == 0 and len(lines) == 149
    for line, answer in zip(lines, result.lines(), strict=True):
        assert answer == {"pieces": line["pieces"]}, line["tag"]


def test_row_73_texts_come_back_from_the_tiny_tokenizer():
    """The golden texts through the shipped tokenizer: ids back to text give the NFC form. This
    tokenizer's NFC knows Unicode 9 only, so texts with newer marks differ from Python's; the older
    ones are exact."""
    texts = [line["text"] for line in tokenizer_lines("encode") if not line["special"]]
    assert len(texts) > 1500
    encoded = filter_lines("tokenize", [{"text": text} for text in texts])
    assert encoded.code == 0
    decoded = filter_lines("detokenize", [{"ids": answer["ids"], "skip_special": False}
                                          for answer in encoded.lines()])
    old, exact = unicodedata.ucd_3_2_0, 0
    for text, answer in zip(texts, decoded.lines(), strict=True):
        if all(old.category(c) != "Cn" or unicodedata.combining(c) == 0 and
               not unicodedata.decomposition(c) for c in text) and "\u11a7" not in text:
            normal = unicodedata.normalize("NFC", text)
            if normal == old.normalize("NFC", text):
                exact += 1
                assert answer["text"] == normal, text
    print(f"{len(texts)} texts, {exact} compared")
    assert exact > len(texts) * 0.8


def test_official_tokenizer_with_the_tiny_weights(official, tmp_path):
    """248,077 ids do not fit a head of 4,096 rows: refused, naming both."""
    folder = copy_model(tmp_path / "mixed")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to((official / "tokenizer.json").resolve())
    result = calla("run", folder, "a")
    assert result.code == 1 and result.out == ""
    assert "tokenizer.json" in result.err and "248076" in result.err and "4095" in result.err
    assert TINY.is_dir()
