"""`dovetail pack`: makes a `server.json` for the MCP registry and an `.mcpb` bundle for hosts, from the server itself.

Formats: https://github.com/modelcontextprotocol/registry, docs/reference/server-json, and
https://github.com/modelcontextprotocol/mcpb, MANIFEST.md. The same project gives the same bytes everywhere.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dovetail.cli.files import replace_file
from dovetail.cli.output import FAILED, CommandExit, err, out, sanitize
from dovetail.cli.project import Project
from dovetail.cli.target import load_target, split_target
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from dovetail.server import Server

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
MANIFEST_VERSION = "0.4"  # the first one with servers that a host starts by uv
REGISTRY_FILE, MANIFEST, ICON = "server.json", "manifest.json", "icon.png"
MAX_TEXT = 100  # characters of a title or description in the registry
MAX_BUNDLE_BYTES = 256 * 1024 * 1024  # more is a mistake, such as data beside the program
ICON_TYPES = (None, "image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp")
REPOSITORY = re.compile(r"https://(?:www\.)?(github|gitlab)\.com/([\w-]+)/([\w.-]+?)(?:\.git)?/?")
RELEASE = re.compile(r"https://(github|gitlab)\.com/\S*mcp\S*")
PUBLIC_URL = re.compile(r"https://[\w.-]+\.[a-zA-Z]{2,}(:\d+)?(/[^\s{}]*)?")
NAME = re.compile(r"(?=.{3,200}$)[a-zA-Z0-9][a-zA-Z0-9.-]*[a-zA-Z0-9]/[a-zA-Z0-9][a-zA-Z0-9._-]*[a-zA-Z0-9]")
MARK = re.compile(r"mcp-name: *([\w./-]+?)(?=\s|$|-->|<)")  # in the README of a package, for the registry

EXAMPLES = """
\b
Examples:
  dovetail pack server.py --name io.github.you/example
  dovetail pack server.py --name io.github.you/example --check
  dovetail pack server.py --only server.json --name io.github.you/example --url https://example.com/mcp
  dovetail pack server.py --only mcpb --output build

\b
Exit codes:
  0  done; with --check: nothing would change
  1  with --check: something would change; or a file can't be read or written
  2  the command line, the server or the project has to change first: the message says how
"""


@click.command("pack", epilog=EXAMPLES)
@click.argument("target")
@click.option("--name", help="Its name in the registry.  [default: by `mcp-name:` in the README, or by the repository]")
@click.option("--url", "urls", multiple=True, metavar="URL", help="Where it is served over HTTP. Repeat for more.")
@click.option("--bundle-url", metavar="URL", help="Where the bundle will be: an asset of a release.")
@click.option("--only", type=click.Choice([REGISTRY_FILE, "mcpb"]), help="Make only one of the two.")
@click.option("--output", "-o", "folder", type=click.Path(path_type=Path), help="Write into this folder instead.")
@click.option("--check", is_flag=True, help="Write nothing; name what would change, and fail if anything would.")
def command(target: str, only: str | None, folder: Path | None, check: bool, **given: Any) -> None:
    """Make a server.json for the MCP registry and an .mcpb bundle from the program TARGET: file.py or file.py:name."""
    source = split_target(target)[0]
    if not source.endswith(".py"):
        raise click.UsageError("pack takes a program, as in server.py or server.py:name")
    try:
        server = load_target(target)
        project = Project.of(server.engine.info, Path(source).resolve())
        files: dict[str, bytes] = {}
        if only != REGISTRY_FILE or given["bundle_url"]:
            files |= {f"{project.name}.mcpb": _bundle(project, server, target.removeprefix(source))}
        if only != "mcpb":
            files[REGISTRY_FILE] = _json(_server_json(project, **given, bundle=b"".join(files.values())))
        folder, here = folder or project.folder, Path.cwd()
        folder = folder.relative_to(here) if folder.is_relative_to(here) else folder
        wanted = {folder / name: content for name, content in files.items() if only is None or name.endswith(only)}
        if check:
            _check(wanted)
            return
        for path, content in wanted.items():
            replace_file(path, content, path.read_bytes() if path.exists() else None)
            out(str(path))
    except SetupError as failure:
        raise CommandExit.from_failure(failure) from None
    except (OSError, UnicodeError) as failure:  # UnicodeError: of a file's name or text that is not UTF-8
        raise CommandExit(f"a file can't be read or written: {failure}") from None


def _check(wanted: Mapping[Path, bytes]) -> None:
    """Fail if a file is not what it would be; those, and such members of a bundle, are named."""
    existing = {path: path.read_bytes() if path.exists() else b"" for path in wanted}
    changes = [path for path, content in wanted.items() if existing[path] != content]
    for path in changes:
        members = sorted({name for name, _ in _members(existing[path]) ^ _members(wanted[path])})
        out(sanitize(f"{path} would change{': ' if members else ''}{', '.join(members)}"))
    if changes:
        raise click.exceptions.Exit(FAILED)


def _members(content: bytes) -> set[tuple[str, int]]:
    """The names and checksums of the files in a bundle; none of what is no bundle."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {(each.filename, each.CRC) for each in archive.infolist()}
    except zipfile.BadZipFile:
        return set()


# ── server.json ──


def _server_json(
    project: Project, name: str | None, urls: Sequence[str], bundle_url: str | None, bundle: bytes
) -> dict[str, Any]:
    name, info, website = _registry_name(project, name), project.info, project.website or ""
    for text in (project.description, info.title or ""):
        if len(text) > MAX_TEXT:
            raise SetupError(f"the registry takes {MAX_TEXT} characters: {text!r} has {len(text)}; say it shorter")
    for url in urls:
        if not PUBLIC_URL.fullmatch(url):
            raise SetupError(f"--url {url}: the registry takes public URLs, such as https://example.com/mcp")
    packages = _packages(project, name, bundle_url, bundle)
    if not packages and not urls:
        err(f"{REGISTRY_FILE} says nowhere how to get it: --url, --bundle-url or a package with a script", fg="yellow")
    found = REPOSITORY.fullmatch(project.link("repository") or "")
    return {"$schema": SCHEMA} | _given(
        name=name,
        title=info.title,
        description=project.description,
        version=project.version,
        websiteUrl=website if website.startswith("https://") else None,
        repository=found and {"url": f"https://{found[1]}.com/{found[2]}/{found[3]}", "source": found[1]},
        icons=[
            msgspec.to_builtins(icon)
            for icon in info.icons or ()
            if icon.src.startswith("https:") and icon.mime_type in ICON_TYPES
        ],
        packages=packages,
        remotes=[{"type": "streamable-http", "url": url} for url in urls],
    )


def _registry_name(project: Project, given: str | None) -> str:
    marked, repository = MARK.search(project.readme()), REPOSITORY.fullmatch(project.link("repository") or "")
    name = given or (marked and marked[1]) or ""
    if not name and repository and repository[1] == "github":
        name = f"io.github.{repository[2]}/{project.name}"
    if not NAME.fullmatch(name):
        raise SetupError(
            f"the registry takes names such as io.github.you/weather, not {name!r}: give --name, "
            "or the repository in [project.urls] of pyproject.toml"
        )
    return name


def _packages(project: Project, name: str, url: str | None, bundle: bytes) -> list[dict[str, Any]]:
    """What hosts can install. Raises SetupError for what the registry would not take, or not take for yours."""
    packages = []
    if project.file.build_system is not None and project.name in project.metadata.scripts:  # which uvx would start
        if name not in MARK.findall(project.readme()):
            raise SetupError(f"the README has to say whose package it is: add the line <!-- mcp-name: {name} -->")
        package = {"identifier": project.name, "version": project.version, "runtimeHint": "uvx"}
        packages.append({"registryType": "pypi", **package})
    if url:
        if not RELEASE.fullmatch(url):
            raise SetupError(f"--bundle-url {url}: the registry takes releases of GitHub or GitLab with mcp in the URL")
        sha256 = hashlib.sha256(bundle).hexdigest()
        packages.append({"registryType": "mcpb", "identifier": url, "fileSha256": sha256})
    variables = [
        _given(name=key, description=each.description, isRequired=each.default is None, isSecret=each.secret,
               default=each.default or None)
        for key, each in project.file.tool.dovetail.variables.items()
    ]  # fmt: skip
    started = _given(transport={"type": "stdio"}, environmentVariables=variables)
    return [package | started for package in packages]


# ── the bundle ──


def _bundle(project: Project, server: "Server", attribute: str) -> bytes:
    """The archive: stored and not compressed, because compressed bytes differ from machine to machine."""
    files = dict(project.files())
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if sum(sizes.values()) > MAX_BUNDLE_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise SetupError(f"the bundle would be too large: name in .mcpbignore what is no part of it, such as {largest}")
    manifest = _manifest(project, server, attribute, has_icon=ICON in files)
    members = {name: path.read_bytes() for name, path in files.items()} | {MANIFEST: _json(manifest)}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name)  # its date is the first one that an archive can hold
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # as on Unix, wherever it is made
            archive.writestr(entry, members[name])
    return content.getvalue()


def _manifest(project: Project, server: "Server", attribute: str, *, has_icon: bool) -> dict[str, Any]:
    engine, metadata, repository = server.engine, project.metadata, project.link("repository")
    variables = project.file.tool.dovetail.variables
    author = next((each["name"] for each in metadata.authors if each.get("name")), None)
    if author is None:
        raise SetupError('a bundle names its author; write authors = [{name = "…"}] in [project] of pyproject.toml')
    run = ["run", "--no-dev", "--directory", "${__dirname}", "dovetail", "run", project.program + attribute]
    env = {name: f"${{user_config.{name}}}" for name in variables}
    return _given(
        manifest_version=MANIFEST_VERSION,
        name=project.name,
        display_name=project.info.title,
        version=project.version,
        description=project.description,
        author={"name": author},
        repository=repository and {"type": "git", "url": repository},
        homepage=project.website,
        documentation=project.link("documentation"),
        support=project.link("support"),
        icon=ICON if has_icon else None,
        server={"type": "uv", "entry_point": project.program, "mcp_config": _given(command="uv", args=run, env=env)},
        tools=[_given(name=tool.name, description=tool.description) for tool in engine.tools.all()],
        tools_generated=bool(engine.before_list) or None,  # of mounts and proxies, which may change
        prompts_generated=bool(engine.prompts.all() or engine.before_list) or None,  # listed are only fixed texts
        keywords=metadata.keywords,
        license=(isinstance(metadata.license, str) and metadata.license) or None,
        compatibility={"platforms": ["darwin", "linux", "win32"], "runtimes": {"python": metadata.requires_python}},
        user_config={
            name: _given(type="string", title=name, description=each.description, required=each.default is None,
                         sensitive=each.secret, default=each.default)
            for name, each in variables.items()
        },
    )  # fmt: skip


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value; False and "" are values."""
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
