"""How many example servers of the peers do the same on Dovetail: each is listed and called on its library and on ours.

    python scripts/peer_examples.py [--only mcp|fastmcp] [--match TEXT] [--json FILE]

The examples come from the peers' source distributions, fetched into .cache/peer_examples and never committed. What a
peer itself can't run here is left out; so are results that differ between two runs of the peer. `dovetail migrate`
rewrites the imports, and nothing else. What is compared: names, descriptions, schemas and arguments in the lists;
content, structured content and errors of calls, but not the texts of errors. Examples that need what Dovetail lacks on
purpose are counted apart.
"""

import argparse
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.environments import Environment
from fastmcp_environment import WANTED
from fetch_suites import download

from dovetail.cli.migrate import MODULES, Unreadable
from dovetail.cli.moved_imports import rewrite

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "peer_examples"
HOST = Path(__file__).parent / "peer_host.py"
BLOCK = re.compile(r"^( *)```(?:python|py)\b[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


# What the examples import besides; both sides have it.
PACKAGES = [
    "aiohttp", "aiosqlite", "asyncpg", "fastapi", "pillow", "prefab-ui==0.21.1", "psutil", "pydantic-monty", "qrcode",
]  # fmt: skip


def environment() -> Environment:
    """Both peers, in one environment of their own."""
    return Environment(CACHE, "packages", [*WANTED.read_text().split(), *PACKAGES])


# What peers say of a tool that asks the client by a result, to clients of this revision: they serve only newer ones.
UNSERVED = ("Handler returned an invalid result", "only exists at MCP 2026-07-28")


class Peer(NamedTuple):
    requirement: str
    constructor: str  # in the text of each program that is an example server
    programs: tuple[str, ...]  # folders with programs
    pages: tuple[str, ...]  # folders with pages that show programs
    left_out: tuple[str, ...]  # pages of older versions, and what is generated
    paths: tuple[str, ...]  # where its programs import from

    @property
    def name(self) -> str:
        return self.requirement.partition("==")[0]

    @property
    def folder(self) -> Path:
        return CACHE / self.requirement.replace("==", "-")


PEERS = [
    Peer("mcp==2.3.0", "MCPServer(", ("docs_src", "examples"), (), (), ("", "examples")),
    Peer("fastmcp==4.1.2", "FastMCP(", ("examples",), ("docs",), ("docs/v2", "docs/v3", "docs/python-sdk"), ("",)),
]


# What Dovetail itself lacks, or does otherwise on purpose, by the words of programs that need it; `dovetail.compat`
# refuses each by name. What Dovetail has, and compat does not, is no such thing: it counts as a failure.
LACKING = {
    "fastmcp": {
        "Prefab UI": r"prefab_ui|FastMCPApp|fastmcp\.apps\.(approval|choice|file_upload|form|generative)",
        "code mode": r"code_mode",
        "several versions of a component": r"(tool|resource|prompt)\([^)]*\bversion=|VersionFilter|VersionSpec",
        "prompts and resources as tools": r"PromptsAsTools|ResourcesAsTools",
        "the tools of FastMCP's search": r"SearchTransform",
        "extensions as subclasses": r"ServerExtension|SkillsExtension",
        "providers as classes": r"server\.providers\b.* import|\((Provider|Tool)\):",
        "state by UserSession and SessionProvider": r"server\.sessions import",
        "arguments of the call in dependencies": r"CallArgument",
        "Docket": r"CurrentDocket",
        "Azure B2C and tokens on behalf of users": r"from_b2c|EntraOBOToken",
        "tokens without issuer and audience": r"\bJWTVerifier\((?![^)]*issuer=)",
        "templates without screening": r"resource_security=|ResourceSecurity",
    },
    "mcp": {},
}


class Example(NamedTuple):
    peer: Peer
    id: str  # its path in the peer's folder
    text: str

    @property
    def lacking(self) -> list[str]:
        """The features that it needs and Dovetail lacks."""
        return [feature for feature, words in LACKING[self.peer.name].items() if re.search(words, self.text)]

    def job(self, folder: Path, calls: Any = None) -> dict[str, Any]:
        return {"file": str(folder / self.id), "folder": str(folder), "paths": self.peer.paths, "calls": calls}


# ── what there is ──


def fetch(peer: Peer) -> None:
    if peer.folder.exists():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = download(peer.requirement, CACHE)
    with tarfile.open(archive) as tar:
        tar.extractall(CACHE, filter="data")
    for page in (path for name in peer.pages for path in (peer.folder / name).rglob("*.mdx")):
        for number, found in enumerate(BLOCK.finditer(page.read_text())):
            path = page.with_name(f"{page.stem}_{number}.py".replace("-", "_"))
            path.write_text(textwrap.dedent(found[2]))


def examples(peer: Peer) -> Iterator[Example]:
    for name in (*peer.programs, *peer.pages):
        for path in sorted((peer.folder / name).rglob("*.py")):
            id = path.relative_to(peer.folder).as_posix()
            text = path.read_text()
            if peer.constructor in text and not id.startswith(peer.left_out) and "/tests/" not in id:
                yield Example(peer, id, text)


def moved(peer: Peer) -> Path:
    """A copy of the peer's programs, with the imports rewritten."""
    target = CACHE / f"dovetail-{peer.name}"
    shutil.rmtree(target, ignore_errors=True)
    for name in (*peer.programs, *peer.pages):
        pictures = ("*.png", "*.svg") if name in peer.pages else ()
        ignored = shutil.ignore_patterns("*.mdx", *pictures, "v2", "v3", "python-sdk", "node_modules")
        shutil.copytree(peer.folder / name, target / name, ignore=ignored)
    for path in target.rglob("*.py"):
        with contextlib.suppress(Unreadable):  # a page may show a part of a program
            path.write_bytes(rewrite(path.read_bytes(), MODULES[peer.name]))
    return target


# ── runs ──


def run(python: Path, library: str, jobs: Sequence[dict[str, Any]]) -> list[Any]:
    (packages,) = environment().python.parent.parent.glob("lib/python*/site-packages")
    command = [str(python), "-W", "ignore", str(HOST), library, str(packages)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **options, text=True) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        reports = []
        for number, job in enumerate(jobs, 1):
            host.stdin.write(json.dumps(job) + "\n")
            host.stdin.flush()
            reports.append(json.loads(host.stdout.readline()))
            if sys.stderr.isatty():
                print(f"\r{library}: {number} of {len(jobs)}", end="", file=sys.stderr)
        host.stdin.close()
    return reports


def expected(peer: Peer, found: Sequence[Example]) -> dict[str, Any]:
    """The peer's own reports by id, cached: two runs of each example that it can run."""
    known_at = CACHE / f"{peer.requirement}-{hashlib.sha256(HOST.read_bytes()).hexdigest()[:12]}.json"
    known: dict[str, Any] = json.loads(known_at.read_text()) if known_at.exists() else {}
    new = [each for each in found if each.id not in known]
    if new:
        first = run(environment().python, peer.name, [each.job(peer.folder) for each in new])
        again = run(
            environment().python,
            peer.name,
            [
                each.job(peer.folder, report.get("calls") and [call[:2] for call in report["calls"]])
                for each, report in zip(new, first, strict=True)
            ],
        )
        known |= {each.id: [one, two] for each, one, two in zip(new, first, again, strict=True)}
        known_at.write_text(json.dumps(known))
    return known


# ── comparison ──


def schema_of(found: Any) -> Any:
    """What a schema means, without titles and the order of members."""
    if isinstance(found, dict):
        return {
            key: sorted(each) if key == "required" else schema_of(each)
            for key, each in found.items()
            if not (key == "title" and isinstance(each, str))
            and not (key == "default" and each is None)
            and key != "additionalProperties"
            and not (key == "required" and not each)
        }
    return [schema_of(each) for each in found] if isinstance(found, list) else found


def inlined(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """A schema without references, so that where a definition stands makes no difference."""
    root = schema if root is None else root
    if isinstance(schema, list):
        return [inlined(each, root, depth) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema and depth < 6:
        found = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found.get(part, {})
        rest = {key: each for key, each in schema.items() if key != "$ref"}
        return {**inlined(found, root, depth + 1), **rest}
    return {key: inlined(each, root, depth) for key, each in schema.items() if key != "$defs"}


def item(found: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "uri", "uriTemplate", "mimeType", "annotations", "arguments")
    seen = {key: found[key] for key in kept if found.get(key)}
    seen["description"] = " ".join((found.get("description") or "").split())
    if "arguments" in seen:
        seen["arguments"] = [
            {"name": each["name"], "required": bool(each.get("required"))} for each in seen["arguments"]
        ]
    for key in ("inputSchema", "outputSchema"):
        if key in found:
            seen[key] = schema_of(inlined(found[key]))
            if key == "outputSchema":
                seen[key].pop("x-fastmcp-wrap-result", None)
                seen[key].pop("description", None)
            else:
                seen[key].pop("description", None)
    return seen


def content(found: Any) -> Any:
    """A result, without what is only for machines; JSON in texts as data."""
    if isinstance(found, dict):
        return {
            key: content(each)
            for key, each in found.items()
            if key not in ("_meta", "size", "lastModified") and each is not None and not (key == "isError" and not each)
        }
    if isinstance(found, list):
        return [content(each) for each in found]
    if isinstance(found, str):
        try:
            return json.loads(found)
        except ValueError:
            return found.strip()
    return found


def is_failure(result: Any) -> bool:
    return bool(result.get("error") or result.get("isError") or result.get("ended"))


def difference(runs: Sequence[dict[str, Any]], ours: dict[str, Any]) -> tuple[str, str]:
    """How far it goes ("import", "list", "call", "same"), and the first difference from both runs of the peer."""
    theirs, again = runs
    if "failure" in ours:
        return "import", ours["failure"][-300:]
    for method in theirs["lists"]:
        one, two = (
            {each.get("name", each.get("uri")): item(each) for each in side["lists"][method]} for side in (theirs, ours)
        )
        if one.keys() != two.keys():
            return "list", f"{method}: {sorted(one.keys() ^ two.keys())[:6]}"
        for name in one:
            for key in sorted(one[name].keys() | two[name].keys()):
                if one[name].get(key) != two[name].get(key):
                    values = (json.dumps(each[name].get(key))[:300] for each in (one, two))
                    return "list", f"{method} {name} {key}: {' / '.join(values)}"
    if " ".join((theirs["instructions"] or "").split()) != " ".join((ours["instructions"] or "").split()):
        return "list", "instructions"
    for number, (method, params, result) in enumerate(theirs["calls"]):
        where = f"{method} {json.dumps(params)[:120]}"
        if len(ours["calls"]) <= number:
            return "call", f"{where}: not reached"
        given = ours["calls"][number][2]
        if any(words in str(result.get("error")) for words in UNSERVED):
            continue
        if method == "completion/complete" and not is_failure(given):  # a peer may leave out what it need not count
            given = {"completion": {key: given["completion"].get(key) for key in result.get("completion", {})}}
        if is_failure(result) or is_failure(given):
            if is_failure(result) != is_failure(given):
                return "call", f"{where}: {json.dumps(result)[:300]} / {json.dumps(given)[:300]}"
            continue
        is_steady = len(again["calls"]) > number and content(again["calls"][number][2]) == content(result)
        if is_steady and content(result) != content(given):
            return "call", f"{where}: {json.dumps(result)[:300]} / {json.dumps(given)[:300]}"
    return "same", ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[each.name for each in PEERS])
    parser.add_argument("--match", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    verdicts: dict[str, list[tuple[str, str, str, list[str]]]] = {}
    if (reason := environment().make()) is not None:
        print(f"! {reason}", file=sys.stderr)
        return 1
    for peer in PEERS:
        if given.only in (None, peer.name):
            fetch(peer)
            found = [each for each in examples(peer) if given.match in each.id]
            known = expected(peer, found)
            found = [each for each in found if not any("failure" in report for report in known[each.id])]
            folder = moved(peer)
            jobs = [each.job(folder, [call[:2] for call in known[each.id][0]["calls"]]) for each in found]
            reports = run(Path(sys.executable), "dovetail", jobs)
            verdicts[peer.name] = [
                (each.id, *difference(known[each.id], report), each.lacking)
                for each, report in zip(found, reports, strict=True)
            ]
            print(f"\n{peer.requirement}: {len(found)} example servers")
            for id, how, why, lacking in verdicts[peer.name]:
                if how != "same":
                    reason = f"needs {lacking[0]}" if lacking else " ".join(why.split())
                    print(f"  {how:6} {id}: {reason[:300]}")
            print(f"{peer.name}: {dict(Counter(how for _, how, *_ in verdicts[peer.name]))}")
            without = [verdict for verdict in verdicts[peer.name] if not verdict[-1]]
            for chosen, words in ((verdicts[peer.name], "all"), (without, "those that need nothing that is lacking")):
                same = sum(how == "same" for _, how, *_ in chosen)
                share = f"{same} of {len(chosen)}, {100 * same / max(len(chosen), 1):.1f} %"
                print(f"{peer.name}: the same: {share}, of {words}")
            for feature, number in Counter(each.lacking[0] for each in found if each.lacking).most_common():
                print(f"{number:6} need {feature}")
    if given.json:
        given.json.write_text(json.dumps(verdicts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
