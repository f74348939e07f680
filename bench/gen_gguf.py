#!/usr/bin/env python3
"""Writes a GGUF file of random weights in the exact shape of Qwen3.6-35B-A3B, for measuring peers
(llama.cpp and its forks, architecture qwen35moe) where the real model is not at hand.

    pip install numpy
    python3 bench/gen_gguf.py OUT.gguf                    # all matrices q4_0: 19.57 GB
    python3 bench/gen_gguf.py OUT.gguf --mix q4_0-std     # as llama.cpp quantises: output q6_k
    python3 bench/gen_gguf.py OUT.gguf --mix TYPES.txt    # types by tensor, "NAME TYPE" a line
    llama-bench -m OUT.gguf -p 512 -n 64

The weights have mean 0 and a deviation of about 0.02. A type's blocks come from 48 MiB of random
ones, used over and over: more than any cache holds, so speed is that of a file without repeats. The
file has no tokenizer (tokenizer.ggml.model is "none"). Same arguments, same bytes.
"""
import argparse
import os
import struct
import sys
import time
from dataclasses import dataclass
from typing import BinaryIO, Optional

import numpy as np

F32, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K = 0, 2, 8, 12, 13, 14  # GGUF's numbers of types
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), Q5_K: (256, 176),
         Q6_K: (256, 210)}  # weights, bytes
TYPES = {"f32": F32, "q4_0": Q4_0, "q8_0": Q8_0, "q4_k": Q4_K, "q5_k": Q5_K, "q6_k": Q6_K}
ALIGNMENT = 32  # of the tensors' data
POOL = 48 << 20  # bytes

HIDDEN, VOCABULARY, LAYERS, EXPERTS, EXPERT_WIDTH = 2048, 248320, 40, 256, 512
ARCHITECTURE = "qwen35moe"


@dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]  # in GGUF's order: inputs first
    type: int
    values: Optional[np.ndarray] = None  # of F32 tensors; the others are random blocks

    def size(self) -> int:
        weights, size = BLOCK[self.type]
        return int(np.prod(self.shape, dtype=np.int64)) // weights * size


class Model:
    """The tensors in file order. `random` is used in this order too, which fixes the bytes."""

    def __init__(self, random: np.random.Generator, layers: int, output: int,
                 types: dict[str, int]):
        self.random, self.types, self.tensors = random, types, []
        self.matrix("token_embd.weight", HIDDEN, VOCABULARY)
        self.ones("output_norm.weight", HIDDEN)
        self.matrix("output.weight", HIDDEN, VOCABULARY, type=output)
        for layer in range(layers):
            self.layer(f"blk.{layer}.", full_attention=(layer + 1) % 4 == 0)

    def matrix(self, name: str, *shape: int, type: int = Q4_0) -> None:
        self.tensors.append(Tensor(name, shape, self.types.get(name, type)))

    def plain(self, name: str, shape: tuple[int, ...], values: np.ndarray) -> None:
        self.tensors.append(Tensor(name, shape, F32, values.astype("<f4")))

    def ones(self, name: str, n: int) -> None:
        self.plain(name, (n,), np.ones(n))

    def normal(self, n: int, deviation: float) -> np.ndarray:
        return self.random.standard_normal(n, dtype=np.float32) * deviation

    def layer(self, prefix: str, full_attention: bool) -> None:
        self.ones(prefix + "attn_norm.weight", HIDDEN)
        self.ones(prefix + "post_attention_norm.weight", HIDDEN)
        if full_attention:
            self.matrix(prefix + "attn_q.weight", HIDDEN, 8192)
            self.matrix(prefix + "attn_k.weight", HIDDEN, 512)
            self.matrix(prefix + "attn_v.weight", HIDDEN, 512)
            self.matrix(prefix + "attn_output.weight", 4096, HIDDEN)
            self.ones(prefix + "attn_q_norm.weight", 256)
            self.ones(prefix + "attn_k_norm.weight", 256)
        else:
            self.matrix(prefix + "attn_qkv.weight", HIDDEN, 8192)
            self.matrix(prefix + "attn_gate.weight", HIDDEN, 4096)
            self.plain(prefix + "ssm_conv1d.weight", (4, 8192), self.normal(4 * 8192, 0.4))
            self.plain(prefix + "ssm_dt.bias", (32,), self.normal(32, 1.0) - 2)
            self.plain(prefix + "ssm_a", (32,), -self.random.uniform(0.1, 4, 32))
            self.matrix(prefix + "ssm_beta.weight", HIDDEN, 32)
            self.matrix(prefix + "ssm_alpha.weight", HIDDEN, 32)
            self.ones(prefix + "ssm_norm.weight", 128)
            self.matrix(prefix + "ssm_out.weight", 4096, HIDDEN)
        self.plain(prefix + "ffn_gate_inp.weight", (HIDDEN, EXPERTS),
                   self.normal(HIDDEN * EXPERTS, 0.03))
        self.matrix(prefix + "ffn_gate_exps.weight", HIDDEN, EXPERT_WIDTH, EXPERTS)
        self.matrix(prefix + "ffn_up_exps.weight", HIDDEN, EXPERT_WIDTH, EXPERTS)
        self.matrix(prefix + "ffn_down_exps.weight", EXPERT_WIDTH, HIDDEN, EXPERTS)
        self.plain(prefix + "ffn_gate_inp_shexp.weight", (HIDDEN,), self.normal(HIDDEN, 0.03))
        self.matrix(prefix + "ffn_gate_shexp.weight", HIDDEN, EXPERT_WIDTH)
        self.matrix(prefix + "ffn_up_shexp.weight", HIDDEN, EXPERT_WIDTH)
        self.matrix(prefix + "ffn_down_shexp.weight", EXPERT_WIDTH, HIDDEN)


def pack_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def metadata(layers: int, mix: str) -> list[bytes]:
    """Key-value pairs as the file has them."""
    def text(key: str, value: str) -> bytes:
        return pack_text(key) + struct.pack("<I", 8) + pack_text(value)

    def integer(key: str, value: int) -> bytes:
        return pack_text(key) + struct.pack("<II", 4, value)

    def real(key: str, value: float) -> bytes:
        return pack_text(key) + struct.pack("<If", 6, value)

    pairs = [text("general.architecture", ARCHITECTURE),
             text("general.name", f"synthetic Qwen3.6-35B-A3B {mix}"),
             integer("general.file_type", 2), integer("general.quantization_version", 2)]
    pairs += [integer(f"{ARCHITECTURE}.{key}", value) for key, value in {
        "block_count": layers, "context_length": 262144, "embedding_length": HIDDEN,
        "vocab_size": VOCABULARY, "expert_count": EXPERTS, "expert_used_count": 8,
        "expert_feed_forward_length": EXPERT_WIDTH,
        "expert_shared_feed_forward_length": EXPERT_WIDTH, "full_attention_interval": 4,
        "attention.head_count": 16, "attention.head_count_kv": 2, "attention.key_length": 256,
        "attention.value_length": 256, "rope.dimension_count": 64, "ssm.conv_kernel": 4,
        "ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096}.items()]
    pairs += [real(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6),
              real(f"{ARCHITECTURE}.rope.freq_base", 1e7),
              pack_text(f"{ARCHITECTURE}.rope.dimension_sections") +
              struct.pack("<IIQ4i", 9, 5, 4, 11, 11, 10, 0),  # an array of 4 int32
              text("tokenizer.ggml.model", "none")]
    return pairs


def padding(size: int) -> bytes:
    return b"\0" * (-size % ALIGNMENT)


def header(tensors: list[Tensor], pairs: list[bytes]) -> bytes:
    out, offset = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)), *pairs], 0
    for tensor in tensors:
        dimensions = len(tensor.shape)
        out.append(pack_text(tensor.name) + struct.pack(
            f"<I{dimensions}QIQ", dimensions, *tensor.shape, tensor.type, offset))
        offset += tensor.size() + len(padding(tensor.size()))
    whole = b"".join(out)
    return whole + padding(len(whole))


class Pool:
    """Random blocks of one type, given out in a circle."""

    def __init__(self, random: np.random.Generator, type: int):
        size = BLOCK[type][1]
        n = POOL // size
        blocks = random.integers(0, 256, (n, size), dtype=np.uint8)

        def halves(first: int, values: np.ndarray) -> None:  # a float16 in every block
            blocks[:, first:first + 2] = values.astype("<f2").view(np.uint8).reshape(n, 2)

        def signed(value: float) -> np.ndarray:  # scales of both signs: mean 0
            return np.where(random.integers(0, 2, n) == 1, value, -value)

        if type == Q4_0:
            halves(0, signed(0.02 / 4.6))
        elif type == Q8_0:
            halves(0, signed(0.02 / 73))
        elif type in (Q4_K, Q5_K):  # scale and minimum
            halves(0, np.full(n, 1.2e-4 * (1.0 if type == Q4_K else 0.5)))
            halves(2, np.full(n, 7.5 * 1.2e-4))
        elif type == Q6_K:
            halves(208, signed(1.5e-5))
        self.bytes, self.at = blocks.reshape(-1), 0

    def write(self, file: BinaryIO, size: int) -> None:
        while size:
            n = min(size, len(self.bytes) - self.at)
            write_all(file, self.bytes[self.at:self.at + n])
            self.at = (self.at + n) % len(self.bytes)
            size -= n


def write_all(file: BinaryIO, data) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        view = view[file.write(view):]


def read_types(path: str) -> dict[str, int]:
    types = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fields = line.split()
            if not fields:
                continue
            if len(fields) < 2 or fields[1].lower() not in TYPES:
                sys.exit(f"{path}:{number}: found '{line.strip()}', wanted a tensor's name and one "
                         f"of {' '.join(TYPES)}")
            types[fields[0]] = TYPES[fields[1].lower()]
    return types


def write_gguf(path: str, mix: str, layers: int) -> None:
    started = time.monotonic()
    random = np.random.default_rng(1)
    types = {} if mix in ("q4_0", "q4_0-std") else read_types(mix)
    tensors = Model(random, layers, Q6_K if mix == "q4_0-std" else Q4_0, types).tensors
    for tensor in tensors:
        if (types.get(tensor.name, tensor.type) == F32) != (tensor.values is not None):
            sys.exit(f"{mix}: {tensor.name}: wanted " +
                     ("a quantised type" if tensor.values is None else "f32"))
    unknown = set(types) - {tensor.name for tensor in tensors}
    if unknown:  # a list made from a real file may have more
        print(f"{mix}: {len(unknown)} names left out, which this file has not", file=sys.stderr)
    used = sorted({tensor.type for tensor in tensors} - {F32})
    pools = {type: Pool(random, type) for type in used}
    totals = dict.fromkeys([F32, *used], 0)
    with open(path, "wb", buffering=0) as file:
        write_all(file, header(tensors, metadata(layers, os.path.basename(mix))))
        for tensor in tensors:
            if tensor.values is None:
                pools[tensor.type].write(file, tensor.size())
            else:
                write_all(file, tensor.values)
            write_all(file, padding(tensor.size()))
            totals[tensor.type] += tensor.size()
    names = {number: name for name, number in TYPES.items()}
    print(f"{path}: {os.path.getsize(path)} bytes, {len(tensors)} tensors in "
          f"{time.monotonic() - started:.1f} s;",
          ", ".join(f"{names[type]} {size}" for type, size in totals.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--mix", default="q4_0", help="q4_0, q4_0-std, or a file of types")
    parser.add_argument("--layers", type=int, default=LAYERS, help="fewer make a smaller file")
    arguments = parser.parse_args()
    if arguments.mix not in ("q4_0", "q4_0-std") and not os.path.isfile(arguments.mix):
        parser.error(f"--mix: found '{arguments.mix}', wanted q4_0, q4_0-std or a file of types")
    if not 1 <= arguments.layers <= LAYERS:
        parser.error(f"--layers: found {arguments.layers}, wanted 1 to {LAYERS}")
    write_gguf(arguments.out, arguments.mix, arguments.layers)


if __name__ == "__main__":
    main()
