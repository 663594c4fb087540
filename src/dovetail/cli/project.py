"""What `dovetail pack` knows of a program: its server, its pyproject.toml, its files, the variables that it reads."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dovetail.cli.migrate import name_chain
from dovetail.errors import SetupError
from dovetail.protocol.types import Implementation

if TYPE_CHECKING:
    from dovetail.server import Server

UNVERSIONED = "0.0.0"  # the version of a server whose author gave none
VERSION = re.compile(r"v?\d+(\.\d+)*([-+.!]?(?![xX]\b)[a-zA-Z0-9]+)*")  # one, and no range such as 1.x
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
LINKS = {  # labels in [project.urls], in small letters
    "repository": ("repository", "source", "source code", "github", "code"),
    "homepage": ("homepage", "home"),
    "documentation": ("documentation", "docs"),
    "support": ("issues", "issue tracker", "bug tracker", "support"),
}
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist", "tests"}  # and hidden ones
SKIPPED_FILES = ("server.json", "manifest.json", "*.mcpb", "*.py[cod]", "*.log")
SECRET_WORDS = {"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "DSN"}
SYSTEM_VARIABLES = {"HOME", "PATH", "USER", "LANG", "TMPDIR", "TEMP", "PWD", "SHELL", "CI", "TZ", "VIRTUAL_ENV"}
MAPPINGS = (["os", "environ"], ["environ"])
FUNCTIONS = (["os", "environ", "get"], ["environ", "get"], ["os", "getenv"], ["getenv"])


class Metadata(msgspec.Struct, rename="kebab"):
    """The [project] of a pyproject.toml."""

    name: str = ""
    version: str = ""
    description: str = ""
    readme: str | dict[str, Any] = "README.md"
    requires_python: str = ">=3.11"
    license: str | dict[str, Any] = ""
    authors: list[dict[str, str]] = []
    keywords: list[str] = []
    urls: dict[str, str] = {}
    scripts: dict[str, str] = {}


class PyProject(msgspec.Struct, rename="kebab"):
    project: Metadata = msgspec.field(default_factory=Metadata)
    build_system: dict[str, Any] | None = None
    tool: dict[str, dict[str, Any]] = {}

    @property
    def is_package(self) -> bool:
        """Whether it can be published as a package: to uv, unless it says otherwise, what says how it is built."""
        return bool(self.tool.get("uv", {}).get("package", self.build_system is not None))


class Project(NamedTuple):
    """A program's folder: the one with its pyproject.toml, or else the one that it lies in."""

    folder: Path
    program: str  # its path in the folder
    metadata: Metadata
    is_package: bool = False
    has_file: bool = False  # a pyproject.toml

    @classmethod
    def of(cls, program: Path) -> "Project":
        """The nearest one, up to the root of the repository. Raises SetupError if its pyproject.toml can't be read."""
        for folder in program.parents:
            file = folder / "pyproject.toml"
            if file.is_file():
                try:
                    found = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), PyProject)
                except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as bad:
                    raise SetupError(f"{file} can't be read: {bad}") from None
                path = program.relative_to(folder).as_posix()
                return cls(folder, path, found.project, found.is_package, has_file=True)
            if (folder / ".git").exists():
                break
        return cls(program.parent, program.name, Metadata())

    @property
    def name(self) -> str:
        """The normalized name. Raises SetupError if there is none."""
        if not NAME.fullmatch(self.metadata.name):
            raise SetupError(
                "a bundle needs a pyproject.toml with [project] name and dependencies, by which a host installs it; "
                "`dovetail new` makes one"
            )
        return re.sub(r"[-_.]+", "-", self.metadata.name).lower()

    def link(self, name: str) -> str | None:
        """A link of [project.urls]."""
        labelled = {label.lower(): url for label, url in self.metadata.urls.items()}
        found = (labelled.get(label, "") for label in LINKS[name])
        return next((url for url in found if re.match(r"https?://\S+$", url)), None)

    def readme(self) -> str:
        given = self.metadata.readme
        path = self.folder / (given if isinstance(given, str) else given.get("file", "README.md"))
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def files(self) -> dict[str, Path]:
        """What a bundle holds, by its path; without a pyproject.toml the program alone, as it may lie anywhere."""
        if not self.has_file:
            return {self.program: self.folder / self.program}
        ignore = self.folder / ".mcpbignore"
        lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
        patterns = [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]
        return dict(sorted(self._walk(self.folder, patterns)))

    def _walk(self, folder: Path, patterns: list[str]) -> Iterator[tuple[str, Path]]:
        for path in folder.iterdir():
            name = path.relative_to(self.folder).as_posix()
            if path.name.startswith(".") or path.is_symlink() or _matches(name, patterns):
                continue
            if path.is_dir():
                if path.name not in SKIPPED_FOLDERS and not (path / "pyvenv.cfg").exists():
                    yield from self._walk(path, patterns)
            elif path.is_file() and not _matches(name, SKIPPED_FILES):
                yield name, path


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(each, pattern) for pattern in patterns for each in (path, path.rpartition("/")[2]))


class Variable(NamedTuple):
    """A variable of the environment that the program reads."""

    name: str
    default: str | None  # None: it needs one
    is_secret: bool

    def __str__(self) -> str:
        return f"The environment variable {self.name}" + (f", {self.default} by default" if self.default else "")


def find_variables(files: Mapping[str, Path]) -> list[Variable]:
    """Those that programs read by `os.environ` and `os.getenv` with a literal name, but for the system's and ours."""
    found: dict[str, str | None] = {}
    for path in (path for name, path in files.items() if name.endswith(".py")):
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError, RecursionError):  # it is none of the files that the server loads
            continue
        for name, default in filter(None, map(_read_variable, nodes)):
            if name.isidentifier() and name not in SYSTEM_VARIABLES and not name.startswith("DOVETAIL_"):
                known = found.get(name)
                found[name] = default if known is None else known or default or ""
    return [_variable(name, default) for name, default in sorted(found.items())]


def _variable(name: str, default: str | None) -> Variable:
    is_secret = not SECRET_WORDS.isdisjoint(name.upper().split("_"))
    return Variable(name, "" if default and is_secret else default, is_secret)  # a secret is not published


def _read_variable(node: ast.AST) -> tuple[str, str | None] | None:
    """The name of the variable that an expression reads, and what it takes in its place."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and name_chain(node.value) in MAPPINGS:
        name, default = node.slice, None
    elif isinstance(node, ast.Call) and node.args and name_chain(node.func) in FUNCTIONS:
        name, default = node.args[0], (*node.args, ast.Constant(""))[1]
    else:
        return None
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    if default is None:
        return name.value, None
    return name.value, default.value if isinstance(default, ast.Constant) and isinstance(default.value, str) else ""


class Facts(NamedTuple):
    """What a bundle and the registry are told alike."""

    server: "Server"
    project: Project
    version: str
    description: str
    variables: list[Variable]

    @classmethod
    def of(cls, server: "Server", project: Project) -> "Facts":
        """Raises SetupError if there is no version or description, or one that is not taken."""
        own, theirs = server.engine.info, project.metadata
        versions = [each for each in (own.version, theirs.version) if each not in ("", UNVERSIONED)]
        if not versions:
            raise SetupError('it has no version; write Server(…, version="1.0.0"), or version = … in pyproject.toml')
        if versions[0] != versions[-1]:
            raise SetupError(f"the server says version {versions[0]}, pyproject.toml {versions[1]}; let them agree")
        if not VERSION.fullmatch(versions[0]):
            raise SetupError(f"version {versions[0]!r}: it must be one, such as 1.0.0, and no range")
        description = " ".join((own.description or theirs.description).split())
        if not description:
            raise SetupError("it has no description; write Server(…, description=…), or description in pyproject.toml")
        return cls(server, project, versions[0], description, find_variables(project.files()))

    @property
    def info(self) -> Implementation:
        return self.server.engine.info

    @property
    def website(self) -> str | None:
        return self.info.website_url or self.project.link("homepage")
