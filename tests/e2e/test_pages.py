"""The man page and the completions that packaging/*.awk make of the program's own tables: all that
--help shows is in them, and the shells take them and complete with them."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest
from conftest import ROOT, calla

SHARE = ROOT / "build" / "share"
AWK = ["awk", "-v", "version=1.2.3", "-f", "packaging/table.awk", "-f"]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT,
                          timeout=60, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(program):
    if not shutil.which(program):
        pytest.skip(f"there is no {program}")


@pytest.fixture(scope="module", autouse=True)
def pages():
    run(os.environ.get("MAKE", "make"), "pages")


@pytest.fixture(scope="module")
def names():
    """The words that some options take alone: {(command, option): [word]}."""
    rows = [line.split("\t") for line in calla("--help-table").out.splitlines()]
    command, found = None, {}
    for kind, *fields in rows:
        if kind == "command":
            command = fields[0]
        elif kind == "option" and fields[3]:
            found[command, fields[0]] = fields[3].split()
    assert found["run", "preset"] == ["thinking", "coding", "chat", "reasoning"]
    assert found["synth", "shape"] == found["bench", "synthetic"] == ["35b-a3b", "tiny"]
    assert "ref" in found["compare", "against"] and "portable" in found["compare", "against-cpu"]
    assert {option for _, option in found} == {"preset", "shape", "synthetic", "backend", "against", "cpu",
                                               "against-cpu"}
    return found


@pytest.fixture(scope="module")
def commands():
    """What --help shows: {command: (arguments, summary, {option: (argument, help)})}."""
    listed = re.findall(r"^  ([a-z]+) +(\S.*)$", calla("--help").out.split("\noptions:\n")[0], re.M)
    found = {}
    for name, _ in listed:
        text = calla(name, "--help").out
        usage, summary = text.split("\n")[:2]
        arguments = usage.removeprefix(f"usage: calla {name} ").removesuffix(" [options]")
        options = {option: (argument, help) for option, argument, help in re.findall(
            r"^  --([a-z0-9-]+)(?: (\S+))? +(\S.*)$", text.split("\noptions:\n")[1], re.M)}
        found[name] = (arguments, summary, options)
    assert {"run", "perplexity", "compare", "score"} <= set(found) and len(found) >= 9
    assert found["run"][2]["top-k"] == ("K", "0: off") and "help" in found["parse"][2]
    return found


def test_table_is_hidden_and_has_everything(commands):
    assert "--help-table" not in calla("--help").out + calla("run", "--help").out
    rows = [line.split("\t") for line in calla("--help-table").out.splitlines()]
    found, options = {}, None
    for kind, *fields in rows:
        if kind == "command":
            options = {}
            found[fields[0]] = (fields[1], fields[2], options)
        elif kind == "option":
            option, argument, help, values = fields
            options[option] = (argument, ": ".join(filter(None, (help, ", ".join(values.split())))))
        else:
            assert kind == "detail" and len(fields) == 1
    assert set(found.pop("")[2]) == {"help", "version"}
    assert found == commands


def test_man_page_has_everything(commands):
    page = (SHARE / "calla.1").read_text()
    assert f'"calla {calla("--version").out.split()[1]}"' in page
    plain = page.replace("\\-", "-").replace("\\e", "\\")
    sections = re.split(r"^\.SS ", plain, flags=re.M)[1:]
    assert [section.split("\n")[0] for section in sections] == [
        f"calla {name} {arguments}" for name, (arguments, _, _) in commands.items()]
    for section, (_, summary, options) in zip(sections, commands.values()):
        assert section.split("\n")[1] == summary
        for option, (argument, text) in options.items():
            shown = f"\\fB--{option}\\fR" + (f" \\fI{argument}\\fR" if argument else "")
            assert f".TP\n{shown}\n{text}\n" in section


@pytest.mark.parametrize("command, harmless", [
    (["mandoc", "-Tlint", "-Wwarning"], "missing date"),
    (["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"], None)])
def test_man_page_is_clean(command, harmless):
    needs(command[0])
    if command[0] == "man" and "--warnings" not in subprocess.run(
            ["man", "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this man has no --warnings")
    done = subprocess.run([*command, SHARE / "calla.1"], capture_output=True, text=True)
    said = done.stderr if command[0] == "man" else done.stdout + done.stderr
    assert [line for line in said.splitlines() if not harmless or harmless not in line] == []


def test_man_page_of_odd_text():
    """No character of a help text is markup, and indented lines keep their form."""
    rows = ("command\t\tX\tAn x.\ndetail\t.a\\b-c\noption\to\t\t'quoted\\fB\n"
            "command\tq\tM\tone\ndetail\tprose\ndetail\t  kept  a\ndetail\tprose again\n"
            "detail\tin:  {x}\ndetail\t     more\ndetail\tend\n")
    page = run(*AWK, "packaging/calla.1.awk", input=rows)
    assert "\n\\&.a\\eb\\-c\n" in page and "\n\\&'quoted\\efB\n" in page
    assert ("one\n.PP\nprose\n.PP\n.nf\n  kept  a\n.fi\n.PP\nprose again\n.TP\nin:\n{x}\nmore\n.PP\nend\n"
            in page)


@pytest.mark.parametrize("shell, file", [("bash", "calla.bash"), ("zsh", "_calla"),
                                         ("fish", "calla.fish")])
def test_shells_take_the_completions(shell, file):
    needs(shell)
    run(shell, "-n", SHARE / file)


def bash(*words):
    script = ('. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _calla; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    done = run("bash", "-c", script, SHARE / "calla.bash", *words)
    return {word for word in done.split("\n") if word}


def test_bash_completes_everything(commands, names):
    needs("bash")
    assert bash("calla", "") == {*commands, "--help", "--version"}
    for name, (_, _, options) in commands.items():
        assert bash("calla", name, "-") == {f"--{option}" for option in options}
        for option, (argument, _) in options.items():
            assert f"--{option}" in bash("calla", name, "--" + option[:2])
            if argument:  # its value is no option
                words = set(names.get((name, option), []))
                assert bash("calla", name, f"--{option}", "") == words
                assert bash("calla", name, f"--{option}", "=") == words
                for word in words:
                    assert word in bash("calla", name, f"--{option}", "=", word[:1])
    assert bash("calla", "per") == {"perplexity"} and bash("calla", "nothing", "-") == set()


def fish(line):
    """What fish offers for a line, as {word: description}."""
    shown = run("fish", "--no-config", "-c", f"source {SHARE}/calla.fish; complete -C '{line}'")
    return {entry.split("\t")[0]: (entry.split("\t") + [""])[1] for entry in shown.splitlines()}


def test_fish_completes_everything(commands, names):
    needs("fish")
    offered = fish("calla ")
    for name, (_, summary, options) in commands.items():
        assert offered.pop(name) == summary
        offered_here = fish(f"calla {name} --")
        assert offered_here == {f"--{option}": text
                                for option, (_, text) in options.items()}
    assert offered == {} and set(fish("calla --")) == {"--help", "--version"}
    assert "models/" in fish("calla run mod")
    for (name, option), words in names.items():
        assert list(fish(f"calla {name} --{option} ")) == sorted(words)
    assert fish("calla run --tools README") == {"README.md": ""} and fish("calla run --system ") == {}


def test_zsh_file_has_everything(commands, names):
    text = (SHARE / "_calla").read_text().replace("'\\''", "'")
    for name, (_, summary, options) in commands.items():
        assert re.sub(r"([:\\])", r"\\\1", summary) in text and f"'{name}:" in text
        block = text.split(f"\n    {name})\n")[1].split(";;")[0]
        assert block.count("'*--") == len(options)
        for option, (argument, _) in options.items():
            assert f"'*--{option}{'=' if argument else ''}[" in block
            if argument:
                words = " ".join(names.get((name, option), []))
                action = (f"({words})" if words else
                          "_files" if "FILE" in argument or "DIR" in argument else "")
                assert f"]:{argument}:{action}'" in block


def zsh(line):
    """The command line after a tab, in an interactive zsh."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "PS1": "", "COLUMNS": "200"})

    def read_until(word):
        shown, end = b"", time.monotonic() + 20
        while word not in shown:
            assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], shown
            shown += os.read(terminal, 65536)
        return shown
    os.write(terminal, f"fpath=({SHARE} $fpath); autoload -Uz compinit; compinit -u -D; "
             "show() {{ print -r -- \"<<$BUFFER>>\"; BUFFER= }}; zle -N show; bindkey '^Y' show; "
             "bindkey '^I' complete-word; print rea''dy\n".replace("{{", "{").replace("}}", "}").encode())
    read_until(b"ready")
    os.write(terminal, line.encode() + b"\t\x19")
    shown = read_until(b">>").decode()
    os.close(terminal)
    os.waitpid(child, 0)
    return re.sub(r".*<<(.*)>>.*", r"\1", shown, flags=re.S)


@pytest.mark.skipif(sys.platform == "darwin", reason="its zsh needs other keys")
@pytest.mark.parametrize("line, completed", [
    ("calla perp", "calla perplexity "), ("calla --vers", "calla --version "),
    ("calla run --tem", "calla run --temperature="), ("calla run --no", "calla run --no-think "),
    ("calla run models/ti", "calla run models/tiny/"),
    ("calla run models/tiny --tools=READ", "calla run models/tiny --tools=README.md "),
    ("calla run --preset=cod", "calla run --preset=coding "),
    ("calla synth --shape 35", "calla synth --shape 35b-a3b "),
    ("calla score --hid", "calla score --hidden="), ("calla nothing --no", "calla nothing --no")])
def test_zsh_completes(line, completed):
    needs("zsh")
    assert zsh(line) == completed


@pytest.mark.parametrize("file", ["calla.1", "calla.bash", "_calla", "calla.fish"])
def test_every_awk_makes_the_same(file):
    """In every locale, too; `make pages` used whichever is called awk."""
    version = "version=" + calla("--version").out.split()[1]
    for awk in filter(shutil.which, ("awk", "mawk", "gawk", "original-awk")):
        made = run(awk, "-v", version, "-f", "packaging/table.awk", "-f", f"packaging/{file}.awk",
                   SHARE / "table.tsv", env={**os.environ, "LC_ALL": "C"})
        assert made == (SHARE / file).read_text(), awk


def test_pages_follow_the_program(tmp_path):
    """A command that is new in the table is in all pages without a change to the generators."""
    rows = calla("--help-table").out + ("command\tfly\tMODEL [WHERE]\tas a bird's: up\n"
                                        "option\twing-span\tM\t[metres]\noption\tmap\tFILE\ta map\t\n"
                                        "option\tbeak\tFORM\tits form\tflat hooked\n")
    for file in ("calla.1", "calla.bash", "_calla", "calla.fish"):
        made = run(*AWK, f"packaging/{file}.awk", input=rows)
        assert "fly" in made and "wing" in made and "map" in made and "hooked" in made
        (tmp_path / file).write_text(made)
    for shell, file in (("bash", "calla.bash"), ("zsh", "_calla"), ("fish", "calla.fish")):
        if shutil.which(shell):
            run(shell, "-n", tmp_path / file)
