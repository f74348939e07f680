"""calla doctor: the machine as other sources tell it, backends, what the 35B model needs."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import CALLA, TINY, assert_one_line_error, calla
from support import copy_model, edit_json


def doctor(*arguments, code=0, **options):
    result = calla("doctor", *arguments, **options)
    assert result.code == code, (result.out, result.err)
    assert result.err == ""
    return result.out


def doctor_json(*arguments, code=0):
    out = doctor("--json", "--no-bandwidth", *arguments, code=code)
    assert out.count("\n") == 1
    return json.loads(out)


def test_machine():
    found = doctor_json()
    assert 1 <= found["cpu"]["cores"] <= len(os.sched_getaffinity(0))
    assert found["cpu"]["hardware_threads"] == os.cpu_count()
    memory = found["memory"]
    assert memory["physical_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    assert 0 < memory["available_bytes"] <= memory["physical_bytes"]
    assert memory["limit_bytes"] is None or memory["limit_bytes"] > 0
    assert found["read_bandwidth_bytes_per_s"] is None and found["checkpoint"] is None
    cpuinfo = open("/proc/cpuinfo", encoding="utf-8").read()
    flags = re.search(r"^flags\s*:(.*)", cpuinfo, re.M)
    if flags:
        flags = flags[1].split()
        for name, flag in (("AVX2", "avx2"), ("FMA", "fma"), ("F16C", "f16c"),
                           ("AVX-512 F", "avx512f"), ("AVX-512 VNNI", "avx512_vnni"),
                           ("AVX-512 BF16", "avx512_bf16"), ("AMX tile", "amx_tile")):
            assert (name in found["cpu"]["features"]) == (flag in flags), name


def test_backends():
    backends = {b["name"]: b for b in doctor_json()["backends"]}
    assert {"cpu", "cuda", "metal", "ref"} <= set(backends)
    assert backends["ref"]["compiled"] and backends["ref"]["usable"]
    for backend in backends.values():
        if not backend["compiled"]:
            assert backend["why"] == "not compiled in" and backend["35b-a3b"] is None
            assert backend["usable"] is False


def test_the_real_model():
    found = doctor_json()
    # spec 4.2: 19.51 GB without vision tower and draft head
    assert found["35b-a3b_weight_bytes"] == pytest.approx(19.51e9, rel=1e-3)
    for backend in found["backends"]:
        fit = backend["35b-a3b"]
        if not fit:
            continue
        assert fit["total_bytes"] == sum(fit[f"{part}_bytes"] for part in (
            "weight", "kv_cache", "state", "workspace"))
        assert fit["weight_bytes"] == found["35b-a3b_weight_bytes"]
        if fit["fits"]:
            assert 1 <= fit["max_context_tokens"] <= 262144
            assert fit["total_bytes"] <= found["memory"]["physical_bytes"]
            # design: 1.667 GB of weights and 0.126 of states
            assert fit["bytes_per_token"] == pytest.approx(1.795e9, rel=0.01)
            assert fit["bytes_per_token_at_end"] > fit["bytes_per_token"]
        else:
            assert fit["max_context_tokens"] == 0


def test_weights_beyond_free_memory_are_told():
    out = doctor("--no-bandwidth")
    free = float(re.search(r"^memory .* ([\d.]+) of it free", out, re.M)[1])
    fits = re.findall(r"fits with a context of .*: ([\d.]+) GiB, .*\n.*decode reads .*\n"
                      r"(?: +only ([\d.]+) GiB are free)?", out)
    assert len(fits) == out.count(" fits with ")
    for total, told in fits:
        assert (float(told) == free) if told else (float(total) <= free + 0.01)
        assert not told or float(total) >= free - 0.01


def test_what_does_not_fit_has_figures(tmp_path):
    """On a machine with 20 MB free, as a namespace of its own shows it."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 20000 kB\n")
    command = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount", "sh",
               "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', meminfo]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system gives no namespaces")
    done = subprocess.run([*command, CALLA, "doctor", "--no-bandwidth"], capture_output=True,
                          text=True, check=True)
    found = re.search(r"cpu +does not fit: ([\d.]+) GiB with the shortest context, ([\d.]+) of it "
                      r"besides", done.stdout)
    assert float(found[1]) == pytest.approx(18.17 + float(found[2]), abs=0.02)
    assert float(found[2]) > 0.01


def test_bandwidth_bounds_decode():
    out = doctor("--threads", "2")
    rate = float(re.search(r"read bandwidth ([\d.]+) GB/s with 2 threads", out)[1])
    assert rate > 0.1
    for match in re.finditer(r"decode reads ([\d.]+) GB for a token .*no more than ([\d.]+) tok/s",
                             out):
        assert float(match[2]) == pytest.approx(rate / float(match[1]), rel=0.05)


def test_checkpoint(tmp_path):
    found = doctor_json(TINY)["checkpoint"]
    assert found == {"folder": str(TINY), "usable": True, "shape": "tiny"}
    assert "tensors and tokenizer are right" in doctor(TINY, "--no-bandwidth")
    copy_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("other")
    assert "chat_template.jinja" in doctor_json(tmp_path)["checkpoint"]["warning"]
    edit_json(tmp_path / "config.json", lambda c: c["text_config"].update(hidden_size=257))
    found = doctor_json(tmp_path, code=1)["checkpoint"]
    assert found["usable"] is False and "hidden_size" in found["problem"]
    out = doctor(tmp_path, "--no-bandwidth", code=1)
    assert "NOT usable" in out and "hidden_size" in out


def test_usage():
    assert_one_line_error(calla("doctor", "a", "b"), 2, "no more than 1")
    assert_one_line_error(calla("doctor", "--threads", "0"), 2, "--threads")
