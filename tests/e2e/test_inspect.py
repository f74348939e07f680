"""calla inspect: what a checkpoint holds, the plan of memory, --verify."""

import json
import os

import pytest
from conftest import TINY, assert_one_line_error, calla
from support import copy_model, edit_json, on_terminal

PART_FIELDS = ["name", "tensors", "bits", "parameters", "bytes", "skipped"]


def inspect_json(*arguments):
    result = calla("inspect", TINY, "--json", *arguments)
    assert result.code == 0 and result.err == "" and result.out.count("\n") == 1
    return json.loads(result.out)


def test_table():
    result = calla("inspect", TINY)
    assert result.code == 0 and result.err == ""
    for text in ("shape        tiny", "8 layers (2 with full attention)", "32 experts, 8 at a time",
                 "max context  32768 tokens", "stop ids     4052 4050", "MTP (skipped)",
                 "KV cache", "backend "):
        assert text in result.out, text
    assert all(line == line.rstrip() and "\t" not in line for line in result.out.split("\n"))


def test_json():
    found = inspect_json()
    assert found["shape"] == "tiny" and found["max_context"] == 32768
    assert found["stop_ids"] == [4052, 4050]
    assert found["sampling"] == {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 20}
    for part in found["parts"]:
        assert list(part) == PART_FIELDS
    for name, skipped in (("total", False), ("skipped", True)):
        parts = [part for part in found["parts"] if part["skipped"] == skipped]
        for field in ("tensors", "parameters", "bytes"):
            assert sum(part[field] for part in parts) == found[name][field]


def test_counts_are_those_of_the_files():
    """Every byte of the shards is a header, a tensor that is used or one that is skipped."""
    found, headers = inspect_json(), 0
    shards = sorted(TINY.glob("*.safetensors"))
    for shard in shards:
        with shard.open("rb") as file:
            headers += 8 + int.from_bytes(file.read(8), "little")
    assert found["files"] == len(shards)
    assert found["total"]["bytes"] + found["skipped"]["bytes"] + headers == sum(
        shard.stat().st_size for shard in shards)
    index = json.loads((TINY / "model.safetensors.index.json").read_text())
    assert found["total"]["tensors"] + found["skipped"]["tensors"] == len(index["weight_map"])


@pytest.mark.parametrize("context", [1, 100, 4096, 32768])
def test_row_76_plan(context):
    memory = inspect_json("--max-context", context)["memory"]
    assert memory["context"] == context and memory["fits"] is True
    # a context is rounded up to whole pages of 256 positions
    a_token = inspect_json("--max-context", 4096)["memory"]["kv_cache"] // 4096
    assert memory["kv_cache"] == (context + 255) // 256 * 256 * a_token
    assert memory["kv_bytes_per_token"] == a_token
    assert memory["total"] == (memory["weights"] + memory["kv_cache"] + memory["state"] +
                               memory["workspace"])
    assert f"one sequence of {context} tokens" in calla("inspect", TINY, "--max-context", context).out


def test_row_76_plan_that_does_not_fit(tmp_path):
    """A context that the model allows and no machine holds: told by inspect, refused by run."""
    model = copy_model(tmp_path / "model")
    edit_json(model / "config.json", lambda config: config["text_config"].__setitem__(
        "max_position_embeddings", 2_000_000_000))
    context = 2_000_000_000
    result = calla("inspect", model, "--max-context", context)
    if result.code:  # as another model's field
        assert_one_line_error(result, 1, "max_position_embeddings")
        return
    assert "does not fit" in result.out
    assert json.loads(calla("inspect", model, "--json", "--max-context", context).out)[
        "memory"]["fits"] is False
    result = calla("run", model, "a", "--max-context", context, timeout=10)
    assert result.code == 1 and result.out == ""
    assert "GiB" in [line for line in result.err.splitlines() if line.startswith("calla:")][0]


def test_folder_by_any_name(tmp_path):
    plain = inspect_json()
    for name in ("with space", "ünï", "a'b\"c", "{}%s%n"):
        model = copy_model(tmp_path / name)
        result = calla("inspect", model, "--json")
        found = json.loads(result.out)
        assert result.code == 0 and found["folder"] == str(model)
        assert {**found, "folder": ""} == {**plain, "folder": ""}
    model = copy_model(tmp_path / os.fsdecode(b"\xff"))
    result = calla("inspect", model, "--json")
    assert result.code == 0 and json.loads(result.out)["shape"] == "tiny"
    for slash in ("/", "//", "/."):
        assert calla("inspect", f"{TINY}{slash}").code == 0


def test_verify_knows_nothing_of_the_tiny_model():
    for more in ([], ["--json"]):
        result = calla("inspect", TINY, "--verify", *more)
        assert_one_line_error(result, 1, "tiny", "--verify", "Qwen3.6-35B-A3B-4bit")
        assert result.out == ""


def verify_folder(tmp_path):
    """The target's config.json, byte for byte, and nothing else but a wrong small file."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").symlink_to(
        TINY.parents[1] / "tests" / "model" / "35b-a3b" / "config.json")
    (folder / "generation_config.json").write_text("{}")
    return folder


def test_row_78_verify_names_what_is_missing_and_what_differs(tmp_path):
    folder = verify_folder(tmp_path)
    result = calla("inspect", folder, "--verify", timeout=20)
    assert result.code == 1
    text = result.out + result.err
    for name in ("model-00001-of-00004.safetensors", "tokenizer.json", "generation_config.json"):
        assert name in text
    assert "missing" in text
    result = calla("inspect", folder, "--verify", "--json", timeout=20)
    assert result.code == 1
    json.loads(result.out)


@pytest.mark.parametrize("what", ["no/such/folder", "file", "empty"])
def test_verify_of_nothing(tmp_path, what):
    path = {"file": TINY / "config.json", "empty": tmp_path}.get(what, what)
    result = calla("inspect", path, "--verify", timeout=10)
    assert result.code == 1 and result.out + result.err != ""


def test_terminal_shows_the_same():
    code, shown = on_terminal("inspect", TINY)
    assert code == 0 and shown == calla("inspect", TINY).out
