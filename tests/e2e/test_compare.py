"""calla compare: a backend (--backend, cpu by default) held against ref on the evaluation files.
The arithmetic itself is tested in tests/engine/test_divergence.c."""

import json
import re

import pytest
from conftest import REFERENCE, TINY, assert_one_line_error, calla
from support import shell

EVALUATION = json.loads((REFERENCE / "eval.json").read_text())


def compare(*arguments, **options):
    result = calla("compare", TINY, *arguments, "--json", **options)
    assert result.code == 0 and result.err == ""
    (found,) = result.lines()
    return found


@pytest.mark.parametrize("name", ["eval.txt", "eval-chat.txt"])
def test_fidelity(name, full, backend):
    """ref equals itself exactly; another backend agrees at 99.9 % of the tokens, mean KL 2e-5."""
    limit = [] if full else ["--max-chunks", "1"]
    found = compare(REFERENCE / name, "--special", "--backend", backend, "--worst", "3", *limit,
                    timeout=1200)
    predicted = sum(row[0] for row in EVALUATION[name]["chunks_predicted_nll_top1"][:None if full else 1])
    assert found["predicted"] == predicted
    assert (found["backend"]["name"], found["against"]["name"]) == (backend, "ref")
    print(f"{name}: agreement {found['agreement']:.5f}, mean KL {found['mean_kl']:.2e}, max KL "
          f"{found['max_kl']:.2e}, perplexity {found['backend']['perplexity']:.6f} against "
          f"{found['against']['perplexity']:.6f}")
    if backend == "ref":
        assert found["agreement"] == 1 and found["mean_kl"] == 0 and found["max_kl"] == 0
        assert {**found["backend"]} == {**found["against"]} and found["worst"] == []
    else:
        assert found["agreement"] >= 0.999 and found["mean_kl"] <= 2e-5
        assert found["backend"]["perplexity"] == pytest.approx(
            found["against"]["perplexity"], rel=2e-4 if full else 1e-3)  # see test_perplexity.py
        assert [place["kl"] for place in found["worst"]] == sorted(
            (place["kl"] for place in found["worst"]), reverse=True)
        assert len(found["worst"]) == 3 and found["worst"][0]["kl"] == found["max_kl"] > 0
        for place in found["worst"]:
            assert place["token"]["id"] == EVALUATION[name]["ids"][place["index"]]
            for side in ("backend", "against"):
                assert 0 <= place[side]["p_token"] <= place[side]["p"] <= 1


def test_sides_are_those_of_perplexity(backend):
    arguments = (REFERENCE / "eval.txt", "--chunk", "60", "--max-chunks", "2", "--backend", backend)
    found = compare(*arguments, "--against", "ref")
    (alone,) = calla("perplexity", TINY, *arguments, "--json").lines()
    assert found["tokens"] == alone["tokens"] == 120 and found["predicted"] == alone["predicted"]
    assert found["backend"]["perplexity"] == alone["perplexity"]
    assert found["backend"]["top1"] == alone["top1"]
    # and read the same where people read them
    shown = calla("perplexity", TINY, *arguments).out
    figures = [re.search(rf"^{name} +(.*)$", shown, re.M)[1] for name in ("perplexity", "mean nll", "top-1")]
    both = calla("compare", TINY, *arguments, "--against", "ref").out
    assert re.search(r"^backend +\w+: perplexity (.*), mean nll (.*), top-1 (.*)$", both, re.M).groups() == (
        *figures,)


def test_readable_result(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("hot (adjective): used of physical heat.")
    result = calla("compare", TINY, path, "--backend", "ref")
    assert result.code == 0 and result.err == ""
    for words in ("agreement   100.000 %", "KL          mean 0, max 0", "backend     ref: perplexity"):
        assert words in result.out
    assert "worst" not in result.out


def test_wrong_input(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a")
    assert_one_line_error(calla("compare", TINY, path), 1, "text.txt", "at least 2")
    path.write_bytes(b"ab\xfe")
    assert_one_line_error(calla("compare", TINY, path), 1, "text.txt", "not UTF-8 at byte 2")
    path.write_text("abc abc")
    assert_one_line_error(calla("compare", TINY, path, "--against", "no"), 2, "--against: found 'no'")
    assert_one_line_error(calla("compare", TINY, path, "--worst", "-1"), 2, "--worst", "-1")
    assert_one_line_error(calla("compare", TINY, path, "--chunk", "1"), 2, "--chunk")
    assert calla("compare", TINY, path, "--worst", "0").code == 0
    assert calla("compare", TINY, path, "--worst", "1048576").code == 0
    code, out, _ = shell(f"$CALLA compare $TINY {path} 2>&1 >/dev/full")
    assert code == 1 and out.count("\n") == 1 and "No space left" in out
