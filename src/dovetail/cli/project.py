"""What `dovetail pack` knows of a program: its pyproject.toml, its files, and what its server says of itself."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.cli.files import list_files
from dovetail.errors import SetupError
from dovetail.protocol.types import Implementation

UNVERSIONED = "0.0.0"  # the version of a server whose author gave none
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
LINKS = {  # labels in [project.urls], in small letters
    "repository": ("repository", "source", "source code", "github", "code"),
    "homepage": ("homepage", "home"),
    "documentation": ("documentation", "docs"),
    "support": ("issues", "issue tracker", "bug tracker", "support"),
}
LEFT_OUT = (
    "build", "dist", "tests", "server.json", "manifest.json", "*.mcpb", "*.py[cod]", "*.log", "*.env", "*.key", "*.pem",
)  # fmt: skip


class Variable(msgspec.Struct, forbid_unknown_fields=True):
    """A variable of the environment that the program reads; without a default its user has to give it."""

    description: str
    default: str | None = None
    secret: bool = False

    def __post_init__(self) -> None:
        if self.secret and self.default:
            raise ValueError("the default of a secret would be published")


class Metadata(msgspec.Struct, rename="kebab", frozen=True):
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


class Settings(msgspec.Struct, frozen=True):
    """The [tool.dovetail] of a pyproject.toml."""

    variables: dict[str, Variable] = {}

    def __post_init__(self) -> None:
        for name in self.variables:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} is no name of a variable of the environment")


class Tools(msgspec.Struct, frozen=True):
    dovetail: Settings = Settings()


class PyProject(msgspec.Struct, rename="kebab", frozen=True):
    project: Metadata = Metadata()
    build_system: dict[str, Any] | None = None
    tool: Tools = Tools()


class Project(NamedTuple):
    """A program's folder: the one with its pyproject.toml, or else the one that it lies in."""

    info: Implementation  # what the server says of itself
    folder: Path
    program: str  # its path in the folder
    file: PyProject = PyProject()

    @classmethod
    def of(cls, info: Implementation, program: Path) -> "Project":
        """The nearest one, up to the root of the repository. Raises SetupError if its pyproject.toml can't be read."""
        for folder in program.parents:
            path = folder / "pyproject.toml"
            if path.is_file():
                try:
                    file = msgspec.toml.decode(path.read_bytes(), type=PyProject)
                except (msgspec.DecodeError, UnicodeDecodeError) as bad:
                    raise SetupError(f"{path} can't be read: {bad}") from None
                return cls(info, folder, program.relative_to(folder).as_posix(), file)
            if (folder / ".git").exists():
                break
        return cls(info, program.parent, program.name)

    @property
    def metadata(self) -> Metadata:
        return self.file.project

    @property
    def name(self) -> str:
        """The normalized name. Raises SetupError if there is none."""
        if not NAME.fullmatch(self.metadata.name):
            raise SetupError("a bundle needs a pyproject.toml with [project] name, as `dovetail new` makes one")
        return re.sub(r"[-_.]+", "-", self.metadata.name).lower()

    @property
    def version(self) -> str:
        """Raises SetupError if there is none, or another one in the server than in pyproject.toml."""
        found = [each for each in (self.info.version, self.metadata.version) if each not in ("", UNVERSIONED)]
        if not found:
            raise SetupError('it has no version; write Server(…, version="1.0.0"), or version = … in pyproject.toml')
        if found[0] != found[-1]:
            raise SetupError(f"the server says version {found[0]}, pyproject.toml {found[1]}; let them agree")
        return found[0]

    @property
    def description(self) -> str:
        """Raises SetupError if there is none."""
        found = " ".join((self.info.description or self.metadata.description).split())
        if not found:
            raise SetupError("it has no description; write Server(…, description=…), or description in pyproject.toml")
        return found

    def link(self, name: str) -> str | None:
        """A link of [project.urls]."""
        labelled = {label.lower(): url for label, url in self.metadata.urls.items()}
        found = (labelled.get(label, "") for label in LINKS[name])
        return next((url for url in found if re.fullmatch(r"https?://\S+", url)), None)

    @property
    def website(self) -> str | None:
        return self.info.website_url or self.link("homepage")

    def readme(self) -> str:
        given = self.metadata.readme
        path = self.folder / (given if isinstance(given, str) else given.get("file", "README.md"))
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def files(self) -> Iterator[tuple[str, Path]]:
        """What a bundle holds: each file with its path in the folder."""
        ignore = self.folder / ".mcpbignore"
        lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
        patterns = [*LEFT_OUT, *(line.partition("#")[0].strip(" /") for line in lines)]
        for path in list_files(self.folder):
            inside = path.relative_to(self.folder)
            words = {*inside.parts, *(each.as_posix() for each in (inside, *inside.parents))}
            if not any(fnmatchcase(word, pattern) for word in words for pattern in patterns):
                yield inside.as_posix(), path
