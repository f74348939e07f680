"""Damaged and foreign checkpoints: each is refused at once by one line that names the file, the
field or the tensor, what was found and what was wanted. All are edited copies of models/tiny."""

import json
import os
import subprocess
import sys

import pytest
from conftest import CALLA, ROOT, assert_one_line_error, calla
from support import GREEDY, HOT, copy_model, cut, edit_header, edit_json, own

FIRST, SECOND = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
INDEX = "model.safetensors.index.json"
TENSOR = "language_model.model.embed_tokens.biases"  # in FIRST


@pytest.fixture
def model(tmp_path):
    return copy_model(tmp_path / "model")


def refused(model, *words):
    """By inspect, run and score alike, fast, and with nothing on stdout."""
    for command in (["inspect", model], ["run", model, "Define hot."], ["score", model]):
        result = calla(*command, timeout=10)
        assert_one_line_error(result, 1, *words)
        assert result.out == "" and len(result.err) < 700


def edit_config(model, change):
    edit_json(model / "config.json", change)


def set_quantization(model, field, value):
    def change(config):
        for name in ("quantization", "quantization_config"):
            config[name][field] = value

    edit_config(model, change)


def test_copy_answers(model):
    result = calla("run", model, "Define hot.", *GREEDY, "--no-think")
    assert result.code == 0 and result.out == HOT + "\n"


# ---- config.json ---------------------------------------------------------------------------------

@pytest.mark.parametrize("field, value, wanted", [
    ("group_size", 32, "64"), ("group_size", 128, "64"), ("bits", 3, "4"), ("bits", 8, "4"),
    ("mode", "mxfp4", "affine"), ("bits", "4", "4"), ("bits", 4.5, "4"),
])
def test_row_79_other_quantisation(model, field, value, wanted):
    set_quantization(model, field, value)
    refused(model, "config.json", f"quantization.{field}", str(value), f"wanted {wanted}"
            if field != "mode" else wanted)


def test_row_79_one_layer_in_other_bits(model):
    name = "language_model.model.layers.0.mlp.switch_mlp.gate_proj"
    set_quantization(model, name, {"group_size": 64, "bits": 8})
    refused(model, "config.json", name, "8")


def test_row_79_not_quantised(model):
    def change(config):
        del config["quantization"], config["quantization_config"]

    edit_config(model, change)
    refused(model, "config.json", "quantization", "found nothing")


def test_row_79_gguf_instead_of_a_folder(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + bytes(64))
    refused(path, "model.gguf", "folder")


def test_other_models_config(model):
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}))
    refused(model, "config.json", "model_type", '"llama"', "qwen3_5_moe")


@pytest.mark.parametrize("field, value", [
    ("hidden_size", 512), ("num_hidden_layers", 9), ("num_experts", 64), ("head_dim", 128),
    ("num_experts_per_tok", 4), ("linear_num_value_heads", 16), ("vocab_size", 4095),
    ("rms_norm_eps", 1e-5), ("hidden_act", "gelu"), ("linear_conv_kernel_dim", 3),
    ("num_key_value_heads", None), ("max_position_embeddings", 0), ("hidden_size", "256"),
    ("num_experts", -32), ("num_experts", 2 ** 40), ("layer_types", ["full_attention"] * 8),
])
def test_field_of_another_model(model, field, value):
    edit_config(model, lambda config: config["text_config"].__setitem__(field, value))
    refused(model, "config.json", field, "found", "wanted")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", "\xff", "{\"a\":" * 50_000, "\0"])
def test_config_that_is_none(model, text):
    (model / "config.json").unlink()
    (model / "config.json").write_bytes(text.encode("latin-1"))
    refused(model, "config.json")


def test_config_missing(model):
    (model / "config.json").unlink()
    refused(model, "found no config.json", "only LICENSE, ", " more; wanted the folder of")


def test_config_is_a_folder(model):
    (model / "config.json").unlink()
    (model / "config.json").mkdir()
    refused(model, "config.json", "folder")


# ---- shards and index ----------------------------------------------------------------------------

@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_row_78_missing_shard(model, name):
    (model / name).unlink()
    refused(model, name, "No such file", INDEX)


@pytest.mark.parametrize("size", [0.5, 0.999999, 20_000, 100, 8, 7, 4, 0])
def test_row_78_cut_shard(model, size):
    cut(model / SECOND, size)
    refused(model, SECOND, "complete?")


def test_row_78_index_names_a_missing_file(model):
    edit_json(model / INDEX, lambda index: index["weight_map"].__setitem__(
        TENSOR, "model-00003-of-00003.safetensors"))
    refused(model, "model-00003-of-00003.safetensors", "No such file", INDEX)


def test_row_78_index_and_files_disagree(model):
    edit_json(model / INDEX, lambda index: index["weight_map"].__setitem__(TENSOR, SECOND))
    refused(model, TENSOR, FIRST, SECOND)


def test_index_leads_out_of_the_folder(model):
    edit_json(model / INDEX, lambda index: index["weight_map"].__setitem__(
        TENSOR, "../model/" + FIRST))
    refused(model, INDEX, TENSOR, "../model/" + FIRST, "in this folder")


@pytest.mark.parametrize("value", [None, 3, "", "a.bin"])
def test_index_with_a_wrong_name(model, value):
    edit_json(model / INDEX, lambda index: index["weight_map"].__setitem__(TENSOR, value))
    refused(model, INDEX, TENSOR, ".safetensors")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": {}}', '{"weight_map": 1}', "{"])
def test_index_that_is_none(model, text):
    (model / INDEX).unlink()
    (model / INDEX).write_text(text)
    refused(model, INDEX)


def test_no_index_and_no_single_file(model):
    (model / INDEX).unlink()
    refused(model, str(model), INDEX, "model.safetensors")


def test_row_78_tensor_missing_from_the_index(model):
    edit_json(model / INDEX, lambda index: index["weight_map"].pop(TENSOR))
    refused(model, INDEX, TENSOR, FIRST)


def test_row_78_tensor_missing_from_the_shard(model):
    edit_header(model / FIRST, lambda header: header.pop(TENSOR))
    refused(model, INDEX, TENSOR, FIRST, "missing")


def test_row_78_tensor_missing_from_both(model):
    edit_header(model / FIRST, lambda header: header.pop(TENSOR))
    edit_json(model / INDEX, lambda index: index["weight_map"].pop(TENSOR))
    refused(model, TENSOR, "missing")


@pytest.mark.parametrize("field, value, words", [
    ("dtype", "F16", ["dtype", "F16", "BF16"]),
    ("dtype", "XYZ", ["dtype", "XYZ"]),
    ("shape", [4, 4096], ["shape", "[4, 4096]", "[4096, 4]"]),
    ("shape", [4096, 8], ["[4096, 8]"]),
    ("shape", [2 ** 40, 2 ** 40], ["shape"]),
    ("shape", [-1], ["shape"]),
    ("data_offsets", [0, 10], ["data_offsets"]),
    ("data_offsets", [10, 0], ["data_offsets"]),
    ("data_offsets", [2 ** 62, 2 ** 62 + 32768], ["data_offsets"]),
])
def test_row_78_tensor_of_another_form(model, field, value, words):
    edit_header(model / FIRST, lambda header: header[TENSOR].__setitem__(field, value))
    refused(model, FIRST, TENSOR, *words)


def test_row_78_header_of_garbage(model):
    path = own(model / FIRST)
    with path.open("r+b") as file:
        file.write(b"\xff" * 8)
    refused(model, FIRST, "header")
    with path.open("r+b") as file:
        file.write(bytes(8) + b"\0" * 64)
    refused(model, FIRST)


def test_shard_without_right_to_read(model):
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    own(model / FIRST).chmod(0)
    refused(model, FIRST, "Permission denied")


def test_draft_head_is_optional(model):
    """The target has no such file; the tensors must leave the index with it."""
    (model / "model-mtp.safetensors").unlink()
    refused(model, "model-mtp.safetensors", INDEX)

    def change(index):
        index["weight_map"] = {name: file for name, file in index["weight_map"].items()
                               if "mtp" not in file}

    edit_json(model / INDEX, change)
    result = calla("run", model, "Define hot.", *GREEDY, "--no-think")
    assert result.code == 0 and result.out == HOT + "\n"


# ---- tokenizer, stop ids, template ---------------------------------------------------------------

def tokenizer_refused(model, *words):
    for command in (["run", model, "a"], ["tokenize", model], ["detokenize", model],
                    ["render", model], ["score", model], ["parse", model]):
        result = calla(*command, timeout=10)
        assert_one_line_error(result, 1, "tokenizer.json", *words)
        assert result.out == ""


def test_tokenizer_missing(model):
    (model / "tokenizer.json").unlink()
    tokenizer_refused(model, "No such file")


@pytest.mark.parametrize("size", [0.999, 0.5, 100, 1, 0])
def test_tokenizer_cut(model, size):
    cut(model / "tokenizer.json", size)
    tokenizer_refused(model, "not JSON")


def test_tokenizer_with_another_regex(model):
    def change(tokenizer):
        pattern = tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]
        pattern["Regex"] = pattern["Regex"].replace("\\p{M}", "")

    edit_json(model / "tokenizer.json", change)
    tokenizer_refused(model, "Regex", "found", "wanted")


@pytest.mark.parametrize("field, value", [("normalizer", None), ("normalizer", {"type": "NFKC"}),
                                          ("decoder", None), ("model", {"type": "WordPiece"}),
                                          ("model", None), ("pre_tokenizer", None)])
def test_tokenizer_of_another_kind(model, field, value):
    edit_json(model / "tokenizer.json", lambda tokenizer: tokenizer.__setitem__(field, value))
    tokenizer_refused(model, field)


def test_tokenizer_with_a_merge_of_no_token(model):
    edit_json(model / "tokenizer.json",
              lambda tokenizer: tokenizer["model"]["merges"].__setitem__(5, ["nope", "never"]))
    tokenizer_refused(model, "merges")


def answer_of(model, *arguments):
    result = calla("run", model, *arguments, *GREEDY, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_added_token_that_the_file_lacks_has_its_place(model):
    """The original repository's file lacks the last seven; a gap is filled by the known order."""
    def change(tokenizer):
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"]
                                     if token["content"] not in ("</think>", "<|audio_pad|>")]

    edit_json(model / "tokenizer.json", change)
    answer = answer_of(model, "Define hot.")
    assert answer["text"] == HOT and answer["reasoning"]


@pytest.mark.parametrize("eos", ["missing file", "no entry", "no entry anywhere", "one id", "list"])
def test_row_74_where_the_stop_ids_come_from(model, eos):
    """<|im_end|> ends an answer wherever the checkpoint says so, even if it says nothing."""
    generation = model / "generation_config.json"
    if eos == "missing file":
        generation.unlink()
    elif eos.startswith("no entry"):
        edit_json(generation, lambda config: config.pop("eos_token_id"))
    elif eos == "one id":
        edit_json(generation, lambda config: config.__setitem__("eos_token_id", 4052))
    if eos == "no entry anywhere":
        edit_config(model, lambda config: config.pop("eos_token_id"))
    answer = answer_of(model, "Define hot.", "--no-think")
    assert answer["text"] == HOT and answer["finish"] == "stop" and answer["ids"][-1] == 4052


def test_row_74_without_im_end_it_would_go_on(model):
    """The counter-test: where only <|endoftext|> stops, <|im_end|> does not, and is not shown."""
    edit_json(model / "generation_config.json",
              lambda config: config.__setitem__("eos_token_id", [4050]))
    answer = answer_of(model, "Define hot.", "--no-think", "--max-tokens", "30")
    assert 4052 in answer["ids"][:-1] and "<|im_end|>" not in answer["text"]


@pytest.mark.parametrize("value", [999999, -1, "</s>", [4052, 999999], [1.5], 4090])
def test_stop_id_that_is_none(model, value):
    edit_json(model / "generation_config.json",
              lambda config: config.__setitem__("eos_token_id", value))
    result = calla("run", model, "a")
    assert result.code == 1 and result.out == ""
    assert_one_line_error(result, 1, "eos_token_id")


def test_generation_config_cut(model):
    cut(model / "generation_config.json", 0.5)
    refused(model, "generation_config.json", "not JSON")


@pytest.mark.parametrize("name", ["generation_config.json", INDEX, "chat_template.jinja"])
def test_link_that_leads_nowhere_is_not_an_absent_file(model, name):
    """So a download cache that lost a file shows; defaults in its place would be a guess."""
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to("../../blobs/gone")
    result = calla("inspect", model)
    assert name in result.err and "No such file" in result.err, result.err
    assert result.code == (0 if name == "chat_template.jinja" else 1)


def test_generation_config_empty(model):
    (model / "generation_config.json").unlink()
    (model / "generation_config.json").touch()
    refused(model, "generation_config.json", "not JSON")


def test_huge_chat_template_is_not_read(model):
    with (model / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 40)
    result = calla("inspect", model, timeout=20)
    assert result.code == 0 and "another chat template" in result.err


def test_other_chat_template_is_told(model):
    """One line of warning, then the built-in template is used."""
    (model / "chat_template.jinja").write_text("{{ messages }}")
    line = json.dumps({"messages": [{"role": "user", "content": "a"}]})
    for command in (["run", model, "Define hot.", *GREEDY, "--no-think"], ["inspect", model],
                    ["render", model]):
        result = calla(*command, stdin=line)
        assert result.code == 0 and result.out
        told = [line for line in result.err.splitlines() if "chat_template.jinja" in line]
        assert len(told) == 1, (command, result.err)
        assert "another chat template" in told[0] and "built-in" in told[0]
        if command[0] == "run":
            assert result.out == HOT + "\n"


def test_no_chat_template_is_nothing_to_tell(model):
    assert "template" not in calla("run", model, "a", "--max-tokens", "1").err
    assert calla("inspect", model).err == ""
    assert calla("render", model).err == ""


# ---- memory --------------------------------------------------------------------------------------

# Runs a command and prints its peak of resident memory. A process begins with the peak of the one that
# forked it, so that must be a small one.
PEAK = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def test_row_76_plan_is_told_before_and_holds(model):
    """inspect's plan adds up, is told by run before it reads, and the process stays within it and
    what a small program takes."""
    plan = json.loads(calla("inspect", model, "--json", "--max-context", "2048").out)["memory"]
    assert plan["fits"] and plan["total"] == (plan["weights"] + plan["kv_cache"] + plan["state"] +
                                              plan["workspace"])
    done = subprocess.run([sys.executable, "-c", PEAK, CALLA, "run", model, "word and " * 180,
                           "--max-context", "2048", "--max-tokens", "2"], capture_output=True, cwd=ROOT)
    assert done.returncode == 0 and done.stderr.startswith(b"memory: ")
    peak = int(done.stdout) * 1024
    print(f"plan {plan['total']}, resident {peak}")
    assert peak < plan["total"] + (48 << 20)
