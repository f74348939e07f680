"""The program as a whole: help, version, usage errors, exit codes, output that nobody takes."""

import pytest
from conftest import TINY, assert_one_line_error, calla
from support import shell

COMMANDS = ["run", "perplexity", "compare", "score", "inspect", "tokenize", "detokenize", "render", "parse"]
FILTERS = {"score": '{"ids": [1]}', "tokenize": '{"text": "a"}', "detokenize": '{"ids": [1]}',
           "render": '{"messages": [{"role": "user", "content": "a"}]}',
           "parse": '{"output": "a", "end": "stop"}'}


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(flag):
    result = calla(flag)
    assert result.code == 0 and result.err == ""
    assert result.out.startswith("usage: calla COMMAND")
    for command in COMMANDS:
        assert f"\n  {command} " in result.out


def test_version():
    result = calla("--version")
    assert result.code == 0 and result.err == ""
    name, version = result.out.split()
    assert name == "calla" and version.count(".") == 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["a", "--help"]])
def test_help_of_each_command(command, arguments):
    result = calla(command, *arguments)
    assert result.code == 0 and result.err == ""
    assert result.out.startswith(f"usage: calla {command} MODEL")
    assert "\n  --help" in result.out


def test_no_command_shows_the_help_on_stderr():
    result = calla()
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("usage: calla COMMAND")


@pytest.mark.parametrize("name", ["rum", "", "--nope", "RUN"])
def test_unknown_command(name):
    result = calla(name)
    assert result.code == 2 and result.out == ""
    if name:
        kind = "option" if name[0] == "-" else "command"
        assert_one_line_error(result, 2, f"unknown {kind} '{name}'", "calla --help")


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_argument(command):
    assert_one_line_error(calla(command), 2, "found 0 arguments", "MODEL",
                          f"calla {command} --help")


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option(command):
    for option in ("--nope", "-x", "--nope=3"):
        assert_one_line_error(calla(command, TINY, option), 2, f"'{option}'",
                              f"calla {command} --help")


@pytest.mark.parametrize("command", COMMANDS)
def test_too_many_arguments(command):
    assert_one_line_error(calla(command, TINY, "a", "b", "c"), 2, "no more than")


@pytest.mark.parametrize("arguments, words", [
    (["--top-p", "2"], ["--top-p", "found 2", "to 1"]),
    (["--top-p", "0"], ["--top-p", "found 0"]),
    (["--top-p", "nan"], ["--top-p", "found 'nan'", "a number"]),
    (["--top-p", ""], ["--top-p", "found ''", "a number"]),
    (["--top-k", "x"], ["--top-k", "found 'x'", "an integer"]),
    (["--top-k", "1.5"], ["--top-k", "found '1.5'", "an integer"]),
    (["--top-k", "-1"], ["--top-k", "found -1"]),
    (["--top-k"], ["--top-k", "wants a value"]),
    (["--temperature", "-1"], ["--temperature", "found -1", "0 to 2"]),
    (["--temperature", "1e999"], ["--temperature", "found '1e999'"]),
    (["--min-p", "1.01"], ["--min-p", "found 1.01", "0 to 1"]),
    (["--presence-penalty", "3"], ["--presence-penalty", "found 3", "-2 to 2"]),
    (["--frequency-penalty", "-3"], ["--frequency-penalty", "found -3"]),
    (["--repetition-penalty", "0"], ["--repetition-penalty", "found 0"]),
    (["--max-tokens", "0"], ["--max-tokens", "found 0", "1 to"]),
    (["--max-tokens", "5x"], ["--max-tokens", "found '5x'", "such as 4096 or 4K"]),
    (["--max-tokens", "K"], ["--max-tokens", "found 'K'"]),
    (["--max-tokens", "1KK"], ["--max-tokens", "found '1KK'"]),
    (["--max-tokens", "2G"], ["--max-tokens", "found 2G", "to 2147483647"]),
    (["--max-tokens", "9999999999G"], ["--max-tokens", "'9999999999G'"]),
    (["--max-context", "-4K"], ["--max-context", "found -4K", "1 to"]),
    (["--max-tokens", "4294967297"], ["--max-tokens", "found 4294967297"]),
    (["--max-context", "0"], ["--max-context", "found 0", "1 to"]),
    (["--seed", "99999999999999999999"], ["--seed", "99999999999999999999"]),
    (["--seed", "-1"], ["--seed: found -1, wanted 0 or more"]),
    (["--seed"], ["--seed", "wants a value"]),
    (["--json=yes"], ["--json", "takes no value"]),
    (["--stop", ""], ["--stop", "empty"]),
    (["--think", "--no-think"], ["--think", "--no-think", "exclude"]),
    (["--raw", "--system", "a"], ["--raw", "--system"]),
    (["--messages", "a.json"], ["--messages", "PROMPT"]),
    (["--preset", "fast"], ["--preset:", "'fast'", "thinking, coding, chat or reasoning"]),
])
def test_run_refuses_values(arguments, words):
    result = calla("run", TINY, "hi", *arguments)
    assert_one_line_error(result, 2, *words)
    assert result.out == ""


@pytest.mark.parametrize("command, arguments, words", [
    ("score", ["--greedy", "-1"], ["--greedy", "found -1"]),
    ("score", ["--greedy", "many"], ["--greedy", "'many'"]),
    ("score", ["--hidden"], ["--hidden", "wants a value"]),
    ("score", ["--max-context", "0"], ["--max-context", "found 0"]),
    ("inspect", ["--max-context", "0"], ["--max-context", "found 0"]),
    ("inspect", ["--max-context", "-5"], ["--max-context", "found -5"]),
    ("parse", ["--split", "0"], ["--split", "0"]),
    ("parse", ["--split", "x"], ["--split", "'x'"]),
])
def test_other_commands_refuse_values(command, arguments, words):
    assert_one_line_error(calla(command, TINY, *arguments), 2, *words)


# the model is not there: none of these is opened
@pytest.mark.parametrize("command, arguments", [
    ("run", ["hi"]), ("chat", []), ("bench", []), ("perplexity", ["file"]), ("compare", ["file"]), ("score", []),
    ("inspect", [])])
def test_wrong_backend_and_level(command, arguments):
    for options, words in ((["--backend", "none"], ["--backend: found 'none'", "ref"]),
                           (["--backend", "Ref"], ["--backend: found 'Ref'"]),
                           (["--cpu", "abacus"], ["--cpu: found 'abacus'", "portable"]),
                           (["--backend", "ref", "--threads", "2"], ["--threads: found 2", "ref takes none"]),
                           (["--backend", "ref", "--cpu", "portable"],
                            ["--cpu: found 'portable'", "ref takes none"])):
        if command != "inspect" or options[-1].lower() in ("none", "ref"):
            result = calla(command, "no/such/model", *arguments, *options)
            assert_one_line_error(result, 2, *words, f"calla {command} --help")
    if command == "compare":
        for option in ("--against", "--against-cpu"):
            assert_one_line_error(calla("compare", "a", "b", option, "no"), 2, f"{option}: found 'no'")
        assert_one_line_error(calla("compare", "a", "b", "--against-cpu", "portable"), 2,
                              "--against-cpu: found 'portable'", "ref takes none")


def test_sizes():
    for command, option, more in (("run", "--max-context", ["hi", "--max-tokens", "1K"]),
                                  ("inspect", "--max-context", [])):
        for text in ("4K", "4k", "4096"):
            result = calla(command, TINY, *more, option, text)
            assert result.code == 0 and "of 4096 tokens" in result.out + result.err


@pytest.mark.parametrize("command", ["run", "score", "inspect"])
def test_more_context_than_the_model_has(command):
    arguments = [TINY, "hi"] if command == "run" else [TINY]
    assert_one_line_error(calla(command, *arguments, "--max-context", "32769"), 1,
                          "--max-context: found 32769", "32768")


def test_values_may_be_joined_and_options_may_come_first():
    apart = calla("run", TINY, "Define hot.", "--no-think", "--temperature", "0")
    joined = calla("run", "--no-think", "--temperature=0", TINY, "--", "Define hot.")
    assert apart.code == joined.code == 0
    assert apart.out == joined.out != ""


def test_prompt_that_looks_like_an_option():
    result = calla("run", TINY, "--no-think", "--temperature", "0", "--max-tokens", "2", "--",
                   "--help")
    assert result.code == 0 and "usage" not in result.out


def test_error_is_one_line_whatever_the_argument_holds():
    for arguments in (["run", "no\nsuch\rfolder", "a"], ["run", TINY, "--no\npe"],
                      ["no\nsuch"], ["run", TINY, "a", "--backend", "a\nb"],
                      ["run", TINY, "a", "--top-k", "a\nb"], ["inspect", "a", "b\nc"]):
        result = calla(*arguments)
        assert result.code in (1, 2)
        assert len(result.err.strip().splitlines()) == 1, result.err


@pytest.mark.parametrize("length", [300, 3000, 100000])
def test_long_argument_does_not_hide_the_reason(length):
    """Messages have 600 bytes: the middle goes, not what is wrong at the end."""
    long = "a" * 99 + "é" * (length // 2)
    for arguments, code, reason in (
            (["run", long, "x"], 1, "File name too long"), (["inspect", long], 1, "too long"),
            (["run", TINY, "x", "--backend", long], 2, "wanted"),
            (["run", TINY, "x", "--tools", long], 1, "File name too long"),
            (["run", TINY, "x", "--preset", long], 2, "wanted thinking, coding"),
            (["run", TINY, "x", "--top-p", long], 2, "wanted a number"),
            (["run", TINY, "x", "--" + long], 2, "unknown option")):
        result = calla(*arguments)
        assert_one_line_error(result, code, reason)
        assert "\ufffd" not in result.err and "?" not in result.err and ("…" in result.err or length < 600)


@pytest.mark.parametrize("command", ["run", "score", "inspect", "tokenize", "parse"])
def test_row_80_empty_model_path(command):
    """`calla run "$UNSET"` is no question about the root folder."""
    assert_one_line_error(calla(command, ""), 2, "MODEL", "empty")


def test_row_80_wrong_model_path():
    for command in ("run", "perplexity", "compare", "score", "inspect", "tokenize", "detokenize", "render"):
        arguments = ["hi"] if command in ("run", "perplexity", "compare") else []
        assert_one_line_error(calla(command, "no/such/folder", *arguments, timeout=5), 1,
                              "no/such/folder", "No such file")


def test_row_80_file_instead_of_a_folder():
    for command in ("run", "perplexity", "compare", "score", "inspect", "tokenize", "detokenize", "render"):
        arguments = ["hi"] if command in ("run", "perplexity", "compare") else []
        result = calla(command, TINY / "config.json", *arguments, timeout=5)
        reason = "Not a directory" if command in FILTERS and command != "score" else "folder"
        assert_one_line_error(result, 1, "config.json", reason)


def test_row_80_empty_folder(tmp_path):
    for command in ("run", "score", "inspect", "tokenize"):
        arguments = ["hi"] if command == "run" else []
        result = calla(command, tmp_path, *arguments, timeout=5)
        assert_one_line_error(result, 1, str(tmp_path), "No such file" if command == "tokenize" else
                              "found no config.json; wanted the folder of an MLX checkpoint")


def test_row_80_folder_of_something_else(tmp_path):
    """What was looked for, what is there, and how to get a model."""
    for name in ("z.gguf", "b", "c\nd", ".hidden", "a"):
        (tmp_path / name).touch()
    words = ["wanted the folder of an MLX checkpoint, with config.json, tokenizer.json and *.safetensors",
             "hf download mlx-community/Qwen3.6-35B-A3B-4bit --local-dir"]
    assert_one_line_error(calla("run", tmp_path, "hi"), 1,
                          "found no config.json, only a, b, c?d, z.gguf; ", *words)
    for name in ("0", "1", "2"):
        (tmp_path / name).touch()
    assert_one_line_error(calla("run", tmp_path, "hi"), 1, "only 0, 1, 2, a, b and 2 more; ", *words)
    (tmp_path / "config.json").symlink_to(TINY / "config.json")
    assert_one_line_error(calla("run", tmp_path, "hi"), 1, "found neither model.safetensors.index.json nor "
                          "model.safetensors, only 0, 1, 2, a, b and 3 more; ", *words)
    assert_one_line_error(calla("run", tmp_path / "no", "hi"), 1, "/no: No such file", *words)


# ---- output that nobody takes --------------------------------------------------------------------

@pytest.mark.parametrize("command", ["--help", "--version", "run --help", "inspect $TINY",
                                     "inspect $TINY --json",
                                     "run $TINY 'Define hot.' --no-think"])
def test_full_disk_and_closed_stdout(command):
    for target, reason in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
        code, _, err = shell(f"$CALLA {command} {target}")
        err = [line for line in err.splitlines() if not line.startswith("memory:")]
        assert code == 1
        assert len(err) == 1 and err[0].startswith("calla: ") and "stdout" in err[0], err
        assert reason in err[0]


@pytest.mark.parametrize("command", FILTERS)
def test_full_disk_and_closed_stdout_of_filters(command):
    for target, reason in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
        code, _, err = shell(f"$CALLA {command} $TINY {target} <<< '{FILTERS[command]}'")
        assert code == 1
        assert err.count("\n") == 1 and "stdout" in err and reason in err


@pytest.mark.parametrize("command", FILTERS)
def test_reader_that_leaves_a_filter(command):
    """yes writes without end: the filter must end when its reader has."""
    code, out, err = shell(f"yes '{FILTERS[command]}' | $CALLA {command} $TINY | head -n 1; "
                           "echo ${PIPESTATUS[1]}", timeout=20)
    line, status = out.splitlines()
    assert code == 0 and line.startswith("{") and status == "1"
    assert err.strip() in ("", "yes: standard output: Broken pipe"), err


@pytest.mark.parametrize("command", FILTERS)
def test_filters_with_closed_and_empty_stdin(command):
    code, out, err = shell(f"$CALLA {command} $TINY <&-")
    assert code == 1 and out == ""
    assert err.count("\n") == 1 and "stdin" in err
    code, out, err = shell(f"$CALLA {command} $TINY < /dev/null")
    assert (code, out, err) == (0, "", "")


def test_closed_stderr_changes_nothing():
    code, out, _ = shell("$CALLA run $TINY 'Define hot.' --no-think --temperature 0 2>&-")
    assert code == 0 and out == "hot (adjective): used of physical heat.\n"
