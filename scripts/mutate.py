"""Mutation sampling: random single changes of the source, each run against the fast tests that should notice it.

    .venv/bin/python scripts/mutate.py --folder engine --seed 7 --part 1/4
    .venv/bin/python scripts/mutate.py ../older-checkout --seed 7

The tests see a temporary copy of `src`; the checkout itself is only read.
"""

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("protocol", "engine", "schema", "registry", "transports", "state", "auth")
# What schema/ does is stated by the tools and prompts of registry/ too, of which it was a part in older checkouts.
TESTED_WITH = {"schema": "registry", "registry": "schema"}
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)  # without parameters, which may hold anything
UNTOUCHED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern)


class Mutant(NamedTuple):
    folder: str
    file: str  # below src
    line: int
    start: int  # bytes of the file
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:80] for text in (self.old, self.new))
        return f"src/{self.file}:{self.line}: {old} -> {new}"


def mutants_of(src: Path, folder: str) -> list[Mutant]:
    """All the single changes that can be made in a folder, in the order of its files."""
    found = []
    for path in sorted((src / "dovetail" / folder).rglob("*.py")):
        source = path.read_bytes()
        lines = [0]
        for line in source.splitlines(keepends=True):
            lines.append(lines[-1] + len(line))
        for node, new in _changes(ast.parse(source)):
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            old = source[start:end].decode()
            found.append(Mutant(folder, str(path.relative_to(src)), node.lineno, start, end, old, new))
    return found


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What to put in the place of which part of a tree; annotations, docstrings, imports and patterns stay."""
    if isinstance(node, ast.expr):
        yield from ((node, f"({ast.unparse(new)})") for new in _of_expression(node))
    elif isinstance(node, ast.stmt):
        yield from ((node, new) for new in _of_statement(node))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield node.test, f"(not {ast.unparse(node.test)})"
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_prose = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not isinstance(child, UNTOUCHED) and not is_prose:
                yield from _changes(child)


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [operator], comparators):
            yield ast.Compare(left, [FLIPPED[type(operator)]()], comparators)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(str(value)) if value and len(value) < 30 and " " not in value:  # a word, not a sentence
            yield ast.Constant(value + "x")


def _of_statement(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield "return None"
        case ast.Raise() | ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            yield "pass"
        case ast.Assign(targets) if not any(isinstance(target, ast.Name) for target in targets):
            yield "pass"


class Bench:
    """A checkout, and the copy of its source that is changed."""

    def __init__(self, checkout: Path, copy: Path, python: str, seconds: float) -> None:
        self.src = copy / "src"
        shutil.copytree(checkout / "src", self.src, ignore=shutil.ignore_patterns("__pycache__"))
        self._checkout = checkout
        self._command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", "--timeout", "60"]
        settings = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
        folders = " ".join(folder for folder in settings["pythonpath"] if folder != "src")
        self._command += ["-m", "not slow and not soak", "-o", f"pythonpath={self.src} {folders}"]
        self._environment = {**os.environ, "PYTHONPATH": str(self.src), "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "h")}
        self._tests = {path: path.read_text() for path in sorted((checkout / "tests").rglob("test_*.py"))}
        self._seconds = seconds
        self._deselected: list[str] = []

    def kills(self, mutant: Mutant) -> bool:
        path = self.src / mutant.file
        source = path.read_bytes()
        while True:
            try:
                self._write(path, source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
                code, failed = self._run([*self._deselected, "-x", *self._files(mutant)])
            finally:
                self._write(path, source)
            if code and not failed and self._run(["--collect-only", *self._files(mutant)])[0] != 0:
                raise SystemExit(f"the tests of {mutant.file} can't be run, without any change either (exit {code})")
            if not failed or not self._run(failed)[1]:
                print("SURVIVED" if code == 0 else "killed", mutant, failed or f"exit {code}", flush=True)
                return code != 0
            self._deselected += [f"--deselect={each}" for each in failed]  # it fails without any change as well

    def _write(self, path: Path, source: bytes) -> None:
        path.write_bytes(source)
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):  # two versions may have one size and one time
            cached.unlink()

    def _files(self, mutant: Mutant) -> list[str]:
        """The test files that name the module first, then the rest of its folder."""
        package, _, name = mutant.file.removesuffix(".py").replace("/", ".").rpartition(".")
        named = re.compile(rf"\b{package}\.{name}\b|from {package} import .*\b{name}\b")
        first = [path for path, text in self._tests.items() if named.search(text)]
        folders = [mutant.folder, TESTED_WITH.get(mutant.folder, mutant.folder)]
        own = [path for folder in folders for path in self._tests if path.parent == self._checkout / "tests" / folder]
        return [str(path) for path in dict.fromkeys([*first, *own])]

    def _run(self, arguments: list[str]) -> tuple[int | None, list[str]]:
        """The exit code, None after a timeout, and which tests failed."""
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [*self._command, *arguments], cwd=self._checkout, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            code: int | None = None
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(self._seconds)
            finally:
                if code is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return code, FAILED.findall(output.read())


def main() -> None:
    parser = argparse.ArgumentParser(description="How many random single mutations of the source the tests notice.")
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--count", type=int, default=240, help="mutants in all, shared evenly by the folders")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--folder", action="append", choices=FOLDERS, help="only this one; may be repeated")
    parser.add_argument("--part", default="1/1", help="2/4: the second quarter of the sample")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for the tests of one mutant")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the tests")
    given = parser.parse_args()
    folders, (part, parts) = given.folder or FOLDERS, map(int, given.part.split("/"))
    summary, survivors = [], []
    with tempfile.TemporaryDirectory() as copy:
        bench = Bench(given.checkout.resolve(), Path(copy), given.python, given.timeout)
        for folder in folders:
            chosen = mutants_of(bench.src, folder)
            random.Random(f"{given.seed}/{folder}").shuffle(chosen)
            chosen = chosen[: given.count // len(folders)][part - 1 :: parts]
            alive = [str(mutant) for mutant in chosen if not bench.kills(mutant)]
            summary.append(f"{folder:12}{len(chosen) - len(alive):4} killed {len(alive):4} survived")
            survivors += alive
    print("\n".join([*summary, *survivors]))


if __name__ == "__main__":
    main()
