"""`dovetail pack`: makes a `server.json` for the MCP registry and an `.mcpb` bundle for hosts, from the server itself.

Formats: https://github.com/modelcontextprotocol/registry, docs/reference/server-json, and
https://github.com/modelcontextprotocol/mcpb, MANIFEST.md. The same project gives the same bytes everywhere.
"""

import base64
import binascii
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.files import differing_lines, replace_file
from dovetail.cli.output import FAILED, CommandExit, err, out, sanitize, styled
from dovetail.cli.project import Facts, Project
from dovetail.cli.target import load_target, split_target, target_problem
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from dovetail.registry.prompts import Prompt

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
MANIFEST_VERSION = "0.4"  # the first one with servers that a host starts by uv
REGISTRY_FILE, MANIFEST, ICON = "server.json", "manifest.json", "icon.png"
MAX_NAME, MAX_TEXT, MAX_ICON_URL = 200, 100, 255  # characters, in the registry
MAX_BUNDLE_BYTES = 256 * 1024 * 1024  # more is a mistake, such as data beside the program
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # of all files in a bundle: the first one that an archive can hold
PLATFORMS = ["darwin", "linux", "win32"]
PNG = b"\x89PNG\r\n\x1a\n"
ICON_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp")
SIZE = re.compile(r"\d+x\d+|any")
REPOSITORY = re.compile(r"https://(?:www\.)?(github|gitlab)\.com/([\w-]+)/([\w.-]+?)(?:\.git)?/?")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]*[a-zA-Z0-9]/[a-zA-Z0-9][a-zA-Z0-9._-]*[a-zA-Z0-9]")
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
@click.option(
    "--output", "-o", "folder", type=click.Path(path_type=Path), help="Where to write, if not in the project."
)
@click.option("--check", is_flag=True, help="Write nothing; show what would change, and fail if anything would.")
def command(target: str, only: str | None, folder: Path | None, check: bool, **given: Any) -> None:
    """Make a server.json for the MCP registry and an .mcpb bundle from the program TARGET: file.py or file.py:name."""
    source = split_target(target)[0]
    if problem := target_problem(target):
        raise click.UsageError(problem)
    if not source.endswith(".py"):
        raise click.UsageError("pack takes a program, as in server.py or server.py:name")
    files: dict[str, bytes] = {}
    try:
        facts = Facts.of(load_target(target), Project.of(Path(source).resolve()))
        if only != REGISTRY_FILE or given["bundle_url"]:
            files |= {f"{facts.project.name}.mcpb": _bundle(facts, target.removeprefix(source))}
        if only != "mcpb":
            sha256 = "".join(hashlib.sha256(bundle).hexdigest() for bundle in files.values())
            files[REGISTRY_FILE] = _json(_server_json(facts, **given, sha256=sha256))
    except SetupError as failure:
        raise CommandExit.from_failure(failure) from None
    except OSError as failure:
        raise CommandExit(f"{failure.filename} can't be read: {failure.strerror}") from None
    except UnicodeEncodeError as failure:  # of a surrogate, which stands for a byte that is not UTF-8
        raise CommandExit(f"the name of a file is no text in UTF-8: {failure.object!a}") from None
    folder, here = folder or facts.project.folder, Path.cwd()
    folder = folder.relative_to(here) if folder.is_relative_to(here) else folder
    wanted = {folder / name: content for name, content in files.items() if only is None or name.endswith(only)}
    if not check:
        for path, content in wanted.items():
            _write(path, content)
    elif sum(_differs(path, content, may_miss=only is None) for path, content in wanted.items()):
        raise click.exceptions.Exit(FAILED)


# ── server.json ──


def _server_json(
    facts: Facts, name: str | None, urls: Sequence[str], bundle_url: str | None, sha256: str
) -> dict[str, Any]:
    name, info, website = _registry_name(facts.project, name), facts.info, facts.website or ""
    for text in (facts.description, info.title or ""):
        if len(text) > MAX_TEXT:
            raise SetupError(f"the registry takes {MAX_TEXT} characters: {text!r} has {len(text)}; say it shorter")
    found = REPOSITORY.fullmatch(facts.project.link("repository") or "")
    variables = [
        _given(name=each.name, description=str(each), isRequired=each.default is None, isSecret=each.is_secret,
               default=each.default or None)
        for each in facts.variables
    ]  # fmt: skip
    packages = [
        {**package, **_given(transport={"type": "stdio"}, environmentVariables=variables)}
        for package in (_python_package(facts, name), bundle_url and _bundle_package(bundle_url, sha256))
        if package
    ]
    if not packages and not urls:
        err(f"{REGISTRY_FILE} says nowhere how to get it: --url, --bundle-url or a package with a script", fg="yellow")
    icons = [icon for icon in info.icons or () if icon.src.startswith("https:") and len(icon.src) <= MAX_ICON_URL]
    return {"$schema": SCHEMA} | _given(
        name=name,
        title=info.title,
        description=facts.description,
        version=facts.version,
        websiteUrl=website if website.startswith("https://") else None,
        repository=found and {"url": f"https://{found[1]}.com/{found[2]}/{found[3]}", "source": found[1]},
        icons=[
            _given(src=icon.src, mimeType=icon.mime_type if icon.mime_type in ICON_TYPES else None, theme=icon.theme,
                   sizes=[size for size in icon.sizes or () if SIZE.fullmatch(size)])
            for icon in icons
        ],
        packages=packages,
        remotes=[{"type": "streamable-http", "url": _public(url)} for url in urls],
    )  # fmt: skip


def _registry_name(project: Project, given: str | None) -> str:
    marked, repository = MARK.search(project.readme()), REPOSITORY.fullmatch(project.link("repository") or "")
    name = given or (marked and marked[1])
    if not name and repository and repository[1] == "github":
        name = f"io.github.{repository[2]}/{project.name}"
    if not name:
        raise SetupError("it has no name for the registry: give --name io.github.you/weather, or its repository in "
                         "[project.urls] of pyproject.toml")  # fmt: skip
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise SetupError(f"the registry refuses the name {name!r}; write one such as io.github.you/weather")
    return name


def _python_package(facts: Facts, name: str) -> dict[str, Any] | None:
    """The package that `uvx` starts by its name. Raises SetupError if the registry would not take it for yours."""
    project = facts.project
    if not project.is_package:
        return None
    if project.name not in project.metadata.scripts:
        err(
            f"no package in {REGISTRY_FILE}: [project.scripts] has no {project.name}, which uvx would start",
            fg="yellow",
        )
        return None
    if name not in MARK.findall(project.readme()):
        raise SetupError(f"the README has to say whose package it is: add the line <!-- mcp-name: {name} -->")
    return {"registryType": "pypi", "identifier": project.name, "version": facts.version, "runtimeHint": "uvx"}


def _bundle_package(url: str, sha256: str) -> dict[str, Any]:
    if not re.match(r"https://(github|gitlab)\.com/\S+$", url) or "mcp" not in url:
        raise SetupError(
            f"--bundle-url {url}: the registry takes releases at github.com and gitlab.com, and mcp in the URL"
        )
    return {"registryType": "mcpb", "identifier": url, "fileSha256": sha256}


def _public(url: str) -> str:
    host = re.fullmatch(r"https://([^\s{}/:@]+)(:\d+)?(/[^\s{}]*)?", url)
    if not host or "." not in host[1] or host[1].startswith("127."):
        raise SetupError(f"--url {url}: the registry takes public URLs, such as https://example.com/mcp")
    return url


# ── the bundle ──


def _bundle(facts: Facts, attribute: str) -> bytes:
    """The archive: stored and not compressed, because compressed bytes differ from machine to machine."""
    files = {name: path.read_bytes() for name, path in facts.project.files().items()}
    icon = next((found for each in facts.info.icons or () if (found := _embedded_png(each.src))), None)
    files |= {} if icon is None or ICON in files else {ICON: icon}
    files[MANIFEST] = _json(_manifest(facts, attribute, has_icon=ICON in files))
    if (size := sum(map(len, files.values()))) > MAX_BUNDLE_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise SetupError(
            f"the bundle would have {size >> 20} MiB, most of it {largest}; name in .mcpbignore what is no part"
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, TIMESTAMP)
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # as on Unix, wherever it is made
            archive.writestr(entry, files[name])
    return content.getvalue()


def _embedded_png(source: str) -> bytes | None:
    try:
        found = base64.b64decode(source.partition("base64,")[2]) if source.startswith("data:image/png") else b""
    except binascii.Error:
        return None
    return found if found.startswith(PNG) else None


def _manifest(facts: Facts, attribute: str, *, has_icon: bool) -> dict[str, Any]:
    project, engine, metadata = facts.project, facts.server.engine, facts.project.metadata
    author = next((each["name"] for each in metadata.authors if each.get("name")), None)
    if author is None:
        raise SetupError('a bundle names its author; write authors = [{name = "…"}] in [project] of pyproject.toml')
    repository = project.link("repository")
    variables = {each.name.lower(): each for each in facts.variables}
    prompts = [(prompt, _prompt_text(prompt)) for prompt in engine.prompts.all()]
    run = ["run", "--no-dev", "--directory", "${__dirname}", "dovetail", "run", project.program + attribute]
    env = {each.name: f"${{user_config.{key}}}" for key, each in variables.items()}
    return _given(
        manifest_version=MANIFEST_VERSION,
        name=project.name,
        display_name=facts.info.title,
        version=facts.version,
        description=facts.description,
        author={"name": author},
        repository=repository and {"type": "git", "url": repository},
        homepage=facts.website,
        documentation=project.link("documentation"),
        support=project.link("support"),
        icon=ICON if has_icon else None,
        server={"type": "uv", "entry_point": project.program, "mcp_config": _given(command="uv", args=run, env=env)},
        tools=[_given(name=tool.name, description=tool.description) for tool in engine.tools.all()],
        tools_generated=bool(engine.before_list) or None,  # of mounts and proxies, which may change
        prompts=[
            _given(name=each.name, description=each.definition.description, arguments=each.argument_names, text=text)
            for each, text in prompts if text
        ],
        prompts_generated=bool(engine.before_list) or any(text is None for _, text in prompts) or None,
        keywords=metadata.keywords,
        license=(isinstance(metadata.license, str) and metadata.license) or None,
        compatibility={"platforms": PLATFORMS, "runtimes": {"python": metadata.requires_python}},
        user_config={
            key: _given(type="string", title=each.name, description=str(each), required=each.default is None,
                        sensitive=each.is_secret, default=each.default)
            for key, each in variables.items()
        },
    )  # fmt: skip


def _prompt_text(prompt: "Prompt") -> str | None:
    """A prompt as a template, which a manifest wants; None if its function does more than fill in its arguments."""
    call = prompt.invocation
    if call.is_async or call.context_names or call.dependencies or not call.by_name or prompt.mounted:
        return None
    places = {name: f"${{arguments.{name}}}" for name in prompt.argument_names}
    try:
        text = call.function(**places)
    except Exception:  # it reckons with an argument, or looks it up
        return None
    return text if isinstance(text, str) and all(text.count(each) == 1 for each in places.values()) else None


# ── files ──


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value; False and "" are values."""
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    try:
        existing = path.read_bytes() if path.exists() else None
        if existing != content:
            replace_file(path, content, existing)
    except OSError as failure:
        raise CommandExit(f"{path} can't be written: {failure.strerror or failure}") from None
    out(str(path))


def _differs(path: Path, content: bytes, *, may_miss: bool) -> bool:
    """Whether a file is not what it would be; the difference is printed. A bundle, which few commit, `may_miss`."""
    try:
        existing = path.read_bytes()
    except FileNotFoundError:
        if may_miss and path.name != REGISTRY_FILE:
            err(f"{path} is not there, and was not compared")
            return False
        existing = b""
    except OSError as failure:
        raise CommandExit(f"{path} can't be read: {failure.strerror}") from None
    before, after = _members(path, existing), _members(path, content)
    for name in sorted({*before, *after}):
        for line in differing_lines(name, before.get(name, b""), after.get(name, b"")):
            out(styled(sanitize(line), fg={"+": "green", "-": "red"}.get(line[0])))
    return existing != content


def _members(path: Path, content: bytes) -> dict[str, bytes]:
    """The files of a bundle, or the one file, by their names for the user."""
    if path.name == REGISTRY_FILE:
        return {str(path): content}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {f"{path}/{name}": archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError, EOFError):
        return {str(path): content} if content else {}
