"""calla perplexity against models/tiny/reference, and what it does with texts that cannot be measured."""

import json
import math

import pytest
from conftest import REFERENCE, TINY, assert_one_line_error, calla
from support import copy_model, edit_tensor, on_terminal, shell

EVALUATION = json.loads((REFERENCE / "eval.json").read_text())
FILES = ["eval.txt", "eval-chat.txt"]
WORDS = "hot (adjective): used of physical heat.\n" * 3


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(WORDS)
    return path


@pytest.mark.parametrize("name", FILES)
def test_perplexity_is_the_references(name, full, backend):
    """On whole files perplexity within 0.02 % and top-1 within 0.1 % of the reference, ref's always;
    in 1,022 tokens one near tie of two experts weighs more, so that other backends get 0.1 %."""
    tolerance = 2e-4 if full or backend == "ref" else 1e-3
    chunks = EVALUATION[name]["chunks_predicted_nll_top1"]
    limit = [] if full else ["--max-chunks", "2"]
    rows = chunks if full else chunks[:2]
    result = calla("perplexity", TINY, REFERENCE / name, "--special", "--json", *limit,
                   "--backend", backend, timeout=1200)
    assert result.code == 0 and result.err == ""
    (found,) = result.lines()
    predicted = sum(row[0] for row in rows)
    mean = math.fsum(row[1] for row in rows) / predicted
    assert found["predicted"] == predicted and found["tokens"] == predicted + len(rows)
    assert found["chunk"] == 512 and found["backend"] == backend
    assert backend != "ref" or abs(found["mean_nll"] - mean) <= 1e-6
    assert found["perplexity"] == pytest.approx(math.exp(mean), rel=tolerance)
    assert found["perplexity"] == pytest.approx(math.exp(found["mean_nll"]), rel=1e-12)
    assert abs(found["top1"] - sum(row[2] for row in rows) / predicted) <= 1e-3


def test_lines_by_token():
    """Each token comes once, in order, and the lines add up to the summary."""
    arguments = ("perplexity", TINY, REFERENCE / "eval.txt", "--chunk", "50", "--max-chunks", "3",
                 "--backend", "ref")
    result = calla(*arguments, "--jsonl")
    lines = result.lines()
    assert result.code == 0 and "perplexity" in result.err
    assert [line["id"] for line in lines] == EVALUATION["eval.txt"]["ids"][:150]
    assert [line["index"] for line in lines] == list(range(150))
    assert "".join(line["text"] for line in lines) == (REFERENCE / "eval.txt").read_text()[
        :sum(len(line["text"]) for line in lines)]
    predicted = [line for line in lines if line["nll"] is not None]
    assert [line["index"] for line in lines if line["argmax"] is None] == [0, 50, 100]
    assert len(predicted) == 147
    (summary,) = calla(*arguments, "--json").lines()
    assert summary["mean_nll"] == pytest.approx(math.fsum(l["nll"] for l in predicted) / 147, abs=1e-12)
    assert summary["top1"] == sum(l["argmax"] == l["id"] for l in predicted) / 147
    assert summary["tokens"] == 150 and summary["predicted"] == 147


def test_nll_is_that_of_score():
    """Also for tokens beyond the candidates, which need the whole row."""
    ids = EVALUATION["eval.txt"]["ids"][:100]
    lines = calla("perplexity", TINY, REFERENCE / "eval.txt", "--chunk", "100", "--max-chunks", "1",
                  "--backend", "ref", "--jsonl").lines()
    (score,) = calla("score", TINY, "--backend", "ref", stdin=json.dumps({"ids": ids})).lines()
    assert [line["nll"] for line in lines[1:]] == pytest.approx(score["nll"], abs=1e-7)
    assert [line["argmax"] for line in lines[1:]] == [row[0] for row in score["top_ids"][:-1]]
    assert max(score["nll"]) > 8  # such tokens are there


def test_readable_result(text):
    result = calla("perplexity", TINY, text)
    assert result.code == 0 and result.err == ""
    for word in ("tokens ", "mean nll ", "perplexity ", "top-1 "):
        assert word in result.out


def test_special_tokens_only_with_the_option(tmp_path):
    path = tmp_path / "chat.txt"
    path.write_text("<|im_start|>user\nDefine hot.<|im_end|>\n")
    plain = calla("perplexity", TINY, path, "--jsonl").lines()
    special = calla("perplexity", TINY, path, "--jsonl", "--special").lines()
    assert special[0]["text"] == "<|im_start|>" and len(plain) > len(special)
    assert all(line["id"] < 4050 for line in plain)


def test_stdin_pipe_and_file_are_the_same(text):
    whole = calla("perplexity", TINY, text, "--jsonl").out
    assert calla("perplexity", TINY, "-", "--jsonl", stdin=WORDS).out == whole
    assert shell(f"$CALLA perplexity $TINY <(cat {text}) --jsonl")[:2] == (0, whole)


def test_chunk_borders(text):
    """A last chunk of one token predicts nothing; a text of two tokens predicts one."""
    n = len(calla("perplexity", TINY, text, "--jsonl").lines())
    for chunk, chunks in ((n, 1), (n + 1, 1), (n - 1, 2), (2, (n + 1) // 2)):
        (found,) = calla("perplexity", TINY, text, "--json", "--chunk", chunk).lines()
        assert (found["tokens"], found["predicted"]) == (n, n - chunks), chunk
    (found,) = calla("perplexity", TINY, text, "--json", "--chunk", 2, "--max-chunks", 1).lines()
    assert (found["tokens"], found["predicted"]) == (2, 1)


def test_progress_on_a_terminal():
    code, shown = on_terminal("perplexity", "models/tiny", "models/tiny/reference/eval.txt",
                              "--max-chunks", "2", "--backend", "ref", timeout=300)
    assert code == 0 and "perplexity: " in shown and " %, " in shown
    assert shown.index("perplexity: ") < shown.index("tokens ")


@pytest.mark.parametrize("content, words", [
    (b"", ["text.txt", "found 0 tokens", "at least 2"]),
    (b"a", ["text.txt", "found 1 token,", "at least 2"]),
    (b"abc \xff def", ["text.txt", "not UTF-8 at byte 4 (0xff)"]),
    (b"abc \xe4\xbd", ["text.txt", "not UTF-8 at byte 4"]),
])
def test_text_that_cannot_be_measured(tmp_path, content, words):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    result = calla("perplexity", TINY, path)
    assert_one_line_error(result, 1, *words)
    assert result.out == ""


def test_nul_bytes_are_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a\0b\0c")
    lines = calla("perplexity", TINY, path, "--jsonl").lines()
    assert "".join(line["text"] for line in lines) == "a\0b\0c"


def test_part_of_a_character_is_shown(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\u9f98\U0001e900")
    lines = calla("perplexity", TINY, path, "--jsonl").lines()
    assert len(lines) > 2 and any("\ufffd" in line["text"] for line in lines)


@pytest.mark.parametrize("chunk, code, words", [
    ("0", 2, ["--chunk", "found 0", "2 to"]), ("1", 2, ["--chunk", "found 1", "2 to"]),
    ("-5", 2, ["--chunk"]), ("x", 2, ["--chunk", "an integer"]),
    ("32769", 1, ["--chunk", "found 32769", "2 to 32768", "max_position_embeddings"]),
    ("2147483647", 1, ["--chunk", "2 to 32768"]), ("2147483648", 2, ["--chunk"]),
])
def test_wrong_chunk(text, chunk, code, words):
    assert_one_line_error(calla("perplexity", TINY, text, "--chunk", chunk), code, *words)


def test_largest_chunk_takes_no_more_memory_than_the_text(text):
    assert calla("perplexity", TINY, text, "--chunk", "32768").code == 0


def test_wrong_options(text):
    assert_one_line_error(calla("perplexity", TINY, text, "--json", "--jsonl"), 2, "exclude")
    assert_one_line_error(calla("perplexity", TINY, text, "--backend", "no"), 2, "--backend", "'no'")
    assert_one_line_error(calla("perplexity", TINY, text, "--max-chunks", "0"), 2, "--max-chunks")
    assert_one_line_error(calla("perplexity", TINY), 2, "MODEL FILE")
    assert_one_line_error(calla("perplexity", TINY, "no/such/file"), 1, "no/such/file: No such file")
    assert_one_line_error(calla("perplexity", TINY, TINY), 1, "Is a directory")
    assert_one_line_error(calla("perplexity", TINY, ""), 1, "No such file")


def test_logits_that_are_not_finite(tmp_path, text):
    model = copy_model(tmp_path / "model")

    def spoil(scales):
        scales[:] = b"\xc0\x7f" * (len(scales) // 2)
    edit_tensor(model, "language_model.model.embed_tokens.scales", spoil)
    assert_one_line_error(calla("perplexity", model, text), 1, "finite")


def test_reader_that_leaves_and_full_disk(text):
    code, out, err = shell(f"$CALLA perplexity $TINY {text} --jsonl 2>&1 >/dev/full")
    assert (code, err) == (1, "") and out.count("\n") == 1 and "No space left" in out
    code, out, err = shell(f"$CALLA perplexity $TINY {text} --jsonl | head -n 1; echo ${{PIPESTATUS[0]}}")
    assert out.splitlines()[1] in ("0", "1") and "Broken" not in err
