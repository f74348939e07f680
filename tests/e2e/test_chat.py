"""calla chat: on a terminal as a user types, and through pipes as a script writes. What is reused
must be exactly what the last turns allow, and never change an answer."""

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import termios
import time

import pytest
from conftest import CALLA, ROOT, TINY, assert_one_line_error, calla
from support import GREEDY, HOT, WEATHER, default_signals, start

COLD = "cold (adjective): extended meanings."  # the greedy answer to "Define cold."
OFF = ("--no-think", *GREEDY)


def talk(*lines, options=OFF, code=0, env=None, model=TINY):
    """A piped conversation; the result."""
    result = calla("chat", model, *options, stdin="".join(line + "\n" for line in lines),
                   env=env or {})
    assert result.code == code, result.err
    return result


def notes(result):
    """What chat says on stderr, without the memory plan."""
    return [line for line in result.err.split("\n") if line and not line.startswith("memory: ")]


LAST = re.compile(r"last answer: prompt (\d+) tokens: (\d+) reused, (\d+) read in [\d.]+ s "
                  r"\([\d.]+ tok/s\); (\d+) generated in [\d.]+ s \([\d.]+ tok/s\), (\d+) of them "
                  r"reasoning; (\w+)")


def stats(result):
    """(prompt, reused, read, generated) of each /stats."""
    found = [tuple(map(int, match.groups()[:4])) for match in LAST.finditer(result.err)]
    assert all(prompt == reused + read for prompt, reused, read, _ in found)
    return found


def count(messages, thinking=False, generation=True, tools=None):
    """Tokens of a rendered conversation."""
    line = {"messages": messages, "add_generation_prompt": generation, "enable_thinking": thinking}
    if tools:
        line["tools"] = tools
    return len(calla("render", TINY, stdin=json.dumps(line)).lines()[0]["ids"])


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


# ---- a terminal ----------------------------------------------------------------------------------

class Terminal:
    """calla chat on a pseudo-terminal."""

    def __init__(self, folder, *options, env=None, model=TINY):
        self.shown = ""  # what has not been waited for
        self.everything = ""
        environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        environment |= {"XDG_STATE_HOME": str(folder), "TERM": "xterm", "LC_ALL": "C.UTF-8",
                        **(env or {})}
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(ROOT)
            default_signals()
            os.execve(CALLA, [str(CALLA), "chat", str(model), *map(str, options)], environment)
        self.wait("leaves")
        self.wait("> ")

    def read(self, seconds):
        if not select.select([self.terminal], [], [], seconds)[0]:
            return False
        try:
            block = os.read(self.terminal, 65536)
        except OSError:
            block = b""
        text = block.decode("utf-8", "replace").replace("\r\n", "\n")
        self.shown += text
        self.everything += text
        return bool(block)

    def wait(self, text, seconds=60):
        """Reads until `text` is shown; gives what came before it."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert self.read(max(0, end - time.monotonic())), (text, self.shown)
        before, self.shown = self.shown.split(text, 1)
        return before

    def wait_for_mode(self, flag, wanted):
        """What is shown and the terminal's mode change one after the other: waits for the mode."""
        end = time.monotonic() + 30
        while bool(termios.tcgetattr(self.terminal)[3] & flag) != wanted:
            assert time.monotonic() < end
            time.sleep(0.005)

    def send(self, text):
        """Types when the editor reads keys; while an answer comes: `interrupt`."""
        self.wait_for_mode(termios.ICANON, False)
        os.write(self.terminal, text.encode())

    def interrupt(self):
        self.wait_for_mode(termios.ISIG, True)
        os.write(self.terminal, b"\x03")

    def say(self, line, until="\033[?2004h"):
        """Types a line and gives what is shown up to the next prompt."""
        self.send(line + "\r")
        self.wait("\033[?2004l")  # the editor has given the line over
        return self.wait(until)

    def leave(self, how="\x04"):
        self.send(how)
        while self.read(30):
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_one(*options, **more):
        opened.append(Terminal(tmp_path / "state", *options, **more))
        return opened[-1]
    yield open_one
    for one in opened:
        try:
            os.kill(one.child, signal.SIGKILL)
            os.waitpid(one.child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def test_terminal_talk_and_end(terminal):
    chat = terminal(*OFF)
    assert HOT in chat.say("Define hot.")
    assert COLD in chat.say("Define cold.")
    assert chat.leave("\x04") == 0


def test_terminal_editing(terminal):
    chat = terminal(*OFF)
    # the beginning (Ctrl-A), the end (Ctrl-E), back, delete, a word away (Ctrl-W)
    assert HOT in chat.say("efine hox.\x01D\x05\x1b[D\x7ft")
    assert COLD in chat.say("Define cold. nonsense\x17\x7f")
    assert HOT in chat.say("/edit caffè\x7f\x7f\x7f\x7f\x7fDefine hot.")  # a key a character
    chat.send("/edit\r")
    chat.wait("as it is\n")
    chat.wait("Define hot.")
    chat.send("\x03")
    chat.wait("not changed")
    chat.send("/edit\r")
    chat.wait("as it is\n")
    chat.wait("Define hot.")
    assert COLD in chat.say("\x7f\x7f\x7f\x7fcold.")


def test_terminal_history(terminal, tmp_path):
    chat = terminal(*OFF)
    chat.say("Define hot.")
    assert HOT in chat.say("\x1b[A")
    chat.say("/think off")
    chat.leave()
    file = tmp_path / "state" / "calla" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    chat = terminal(*OFF)
    assert HOT in chat.say("\x1b[A\x1b[A")  # of the session before
    chat.send("\x12fine h")  # found by what is in it
    chat.wait("Define hot.")
    assert HOT in chat.say("")


def test_terminal_history_is_replaced_whole(terminal, tmp_path):
    chat = terminal(*OFF)
    chat.say("/help")
    file = tmp_path / "state" / "calla" / "chat_history"
    with file.open() as old:  # whoever has it open reads it to its end: it is never cut
        before = file.read_text()
        chat.say("/stats")
        assert old.read() == before and file.read_text().startswith(before)
    assert os.listdir(file.parent) == [file.name]
    chat.leave()


def test_terminal_history_that_is_none(terminal, tmp_path):
    file = tmp_path / "state" / "calla" / "chat_history"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x00\xff" * 5000 + b"\nprecious\n")
    before = file.read_bytes()
    chat = terminal(*OFF)
    assert "no history of calla chat" in chat.everything
    assert HOT in chat.say("Define hot.")
    assert chat.leave() == 0 and file.read_bytes() == before


def test_terminal_multi_line(terminal):
    chat = terminal(*OFF)
    chat.send("Define\\\r")
    chat.wait("| ")
    chat.say("hot.")
    chat.send('"""one\r')
    chat.wait("| ")
    chat.send("two\\\r")
    chat.wait("| ")
    chat.say('three"""')
    chat.say("\033[200~four\rfive\033[201~ six")  # pasted
    chat.say("/save " + "saved.json")
    path = ROOT / "saved.json"
    try:
        messages = json.loads(path.read_text())["messages"]
    finally:
        path.unlink()
    texts = [message["content"] for message in messages if message["role"] == "user"]
    assert texts == ["Define\nhot.", "one\ntwo\\\nthree", "four\nfive six"]
    chat.send("/edit\r")  # all three lines can be edited
    chat.wait("six")
    chat.say("!")
    assert "four\nfive six!" in saved_users(chat)


def saved_users(chat):
    path = ROOT / "saved.json"
    chat.say("/save saved.json")
    try:
        return [message["content"] for message in json.loads(path.read_text())["messages"]
                if message["role"] == "user"]
    finally:
        path.unlink()


def test_terminal_ctrl_c(terminal):
    chat = terminal("--temperature", "1.5", "--seed", "3", "--think")
    chat.send("Define hot.\r")
    chat.wait("\033[2m")  # it thinks
    chat.interrupt()
    chat.wait("stopped")
    chat.wait("> ")
    chat.send("half a line\x03")  # drops what is typed, says nothing
    chat.wait("^C")
    chat.wait("> ")
    assert "answers: 1," in chat.say("/stats")
    chat.send("\x03")
    chat.wait("Ctrl-C again")
    chat.say("/help")
    chat.send("\x03")  # the first one again
    chat.wait("Ctrl-C again")
    chat.wait("> ")
    assert chat.leave("\x03") == 0


def test_terminal_ctrl_c_keeps_what_came(terminal):
    chat = terminal("--no-think", "--temperature", "2", "--top-k", "0", "--top-p", "1", "--seed", "1")
    chat.send("Tell me a long story.\r")
    chat.wait("\033[?2004l")
    while len(chat.shown) < 40:
        assert chat.read(30)
    chat.interrupt()
    chat.wait("stopped: the answer stays")
    chat.wait("> ")
    out = chat.say("/stats")
    assert "cancelled" in out
    assert "read in" in chat.say("Define hot.") + chat.say("/stats")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_terminal_killed_leaves_the_terminal_as_it_was(terminal, number):
    chat = terminal(*OFF)
    chat.say("/help")
    chat.wait_for_mode(termios.ICANON, False)  # the editor has it
    os.kill(chat.child, number)
    while chat.read(5):
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(chat.child, 0)[1]) == -number
    assert termios.tcgetattr(chat.terminal)[3] & termios.ICANON
    pastes = re.findall(r"\033\[\?2004[hl]", chat.everything)
    assert pastes[-1] == "\033[?2004l" and pastes[-2] == "\033[?2004h"


def test_terminal_suspended_pastes_as_before(terminal):
    chat = terminal(*OFF)
    chat.send("\x1a")  # a group without a shell above it is not stopped
    chat.wait("\033[?2004l")
    chat.wait("\033[?2004h")
    assert HOT in chat.say("Define hot.")


@pytest.mark.parametrize("environment, dimmed", [({}, True), ({"NO_COLOR": "1"}, False)])
def test_terminal_dims_reasoning(terminal, environment, dimmed):
    chat = terminal("--temperature", "0", env=environment)
    out = chat.say("Define hot.")
    assert ("\033[2m" in out) == dimmed and HOT in out


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"TERM": "dumb"}, {"TERM": "no-such"},
                                         {"XDG_STATE_HOME": "", "HOME": ""}])
def test_terminal_odd_environments(terminal, environment):
    chat = terminal(*OFF, env=environment)
    chat.say("caffè")
    assert HOT in chat.say("/edit Define hot.")
    assert chat.leave() == 0


def test_terminal_gets_no_commands_from_texts(terminal, tmp_path):
    title = "\033]0;title\a \x9b31m"
    path = write(tmp_path / "a.json", [{"role": "system", "content": title},
                                       {"role": "user", "content": "Define hot."}])
    chat = terminal(*OFF)
    chat.say(f"/load {path}")
    assert "?]0;title? ?31m" in chat.say("/system")
    assert "\033]" not in chat.everything and "\x9b" not in chat.everything
    assert title in talk(f"/load {path}", "/system").err  # a pipe gets all


# ---- what is read and what is reused -------------------------------------------------------------

def test_turns_read_the_last_answer_and_the_new_message():
    result = talk("Define hot.", "/stats", "Define cold.", "/stats", "/regenerate", "/stats",
                  "Define hot.", "/stats", "/edit Define cold.", "/stats", "Define hot.", "/stats")
    assert result.out == "".join(text + "\n" for text in (HOT, COLD, COLD, HOT, COLD, HOT))
    first, second, again, third, edited, fourth = stats(result)
    opening = count([user("x")]) - count([user("x")], generation=False)  # <|im_start|>assistant …
    kept = opening - 4  # less `<think>\n\n</think>\n\n`
    one = [user("Define hot.")]
    two = [*one, assistant(HOT), user("Define cold.")]
    three = [*two, assistant(COLD), user("Define hot.")]
    changed = [*two, assistant(COLD), user("Define cold.")]
    four = [*changed, assistant(COLD), user("Define hot.")]
    ends = {}
    for name, messages in (("one", one), ("two", two), ("three", three), ("changed", changed)):
        ends[name] = count(messages, generation=False) + kept
    assert first == (count(one), 0, count(one), first[3])
    assert second[:2] == (count(two), ends["one"])
    assert again[:2] == (count(two), ends["two"]) and again[2] == 4
    assert third[:2] == (count(three), ends["two"])
    last_turn = count([user("Define cold.")])  # the turn that was edited, and the opened answer
    assert edited[:3] == (count(changed), count(changed) - last_turn, last_turn)
    assert fourth[:2] == (count(four), ends["changed"])


def test_thinking_leaves_with_the_next_turn():
    result = talk("Define hot.", "/stats", "Define cold.", "/stats", "/think off", "Define hot.",
                  "/stats", options=GREEDY)
    first, second, third = stats(result)
    kept = count([user("Define hot.")], thinking=True) - 2  # but for `<think>\n`
    two = [user("Define hot."), assistant(HOT), user("Define cold.")]
    three = [*two, assistant(COLD), user("Define hot.")]
    assert second[:2] == (count(two, thinking=True), kept)
    assert third[:2] == (count(three), count(two, thinking=True) - 2)
    assert first[3] > 20 and result.out == f"{HOT}\n{COLD}\n{HOT}\n"


def test_system_block_is_reused(tmp_path):
    system = {"role": "system", "content": "Be brief and friendly."}
    result = talk("Define hot.", "/clear", "Define cold.", "/stats", "/system Be rude.",
                  "Define cold.", "/stats", options=(*OFF, "--system", system["content"]))
    again, rude = stats(result)
    block = count([system, user("x")], generation=False) - count([user("x")], generation=False)
    assert again[1] == block and rude[1] == 0


def test_cache_off_reads_everything():
    result = talk("Define hot.", "Define cold.", "/stats", "/regenerate", "/stats",
                  options=(*OFF, "--cache", "0"))
    assert [line[1] for line in stats(result)] == [0, 0]
    assert result.out == f"{HOT}\n{COLD}\n{COLD}\n" and "more to reuse" not in result.err
    assert "more to reuse" in talk().err


def test_answers_are_those_of_a_fresh_session(tmp_path):
    """Sampled, with penalties: each answer is the one of `calla run` on the same messages and
    seed."""
    options = ("--backend", "ref", "--seed", "11", "--temperature", "0.8", "--presence-penalty", "0.5", "--max-tokens",
               "60")
    path = tmp_path / "saved.json"
    lines = ["Define hot.", "What is the opposite of useful?", "/regenerate", "Define cold.",
             "/edit Define small.", "/think off", "What is a synonym of big?"]
    prompts, seed = [], 11
    for n, line in enumerate(lines):
        if line.startswith("/think"):
            continue
        talk(*lines[:n + 1], f"/save {path}", options=options)
        messages = json.loads(path.read_text())["messages"]
        answer = messages.pop()
        (tmp_path / "messages.json").write_text(json.dumps(messages))
        thinking = ("--no-think",) if "/think off" in lines[:n + 1] else ()
        fresh = calla("run", TINY, "--messages", tmp_path / "messages.json", "--json", *options,
                      "--seed", seed, *thinking)
        wanted = json.loads(fresh.out)
        assert answer["content"] == wanted["text"], (n, line)
        assert answer.get("reasoning_content", "") == wanted["reasoning"]
        prompts.append(wanted["usage"]["prompt_tokens"])
        seed += 1
    assert len(set(prompts)) > 3


# ---- the commands --------------------------------------------------------------------------------

def test_every_command_is_in_the_help():
    result = talk("/help")
    for name in ("regenerate", "edit", "tool", "system", "tools", "think", "preset", "save", "load",
                 "drop", "clear", "stats", "help", "quit"):
        assert f"  /{name}" in result.err


def test_unknown_command_and_slashes():
    result = talk("/nonsense now", "//etc is a folder", code=1)
    assert sum("unknown command '/nonsense'" in line for line in notes(result)) == 1
    assert result.out.count("\n") >= 1  # the second one was a message


def test_quit_and_end():
    assert talk("/quit", "Define hot.").out == ""
    assert calla("chat", TINY, stdin="").code == 0
    assert calla("chat", TINY, *OFF, stdin="Define hot.").out == HOT + "\n"  # no newline at the end


def test_commands_without_a_message():
    for line, word in (("/regenerate", "no message"), ("/edit x", "no message"), ("/tool x", "waits"),
                       ("/save", "wanted /save FILE"), ("/load", "wanted /load FILE"), ("/preset poet", "poet"),
                       ("/think maybe", "on or off"), ("/drop", "only one turn")):
        result = talk(line, code=1)
        assert word in notes(result)[0] and result.out == "", line
    result = talk("/stats")
    assert "context: " in result.err and "last answer" not in result.err


def test_system_command():
    result = talk("/system", "/system  Be brief. ", "/system", "/system -", "/system")
    assert notes(result)[0] == "no system message is set" == notes(result)[-1]
    assert notes(result)[2] == "Be brief."


def test_preset_and_think():
    lines = notes(talk("/preset chat", "/think", "/preset thinking", "/think off", "/think on"))
    assert lines[0].startswith("temperature 0.7, top_p 0.8, top_k 20, presence penalty 1.5")
    assert lines[0].endswith("off") and lines[1] == "thinking is off"
    assert lines[2].endswith("on") and lines[3:] == ["thinking is off", "thinking is on"]
    shown, names = notes(talk("/preset", options=("--temperature", "0.25")))  # changes nothing
    assert shown.startswith("temperature 0.25, top_p ")
    assert names == "/preset NAME takes thinking, coding, chat or reasoning"


def test_edit_in_two_lines_and_given_up():
    result = talk("Define hot.", "/edit", "Define cold.", "/edit", "", "/regenerate")
    assert result.out == f"{HOT}\n{COLD}\n{COLD}\n" and "not changed" in result.err


def test_multi_line_pipes(tmp_path):
    path = tmp_path / "a.json"
    talk("Define\\", "hot.", '"""', "a block", '  with "quotes"', '"""', '"""one line"""',
         "", "  ", f"/save {path}")
    users = [message["content"] for message in json.loads(path.read_text())["messages"]
             if message["role"] == "user"]
    assert users == ["Define\nhot.", 'a block\n  with "quotes"', "one line"]
    result = talk('"""', "never ended", code=1)
    assert "no end" in result.err and result.out == ""


def test_bad_bytes():
    process = subprocess.run([CALLA, "chat", TINY, *OFF], cwd=ROOT, capture_output=True,
                             input=b"\xff\xfe\nDefine hot.\nnul \0 inside\n")
    assert process.returncode == 1 and process.stdout.decode().startswith(HOT + "\n")
    assert b"not UTF-8 at byte 0 (0xff)" in process.stderr


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_tool_calls(tmp_path):
    tools = write(tmp_path / "tools.json", WEATHER)
    saved = tmp_path / "saved.json"
    result = talk(f"/tools {tools}", "/tools", "What is the weather in Rome?", "/stats",
                  "/tool sunny, 25 degrees", "/stats", f"/save {saved}", options=GREEDY)
    assert "1 tool;" in result.err and "get_weather: Weather of a city" in result.err
    call = json.loads(result.out.split("\n")[0])
    assert call == {"name": "get_weather", "arguments": {"city": "Rome"}}
    assert "1 tool result is wanted: /tool TEXT gives that of get_weather" in result.err
    messages = json.loads(saved.read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "get_weather",
                                                        "arguments": '{"city": "Rome"}'}
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
    # nothing that was generated is read again: the call stands in the prompt as it was
    first, second = stats(result)
    assert second[1] == first[0] + first[3] - 1  # the stop token was drawn, not read


def test_tools_that_are_none(tmp_path):
    for value, word in (({}, "array"), ("[1]", "tools"), ("[{\"type\": \"function\"}]", "tools"),
                        ("[", "line 1"), ("", "line 1")):
        path = write(tmp_path / "bad.json", value)
        result = talk(f"/tools {path}", "Define hot.", code=1)
        assert word in notes(result)[0] and result.out == HOT + "\n", value
        result = calla("chat", TINY, "--tools", path)
        assert result.code == 1 and word in result.err
    assert "No such file" in talk("/tools /no/such", code=1).err
    assert "0 tools" in talk("/tools -").err


# ---- files ---------------------------------------------------------------------------------------

def test_save_and_load(tmp_path):
    path = tmp_path / "with space.json"
    text = 'Define hot. "quoted" \\ café 👩‍💻'
    first = talk("/system Be brief.", text, "/think on", "/preset coding", f"/save {path}",
                 "/think off", "Define cold.", "/stats")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["messages"][0] == {"role": "system", "content": "Be brief."}
    assert saved["messages"][1] == user(text)
    assert saved["settings"]["temperature"] == 0.6 and saved["settings"]["thinking"] is True
    again = tmp_path / "again.json"
    second = talk(f"/load {path}", f"/save {again}", "/think off", "Define cold.", "/stats",
                  options=("--load", path, "--seed", "5"))
    assert json.loads(again.read_text(encoding="utf-8")) == saved
    assert stats(first)[-1][0] == stats(second)[-1][0]
    # a bare array of messages, as `calla run --messages` takes it
    bare = write(tmp_path / "bare.json", [user("Define hot.")])
    result = talk(f"/load {bare}", "/regenerate")
    assert result.out == HOT + "\n" and "no answer" in result.err


def test_save_replaces_files_only(tmp_path):
    path = write(tmp_path / "old.json", "old")
    talk(f"/save {path}")
    assert json.loads(path.read_text())["messages"] == []
    for place, word in ((tmp_path, "regular file"), (tmp_path / "no" / "a", "No such file"),
                        ("/dev/null", "regular file")):
        assert word in talk(f"/save {place}", code=1).err
    assert not list(tmp_path.glob("*.part"))


def test_save_and_load_at_home(tmp_path):
    talk("Define hot.", "/save ~/a.json", env={"HOME": str(tmp_path)})
    assert "loaded 2 messages" in talk("/load ~/a.json", env={"HOME": str(tmp_path)}).err


HOSTILE = [
    ("", "line 1"), ("{", "line 1"), ("3", "array of messages"), ("null", "array of messages"),
    ("{}", "messages"), ({"messages": 3}, "messages"), ([3], "messages[0]"),
    ([{}], "messages[0].role"), ([{"role": 3}], "messages[0].role"), ([{"role": "poet"}], "role"),
    ([user({"a": 1})], "content"), ([user("a"), {"role": "system", "content": "b"}], "System"),
    ([user([{"type": "image_url"}])], "content"),
    ([user("a"), assistant("b", tool_calls=3)], "tool_calls"),
    ([user("a"), assistant("b", tool_calls=[{"function": {"name": 3}}])], "name"),
    ({"messages": [], "tools": {}}, "tools"), ({"messages": [], "tools": [{}]}, "tools"),
    ({"messages": [], "settings": 3}, "settings"),
    ({"messages": [], "settings": {"thinking": 1}}, "settings.thinking"),
    ({"messages": [], "settings": {"temperature": "hot"}}, "settings.temperature"),
    ({"messages": [], "settings": {"temperature": 99}}, "settings.temperature"),
    ({"messages": [], "settings": {"top_k": 1.5}}, "settings.top_k"),
    ({"messages": [], "settings": {"max_tokens": 1 << 40}}, "settings.max_tokens"),
    ("[" * 100000, "line 1"), ("{\"messages\": [" + "[" * 3000 + "]" * 3000 + "]}", ""),
    ("[{\"role\": \"user\", \"content\": 1e999}]", ""), ("[\"\\ud800\"]", ""),
]


def test_load_hostile_files(tmp_path):
    """Each is refused in one line and changes nothing."""
    lines = ["Define hot."]
    for n, (value, _) in enumerate(HOSTILE):
        write(tmp_path / f"{n}.json", value)
        lines.append(f"/load {tmp_path}/{n}.json")
    (tmp_path / "binary.json").write_bytes(b"[\xff\x00]")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "huge.json").touch()
    os.truncate(tmp_path / "huge.json", 1 << 40)
    others = (("binary", ""), ("pipe", "pipe.json"), ("huge", "bytes"), (".", ""), ("none", "No such"))
    lines += [f"/load {tmp_path}/{name}.json" if name != "." else f"/load {tmp_path}"
              for name, _ in others]
    saved = tmp_path / "saved.json"
    result = talk(*lines, "/regenerate", f"/save {saved}", code=1)
    problems = notes(result)[:-1]
    words = [word for _, word in (*HOSTILE, *others)]
    assert len(problems) == len(words), problems
    for problem, word, value in zip(problems, words, [*HOSTILE, *others]):
        assert problem.startswith("calla: ") and word in problem, (value, problem)
    assert result.out == f"{HOT}\n{HOT}\n"
    assert json.loads(saved.read_text())["messages"] == [user("Define hot."), assistant(HOT)]


# ---- the end of the context ----------------------------------------------------------------------

@pytest.mark.parametrize("context, kind", [(92, "may not fit"), (100, "no further message fits"),
                                           (110, "may not fit")])
def test_full_context_is_said_before_and_loses_nothing(tmp_path, context, kind):
    saved = tmp_path / "saved.json"
    lines = ["Define hot."] * 6
    result = talk(*lines, f"/save {saved}", "/stats", "/drop", "/drop", "Define cold.", "/clear",
                  "Define hot.", options=(*OFF, "--max-context", context), code=1)
    said = notes(result)
    warned = [n for n, line in enumerate(said) if kind in line]
    refused = [n for n, line in enumerate(said) if "nothing was sent or lost" in line]
    assert warned and refused and warned[0] < refused[0]
    assert "/save FILE" in said[warned[0]] and "/drop" in said[warned[0]]
    messages = json.loads(saved.read_text())["messages"]
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    assert messages[0] == user("Define hot.") and answers[:3] == [HOT] * 3
    assert len(messages) == 2 * len(answers)  # what was refused is not in it
    assert HOT.startswith(answers[-1])
    if answers[-1] != HOT:
        assert any("the answer was cut" in line for line in said)
        assert any("room for" in line for line in said)  # said before it began
    assert result.out.endswith(f"{COLD}\n{HOT}\n")


def test_answer_cut_by_the_context():
    result = talk("Define hot.", options=(*OFF, "--max-context", "20"))
    assert "the context is full: the answer was cut" in result.err
    assert HOT.startswith(result.out.rstrip("\n"))
    result = talk("Define hot.", options=(*OFF, "--max-tokens", "3"))
    assert "cut after --max-tokens 3" in result.err


def test_long_message_is_refused():
    result = talk("word " * 500, "Define hot.", options=(*OFF, "--max-context", "100"), code=1)
    assert result.out == HOT + "\n" and "100 fit" in result.err


# ---- scripts -------------------------------------------------------------------------------------

def test_full_disk_is_said():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([CALLA, "chat", TINY, *OFF], input=b"Define hot.\n", stdout=full,
                              stderr=subprocess.PIPE, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert b"calla: cannot write to stdout: No space left on device\n" in done.stderr


def test_interrupt_ends_a_script():
    process = start("chat", TINY, "--temperature", "2", "--top-k", "0", "--top-p", "1", "--seed", "1",
                    "--backend", "ref", stdin=subprocess.PIPE)  # slow enough
    process.stdin.write(b"Tell me a story.\nDefine hot.\n")
    process.stdin.flush()
    seen = b""
    while b"memory: " not in seen or seen.endswith(b"\n"):  # something is being generated
        seen += os.read(process.stderr.fileno(), 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 1


def test_reader_that_leaves():
    command = f"printf 'Define hot.\\n%.0s' $(seq 200) | {CALLA} chat {TINY} --no-think | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1


@pytest.mark.parametrize("arguments, words", [
    ((), ("MODEL",)), ((TINY, "x"), ("'x'",)), ((TINY, "--cache", "-1"), ("--cache",)),
    ((TINY, "--cache", "512"), ("--cache: found 512", "at least 1M")),
    ((TINY, "--think", "--no-think"), ("exclude",)), ((TINY, "--preset", "poet"), ("poet",)),
    ((TINY, "--stop", ""), ("--stop",)),
])
def test_usage(arguments, words):
    assert_one_line_error(calla("chat", *arguments), 2, *words)


def test_start_that_fails(tmp_path):
    for options, word in ((("--load", "/no/such"), "No such file"), (("--tools", tmp_path), ""),
                          (("--cache", "32768G"), "--cache: found 32768.00 GiB")):
        result = calla("chat", TINY, *options)
        assert result.code == 1 and word in notes(result)[-1] and len(notes(result)) == 1
