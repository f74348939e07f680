"""The cpu backend's fidelity at every level of instructions: greedy texts of the reference, and held
against ref on the evaluation files: agreement of the best tokens, perplexity, KL.

With --full every level reads both files whole, beside ref. Otherwise that is the best level's part
(ref takes most of the time), and the other levels are held against it on a part of a file."""

import json
import platform

import pytest
from conftest import REFERENCE, TINY, assert_one_line_error, calla, filter_lines, read_jsonl
from support import GREEDY

LEVELS = (["amx", "avx512vnni", "avx512", "avx2", "portable"] if platform.machine() == "x86_64" else
          ["i8mm", "dotprod", "neon", "portable"])
EVALUATION = json.loads((REFERENCE / "eval.json").read_text())
AGREEMENT, PERPLEXITY, MEAN_KL = 0.999, 2e-4, 2e-5  # what is promised


def usable(level):
    """Whether this CPU runs the level. An unknown one is no reason to skip."""
    result = filter_lines("score", [{"ids": [1]}], "--cpu", level)
    if result.code == 0:
        return True
    assert_one_line_error(result, 2, f"--cpu: this CPU cannot run '{level}', wanted one of: ")
    return False


@pytest.fixture(params=LEVELS)
def level(request):
    if not usable(request.param):
        pytest.skip(f"this CPU cannot run '{request.param}'")
    return request.param


@pytest.fixture(scope="module")
def best():
    return next(level for level in LEVELS if usable(level))


def test_levels_are_these():
    result = filter_lines("score", [{"ids": [1]}], "--cpu", "abacus")
    assert result.code == 2
    names = result.err.split("wanted ")[1].split(" (see")[0].replace(" or ", ", ").split(", ")
    assert names == LEVELS


def compare(name, *arguments):
    result = calla("compare", TINY, REFERENCE / name, "--special", "--json", "--worst", "0",
                   *arguments, timeout=1200)
    assert result.code == 0, result.err
    (found,) = result.lines()
    print(f"{name} {' '.join(arguments)}: {found['predicted']} predicted, agreement "
          f"{found['agreement']:.5f}, mean KL {found['mean_kl']:.2e}, max KL {found['max_kl']:.2e}, "
          f"perplexity {found['backend']['perplexity']:.6f} against "
          f"{found['against']['perplexity']:.6f}")
    return found


def assert_as_promised(name, level):
    found = compare(name, "--cpu", level, "--against", "ref")
    wanted = EVALUATION[name]
    assert found["predicted"] == wanted["predicted"]
    assert found["agreement"] >= AGREEMENT and found["mean_kl"] <= MEAN_KL
    for other in (found["against"], wanted):  # ref here, and Hugging Face
        assert found["backend"]["perplexity"] == pytest.approx(other["perplexity"], rel=PERPLEXITY)


def test_evaluation_files(level, best, full):
    """The best level, with --full each, whole and against ref. The others in part against the best:
    both sides have noise of their own then, and one near tie of experts weighs more."""
    if full or level == best:
        for name in ["eval.txt", "eval-chat.txt"] if full else ["eval.txt"]:
            assert_as_promised(name, level)
        return
    found = compare("eval.txt", "--cpu", level, "--against", "cpu", "--against-cpu", best,
                    "--max-chunks", "1" if level == "portable" else "6")
    assert found["agreement"] >= AGREEMENT - 2 / found["predicted"]
    assert found["mean_kl"] <= 2 * MEAN_KL + 0.05 / found["predicted"]
    assert found["backend"]["perplexity"] == pytest.approx(found["against"]["perplexity"], rel=1e-3)


def test_row_68_quality_holds_with_length(full):
    """One long context instead of chunks of 512. Where noise chose another of two experts that are
    as good as equal, one position outweighs 1,000 others in the mean, so the worst is left out."""
    chunk = 4096 if full else 1280
    found = compare("eval.txt", "--against", "ref", "--chunk", str(chunk), "--max-chunks", "1")
    predicted = chunk - 1
    assert found["predicted"] == predicted
    assert found["agreement"] >= AGREEMENT - 1 / predicted
    assert found["mean_kl"] * predicted - found["max_kl"] <= MEAN_KL * predicted
    assert found["backend"]["perplexity"] == pytest.approx(found["against"]["perplexity"], rel=1e-3)


def test_greedy_texts(level, full):
    """All greedy continuations of the reference; of the slow portable level the short prompts'."""
    cases = read_jsonl(REFERENCE / "cases.jsonl")
    if level == "portable" and not full:
        cases = [case for case in cases if len(case["ids"]) < 70]
    assert len(cases) > 8
    result = filter_lines("score", [{"ids": case["ids"]} for case in cases], "--greedy", "64",
                          "--cpu", level)
    assert result.code == 0, result.err
    for case, found in zip(cases, result.lines(), strict=True):
        assert found["greedy"] == case["greedy"], case["name"]


def test_threads_change_nothing():
    """1, 2, 3, 8 threads: the same text, and all printed numbers of reading and decoding the same."""
    ids = EVALUATION["eval.txt"]["ids"]
    lines = [{"ids": ids[:n]} for n in (1, 5, 63, 300)]
    texts, numbers = set(), set()
    for threads in ("1", "2", "3", "8"):
        result = calla("run", TINY, "Define hot.", "--no-think", *GREEDY, "--threads", threads)
        assert result.code == 0, result.err
        texts.add(result.out)
        scored = filter_lines("score", lines, "--greedy", "16", "--threads", threads)
        assert scored.code == 0, scored.err
        numbers.add(scored.out)
    assert len(texts) == 1 and len(numbers) == 1
