"""A newcomer who follows pages to the letter, in a terminal, a home folder and an environment of their own.

A comment above a block says what it is, also several things, with a semicolon between. Files are named from the home
folder on:

    <!-- write notes/server.py -->           the block is the whole file
    <!-- add to notes/server.py -->          it goes above the last two lines of the file
    <!-- change notes/server.py -->          a `diff`
    <!-- part of notes/server.py -->         the file has these lines already
    <!-- until Ctrl-C -->                    commands, of which the last one runs on
    <!-- it prints -->                       what that one prints after a change
    <!-- in a new terminal -->               commands, from the folder on where all of it began
    <!-- in a second terminal -->            commands, beside the one that runs; also in a third
    <!-- typed: y, yes -->                   commands that ask, and what is answered
    <!-- not here: docker -->                commands that need what no test has

All other `console` blocks are commands. What a page shows of their output has to be so, but for `…`, which stands for
anything within a line, and for seconds. A command fails only where an error is shown.
"""

import io
import os
import re
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pexpect

from missing import demand

PROMPT = "newcomer> "
WIDTH = 100  # of the terminal; output is cut there
PROMPTLY = 60.0  # seconds for a command; much more than any takes, but for pip
SETUP = re.compile(r"(python3 -m venv|\. \S+/activate|pip install) ?")
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
PORT = re.compile(r"(127\.0\.0\.1:|--port )(8000|9000)\b")
FIRST, NEW = "in the first terminal", "in a new terminal"
TERMINALS = (FIRST, NEW, "in a second terminal", "in a third terminal")
GUARD = '\n\nif __name__ == "__main__":\n'
ROOT = Path(__file__).parent.parent
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
        self._position = 0  # up to which it was read
        self.is_busy = False  # a command runs on
        self._prompted()

    def _prompted(self) -> int:
        self._shell.expect(rf"\[(\d+)\]{PROMPT}")
        return int(self._shell.match[1])

    @property
    def _unread(self) -> str:
        return ESCAPES.sub("", self._seen.getvalue()[self._position :]).replace("\r", "")

    def _read(self) -> str:
        text, self._position = self._unread, len(self._seen.getvalue())
        return text

    def run(self, command: str, typed: list[tuple[str, str]]) -> tuple[int, str]:
        """The exit code, and all that was printed and typed; questions are patterns."""
        self._read()
        self._shell.sendline(command)
        for question, answer in typed:
            self._shell.expect(question)
            self._shell.sendline(answer)
        code = self._prompted()
        return code, self._read().removeprefix(f"{command}\n").rpartition("[")[0]

    def begin(self, command: str) -> None:
        self._read()
        self._shell.sendline(command)
        self.is_busy = True

    def sees(self, pattern: str) -> None:
        """Wait for lines that what runs prints."""
        assert self.is_busy
        while not re.search(pattern, self._unread):
            self._shell.expect(".+")
        self._read()

    def interrupt(self) -> None:
        self._shell.sendintr()
        self._prompted()
        self.is_busy = False

    def close(self) -> None:
        self._shell.close(force=True)


class Newcomer:
    """Short form: the environment is there already. Long form: `wheels` is where pip finds Dovetail."""

    def __init__(self, home: Path, folder: str = "", wheels: Path | None = None, **env: str) -> None:
        """All begins in a folder of the home."""
        self.home, self.folder = home, home / folder
        self._installs = wheels is not None
        here = Path(sysconfig.get_path("scripts"))
        self._bin = home / ".venv" / "bin" if wheels else here
        elsewhere = [each for each in os.get_exec_path() if Path(each).resolve() != here.resolve()]
        self.ports = {"8000": str(_free_port()), "9000": str(_free_port())}  # here, for those of the page
        self.env = {
            "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm", "NO_COLOR": "1", "VIRTUAL_ENV_DISABLE_PROMPT": "1",
            "DOVETAIL_PORT": self.ports["8000"],
            **({} if wheels else {"PYTHONPATH": str(ROOT / "src")}),
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "COV"))},
            "PATH": os.pathsep.join([f"{sys.base_prefix}/bin" if wheels else str(here), *elsewhere]),
        }  # fmt: skip
        if wheels:
            self.env["PIP_FIND_LINKS"] = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
        self.env |= {name: self._here(value) for name, value in env.items()}  # of terminals that are opened from now on
        self._terminals: dict[str, Terminal] = {}

    def close(self) -> None:
        for terminal in self._terminals.values():
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
            self._terminals[FIRST].sees(self._pattern(block.body))
        elif block.language == "console" and not block.mark.startswith("not here: "):
            self._type(block)
        else:
            assert block.mark.startswith("not here: "), "what is to be done with this block?"

    def _type(self, block: Block) -> None:
        marks = block.mark.split("; ") if block.mark else []
        typed = [answer for mark in marks if mark.startswith("typed: ") for answer in mark[7:].split(", ")]
        assert set(marks) <= {"until Ctrl-C", *TERMINALS} or typed, "what is to be done with this block?"
        terminal = self._terminal(next((mark for mark in marks if mark in TERMINALS), FIRST))
        pairs = [piece.partition("\n") for piece in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]]
        commands = [self._joined(command, shown) for command, _, shown in pairs]
        lasting = [commands.pop()] if "until Ctrl-C" in marks else []
        for command, shown in commands:
            if self._installs or not SETUP.match(command):
                questions = _questions(typed, shown)
                typed = typed[len(questions) :]
                self._run(terminal, command, shown, questions)
        assert not typed, f"not asked for: {typed}"
        for command, shown in lasting:
            terminal.begin(self._here(command))
            terminal.sees(self._pattern(shown))

    def _terminal(self, which: str) -> Terminal:
        """One that waits for a command."""
        if which == NEW:
            which = FIRST
            if which in self._terminals:
                self._terminals.pop(which).close()
        if which not in self._terminals:
            self._terminals[which] = Terminal(self.folder, self.env)
        elif self._terminals[which].is_busy:
            self._terminals[which].interrupt()
        return self._terminals[which]

    @staticmethod
    def _joined(command: str, shown: str) -> tuple[str, str]:
        """A command with all of its lines, of which each but the last ends with a backslash."""
        while command.endswith("\\"):
            line, _, shown = shown.partition("\n")
            command += f"\n{line}"
        return command.partition("  #")[0].rstrip(), shown

    def _run(self, terminal: Terminal, command: str, shown: str, typed: list[tuple[str, str]]) -> None:
        code, printed = terminal.run(self._here(command), [(self._pattern(each), answer) for each, answer in typed])
        is_error = re.search("^Error", shown, re.MULTILINE) is not None
        assert (code != 0) == is_error, f"$ {command}\n{printed}\nexit code {code}"
        assert not shown or re.fullmatch(self._pattern(shown.rstrip()), printed.rstrip()), f"$ {command}\n{printed}"

    def _here(self, text: str) -> str:
        return PORT.sub(lambda found: found[1] + self.ports[found[2]], text)

    def _pattern(self, shown: str) -> str:
        """Of what is printed here where the page shows this."""
        escaped = re.escape(self._here(shown)).replace("…", ".*")
        folder = re.escape(str(self.home / ".venv")) if self._installs else r"\\S+"
        python = rf"{folder}/bin/python[\\d.]*"
        escaped = re.sub(r"/home/ada/\\\.venv/bin/python", python, escaped)
        escaped = escaped.replace("/home/ada", re.escape(str(self.home)))
        return re.sub(r"\d+\\\.\d+(\\ )?s\b", r"[\\d.]+\1s", escaped)


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


def _questions(typed: list[str], shown: str) -> list[tuple[str, str]]:
    """Those that this command asks: the last words before each answer, and the answer."""
    found = []
    for answer in typed:
        line = next((line for line in shown.splitlines() if line.endswith(f" {answer}")), None)
        if line is None:  # another command of the block asks it
            break
        found.append((line.removesuffix(answer), answer))
        shown = shown.partition(f"{line}\n")[2]
    return found


def built_wheel(folder: Path) -> Path:
    """A folder with the wheel, where pip finds it; what it depends on comes from a registry, or the test is skipped."""
    wheels = folder / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    demand(None if done.returncode == 0 else f"NO WHEEL: hatchling is missing, or failed: {done.stderr[-300:]}")
    probe = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), "msgspec"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=100, check=False)
    demand(None if done.returncode == 0 else f"NO PACKAGE REGISTRY: {done.stderr[-300:]}")
    return wheels


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def newcomer(folder: Path, begin: str = "", wheels: Path | None = None, **env: str) -> Iterator[Newcomer]:
    """Someone whose home is in that folder."""
    home = folder / "ada"
    home.mkdir(exist_ok=True)
    someone = Newcomer(home, begin, wheels, **env)
    try:
        yield someone
    finally:
        someone.close()


if sys.platform == "win32":
    raise ImportError("terminals of this kind are not on Windows")
