"""A newcomer who follows pages to the letter, in a terminal, a home folder and an environment of their own.

A comment above a block says what it is. Files are named from the home folder on:

    <!-- write notes/server.py -->           the block is the whole file
    <!-- add to notes/server.py -->          it goes above the last two lines of the file
    <!-- change notes/server.py -->          a `diff`
    <!-- part of notes/server.py -->         the file has these lines already
    <!-- until Ctrl-C -->                    commands, of which the last one runs on
    <!-- it prints -->                       what that one prints after a change
    <!-- in a new terminal -->               commands, from the home folder on
    <!-- in a second terminal -->            commands, beside the one that runs
    <!-- typed: y, yes -->                   commands that ask, and what is answered
    <!-- not here: docker -->                commands that need what no test has

All other `console` blocks are commands. What a page shows of their output has to be so, but for `…`, which stands for
anything within a line, and for seconds. A command fails only where an error is shown.
"""

import io
import os
import re
import socket
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pexpect

PROMPT = "newcomer> "
WIDTH = 100  # of the terminal; output is cut there
PROMPTLY = 60.0  # seconds for a command; much more than any takes, but for pip
SETUP = re.compile(r"(python3 -m venv|\. \S+/activate|pip install) ?")
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
GUARD = '\n\nif __name__ == "__main__":\n'
SOURCE = Path(__file__).parent.parent / "src"
ESCAPES = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")


class Block(NamedTuple):
    mark: str
    language: str
    body: str


def blocks(text: str) -> list[Block]:
    return [Block(found["mark"] or "", found["language"], found["body"]) for found in BLOCK.finditer(text)]


class Terminal:
    """A shell. `typed` are answers to what a command asks."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._seen = io.StringIO()
        self._shell = pexpect.spawn(
            "bash", ["--noprofile", "--norc", "--noediting"], cwd=str(folder), timeout=PROMPTLY, encoding="utf-8",
            env={**env, "PS1": f"[$?]{PROMPT}", "PS2": ""}, dimensions=(40, WIDTH),
        )  # fmt: skip
        self._shell.delaybeforesend = None
        self._shell.logfile_read = self._seen
        self._prompted()

    def _prompted(self) -> int:
        self._shell.expect(rf"\[(\d+)\]{PROMPT}")
        return int(self._shell.match[1])

    def _since(self, position: int) -> str:
        return ESCAPES.sub("", self._seen.getvalue()[position:]).replace("\r", "")

    def run(self, command: str, typed: list[tuple[str, str]]) -> tuple[int, str]:
        """The exit code, and all that was printed and typed."""
        before = len(self._seen.getvalue())
        self._shell.sendline(command)
        for question, answer in typed:
            self._shell.expect_exact(question)
            self._shell.sendline(answer)
        code = self._prompted()
        return code, self._since(before).removeprefix(f"{command}\n").rpartition("[")[0]

    def begin(self, command: str) -> None:
        self._shell.sendline(command)
        self._shell.expect_exact("\r\n")  # the echo

    def sees(self, pattern: str) -> None:
        """Wait for lines that what runs prints."""
        self._shell.expect(pattern.replace("\n", "\r\n"))

    def interrupt(self) -> None:
        self._shell.sendintr()
        self._prompted()

    def close(self) -> None:
        self._shell.close(force=True)


class Newcomer:
    """Short form: the environment is there already. Long form: `wheels` is where pip finds Dovetail."""

    def __init__(self, home: Path, wheels: Path | None = None) -> None:
        self.home = home
        self._installs = wheels is not None
        here = Path(sysconfig.get_path("scripts"))
        self._bin = home / ".venv" / "bin" if wheels else here
        elsewhere = [each for each in os.get_exec_path() if Path(each).resolve() != here.resolve()]
        self.port = _free_port()
        self._env = {
            "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm", "NO_COLOR": "1", "VIRTUAL_ENV_DISABLE_PROMPT": "1",
            "DOVETAIL_PORT": str(self.port),
            **({} if wheels else {"PYTHONPATH": str(SOURCE)}),
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "COV"))},
            "PATH": os.pathsep.join([f"{sys.base_prefix}/bin" if wheels else str(here), *elsewhere]),
        }  # fmt: skip
        if wheels:
            self._env["PIP_FIND_LINKS"] = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
        self._terminals = [Terminal(home, self._env)]
        self._busy = False  # the first terminal: a command runs on

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.close()

    def follow(self, page: Path, until: str = "") -> None:
        """Do what the page says; `until` is the mark of the last block."""
        for block in blocks(page.read_text()):
            try:
                self._do(block)
            except (AssertionError, pexpect.ExceptionPexpect) as wrong:
                raise AssertionError(f"{page.name}: {block.mark}\n{block.body}\n{wrong}") from wrong
            if block.mark == until != "":
                return

    def _do(self, block: Block) -> None:
        kind, _, name = block.mark.rpartition(" ")
        if kind in ("write", "add to", "change", "part of"):
            path = self.home / name
            path.write_text(_edited(kind, path.read_text() if path.exists() else "", block.body))
        elif block.mark == "it prints":
            assert self._busy
            self._terminals[0].sees(self._pattern(block.body))
        elif block.language == "console" and not block.mark.startswith("not here: "):
            self._type(block)
        else:
            assert block.mark.startswith("not here: "), "what is to be done with this block?"

    def _type(self, block: Block) -> None:
        if block.mark == "in a new terminal":
            self._first().close()
            self._terminals[0] = Terminal(self.home, self._env)
        terminal = self._second() if block.mark == "in a second terminal" else self._first()
        pairs = [piece.partition("\n") for piece in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]]
        commands = [self._joined(command, shown) for command, _, shown in pairs]
        if block.mark == "until Ctrl-C":
            command, shown = commands.pop()
        for each, output in commands:
            if self._installs or not SETUP.match(each):
                self._run(terminal, each, output, _answers(block.mark, output))
        if block.mark == "until Ctrl-C":
            terminal.begin(self._here(command))
            self._busy = True
            terminal.sees(self._pattern(shown))

    @staticmethod
    def _joined(command: str, shown: str) -> tuple[str, str]:
        """A command with all of its lines, of which each but the last ends with a backslash."""
        while command.endswith("\\"):
            line, _, shown = shown.partition("\n")
            command += f"\n{line}"
        return command.partition("  #")[0].rstrip(), shown

    def _run(self, terminal: Terminal, command: str, shown: str, typed: list[tuple[str, str]]) -> None:
        code, printed = terminal.run(self._here(command), typed)
        is_error = re.search("^Error", shown, re.MULTILINE) is not None
        assert (code != 0) == is_error, f"$ {command}\n{printed}\nexit code {code}"
        assert not shown or re.fullmatch(self._pattern(shown.rstrip()), printed.rstrip()), f"$ {command}\n{printed}"

    def _here(self, text: str) -> str:
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")

    def _pattern(self, shown: str) -> str:
        """Of what is printed here where the page shows this."""
        escaped = re.escape(shown).replace("…", ".*").replace(re.escape("127.0.0.1:8000"), f"127.0.0.1:{self.port}")
        python = f"{re.escape(str(self._bin))}/python[\\\\d.]*"
        escaped = re.sub(r"/home/ada/\\\.venv/bin/python", python, escaped)
        escaped = escaped.replace("/home/ada", re.escape(str(self.home)))
        return re.sub(r"\d+\\\.\d+(\\ )?s\b", r"[\\d.]+\1s", escaped)

    def _first(self) -> Terminal:
        if self._busy:
            self._terminals[0].interrupt()
            self._busy = False
        return self._terminals[0]

    def _second(self) -> Terminal:
        if len(self._terminals) == 1:
            self._terminals.append(Terminal(self.home, self._env))
        return self._terminals[1]


def _edited(kind: str, text: str, block: str) -> str:
    if kind == "write":
        return block
    if kind == "part of":
        assert block in text, "the file has no such lines"
        return text
    if kind == "add to":
        assert text.count(GUARD) == 1
        return text.replace(GUARD, f"\n\n{block}{GUARD}")
    lines = block.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, "the file has other lines"
    return text.replace(before, after)


def _answers(mark: str, shown: str) -> list[tuple[str, str]]:
    """The last words before each answer, and the answer."""
    found, rest = [], shown
    for answer in mark.removeprefix("typed: ").split(", ") if mark.startswith("typed: ") else []:
        line = next((line for line in rest.splitlines() if line.endswith(f" {answer}")), None)
        if line is None:  # another command of the block asks it
            break
        found.append((line.removesuffix(answer), answer))
        rest = rest.partition(f"{line}\n")[2]
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def newcomer(folder: Path, wheels: Path | None = None) -> Iterator[Newcomer]:
    home = folder / "ada"
    home.mkdir()
    someone = Newcomer(home, wheels)
    try:
        yield someone
    finally:
        someone.close()


if sys.platform == "win32":
    raise ImportError("terminals of this kind are not on Windows")
