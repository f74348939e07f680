"""calla synth: checkpoints of random weights, whole or not there; and MLX-LM, whose files these
imitate, reads them and gets the same numbers."""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest
from conftest import CALLA, ROOT, TINY, assert_one_line_error, calla
from support import start

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # on a CPU it would call a C++ compiler

TOKENIZER = TINY / "tokenizer.json"
TARGET_TOKENIZER = os.environ.get("CALLA_TOKENIZER")  # the real one; 35b-a3b takes no other
FILES = ["config.json", "generation_config.json", "model-00001-of-00002.safetensors",
         "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
         "tokenizer_config.json"]
DELTANET, ATTENTION, OTHERS = 13 * 3 + 6, 12 * 3 + 4, 2 * 3 + 1  # tensors (spec 4.3)


def synth(folder, *arguments, **options):
    return calla("synth", "--shape", "tiny", *arguments, folder, **options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny one with a vision tower."""
    folder = tmp_path_factory.mktemp("synth") / "tiny"
    result = synth(folder, "--vision")
    assert result.code == 0 and result.err == "", result.err
    assert result.out.startswith(f"{folder}: shape tiny, seed 0, 690 tensors in 2 files, 0.03 GB")
    return folder


def hashes(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_inspect_counts_by_the_rule(tiny, tmp_path):
    found = json.loads(calla("inspect", tiny, "--json").out)
    assert found["shape"] == "tiny" and found["stop_ids"] == [4052, 4050]
    assert found["total"]["tensors"] == 6 * DELTANET + 2 * ATTENTION + OTHERS
    assert found["skipped"]["tensors"] == 333
    assert synth(tmp_path / "text").code == 0
    text = json.loads(calla("inspect", tmp_path / "text", "--json").out)
    assert text["total"] == found["total"] and text["skipped"]["tensors"] == 0
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {
        "total_size": found["total"]["bytes"] + found["skipped"]["bytes"]}


def test_it_answers(tiny):
    arguments = ["run", tiny, "Hello", "--backend", "ref", "--max-tokens", "8"]
    result = calla(*arguments, "--temperature", "0", "--json")
    assert result.code == 0, result.err
    again = calla(*arguments, "--temperature", "0", "--json")
    for field in ("text", "content", "reasoning"):
        assert json.loads(result.out).get(field) == json.loads(again.out).get(field)
    result = calla("score", tiny, "--backend", "ref", stdin='{"ids": [1, 2, 3, 4, 5, 6, 7, 8]}\n')
    scored = result.lines()[0]
    assert len(scored["nll"]) == 7 and all(0 < value < 20 for value in scored["nll"])


def test_seeds(tiny, tmp_path):
    assert sorted(hashes(tiny)) == FILES
    same, other = tmp_path / "same", tmp_path / "other"
    same.mkdir()  # an empty folder will do
    assert synth(same, "--vision", "--seed", "0", "--tokenizer", TOKENIZER).code == 0
    assert synth(other, "--vision", "--seed", "9007199254740993").code == 0
    assert hashes(same) == hashes(tiny)
    for name, value in hashes(other).items():
        assert (value == hashes(tiny)[name]) == ("model-0" not in name), name


@pytest.mark.parametrize("arguments, code, words", [
    (["--shape", "tiny"], 2, ["DIR"]),
    (["new"], 2, ["--shape", "found nothing", "35b-a3b or tiny"]),
    (["--shape", "35b", "new"], 2, ["--shape", "'35b'", "35b-a3b or tiny"]),
    (["--shape", "35b-a3b", "new"], 2, ["--tokenizer", "real model"]),
    (["--shape", "35b-a3b", "--tokenizer", str(TOKENIZER), "new"], 1,
     [str(TOKENIZER), "4050", "248044", "35b-a3b"]),
    (["--shape", "tiny", "--tokenizer", str(TINY / "config.json"), "new"], 1, ["config.json"]),
    (["--shape", "tiny", "--tokenizer", "no/such/file", "new"], 1, ["no/such/file"]),
    (["--shape", "tiny", "--seed", "-1", "new"], 2, ["--seed", "-1"]),
    (["--shape", "tiny", "--seed", "x", "new"], 2, ["--seed", "'x'"]),
    (["--shape", "tiny", "no/such/new"], 1, ["no/such/new", "No such file"]),
    (["--shape", "tiny", str(TOKENIZER)], 1, [str(TOKENIZER), "Not a directory"]),
    (["--shape", "tiny", str(TINY)], 1, [str(TINY), "not empty"]),
    (["--shape", "tiny", ""], 2, ["DIR: ", "empty path"]),
])
def test_errors(arguments, code, words):
    before = sorted(ROOT.iterdir())
    assert_one_line_error(calla("synth", *arguments), code, *words)
    assert sorted(ROOT.iterdir()) == before


def test_tiny_elsewhere_wants_a_tokenizer(tmp_path):
    done = subprocess.run([CALLA, "synth", "--shape", "tiny", "new"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--tokenizer" in done.stderr and "models/tiny" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room(tmp_path):
    """10 MB of room for 23: told before anything is written."""
    mount = f"mount -t tmpfs -o size=10m none {tmp_path}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    command = f"{mount} && '{CALLA}' synth --shape tiny {tmp_path}/new; code=$?; " \
              f"ls -A {tmp_path}; exit $code"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], cwd=ROOT, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (f"calla: {tmp_path}/new: the checkpoint takes 0.02 GB, but only 0.01 GB "
                           "are free there\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_half_way(tmp_path, number):
    """Nothing is left; after a SIGKILL nothing that a loader takes for a model."""
    if not TARGET_TOKENIZER:
        pytest.skip("CALLA_TOKENIZER is not set: no real tokenizer here")
    if shutil.disk_usage(tmp_path).free < 25e9:
        pytest.skip("25 GB of disk are not free")
    folder = tmp_path / "target"
    process = start("synth", "--shape", "35b-a3b", "--tokenizer", TARGET_TOKENIZER, folder)
    first = folder / "model-00001-of-00004.safetensors.part"
    end = time.monotonic() + 30
    while not (first.exists() and first.stat().st_size > 20e6):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == b""
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert all(path.suffix == ".part" for path in folder.iterdir())
        assert_one_line_error(calla("inspect", folder), 1, str(folder))
        shutil.rmtree(folder)
    else:
        assert process.returncode == 1
        assert err.decode() == f"calla: {folder}: interrupted; nothing was kept\n"
        assert not folder.exists()


@pytest.mark.parametrize("model", ["synth", "models/tiny"])
def test_mlx_lm_gets_the_same_numbers(tiny, model):
    """In float32, every log-likelihood and the five best logits of 48 tokens; the files are read by
    MLX-LM's own loader."""
    reason = "mlx-lm is not here (tests/e2e/requirements-mlx.txt)"
    mx = pytest.importorskip("mlx.core", reason=reason, exc_type=ImportError)
    mlx_utils = pytest.importorskip("mlx_lm.utils", reason=reason, exc_type=ImportError)
    folder = tiny if model == "synth" else TINY
    ids = [i * 2654435761 % 4083 for i in range(48)]
    result = calla("score", folder, "--backend", "ref", stdin=json.dumps({"ids": ids}) + "\n")
    assert result.code == 0, result.err
    scored = result.lines()[0]

    mx.set_default_device(mx.cpu)
    # the MTP tensors of models/tiny are no part of its model; else every tensor must be used
    network, _ = mlx_utils.load_model(folder, strict=model == "synth")
    network.set_dtype(mx.float32)
    logits = network(mx.array([ids]))[0, :, :4083]
    nll = mx.logsumexp(logits[:-1], axis=-1) - mx.take_along_axis(
        logits[:-1], mx.array(ids[1:])[:, None], axis=-1)[:, 0]
    differences = [abs(a - b) for a, b in zip(nll.tolist(), scored["nll"], strict=True)]
    best = mx.take_along_axis(logits, mx.array(scored["top_ids"]), axis=-1)
    differences += [abs(a - b) for left, right in zip(best.tolist(), scored["top_logits"], strict=True)
                    for a, b in zip(left, right, strict=True)]
    print(f"{model}: largest difference {max(differences):.2g}")
    assert max(differences) < 2e-4


def test_limit_on_the_size_of_files(tmp_path):
    folder = tmp_path / "x"
    result = synth(folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                                                 (1 << 20, 1 << 20)))
    assert_one_line_error(result, 1, "too large", "nothing was kept")
    assert not folder.exists()
