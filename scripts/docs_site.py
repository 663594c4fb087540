"""The site of the documentation in build/site: the pages of docs, the reference, llms.txt; made by Zensical.

Zensical lives in an environment of its own in .cache/docs, with the packages of docs_site.txt. Its last version whose
theme is in the package itself is used: later ones want a second package, which not every registry has. Without one a
plain sentence says what is missing: tests are then skipped, and fail where CI=true.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import api_reference
from benchmarks.environments import Environment

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
TARGET = ROOT / ".cache" / "docs"
CONFIGURATION = ROOT / "zensical.toml"
OF_THE_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # pages that lie outside of docs
EXAMPLES = ROOT / "examples"
ICON = ROOT / "src" / "dovetail" / "console" / "static" / "icon.svg"
UNWANTED = shutil.ignore_patterns("README.md", "__pycache__", "*.db", "*.log", ".*")
_MARK = re.compile(r"^<!--.*-->\n", re.MULTILINE)  # says to a test what a block shows
TELLING = ("index.md", "command.md", "examples/index.md", "tutorial/1-tools.md")  # what other pages are about
_ROW = re.compile(r"^(?:\| |\d\. )\[[^\]]*\]\((?P<page>[^)#]+\.md)\)(?: \| (.*) \||: (.*)\.)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_TO_DOCS = re.compile(r"\]\(((?:\.\./)+)docs/")  # of the examples
_TO_EXAMPLES = re.compile(r"\]\(((?:\.\./)*)\.\./examples/")
_README = re.compile(r"\]\(((?:[^):]*/)?)README\.md")
_CODE = re.compile(r"`[^`\n]+`")
_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def environment(target: Path = TARGET) -> Environment:
    wanted = Path(__file__).with_suffix(".txt").read_text().split()
    return Environment(target, "zensical", wanted, complete=True)


def why_missing(target: Path = TARGET) -> str | None:
    """What keeps the site from being built, in words."""
    if environment(target).is_ready:
        return None
    return (
        "NO SITE GENERATOR: Zensical is not installed, so the site of the documentation was not built "
        "(run `python scripts/docs_site.py`, which needs a package registry)"
    )


class SiteProblem(Exception):
    """What the generator complained of."""


def build(target: Path = BUILD) -> Path:
    """Build the site; gives its folder. Raises SiteProblem for whatever the generator warns of."""
    pages, site = target / "pages", target / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("programs"))
    shutil.copytree(ROOT / "docs" / "programs" / "tutorial", pages / "programs" / "tutorial", ignore=UNWANTED)
    shutil.copytree(EXAMPLES, pages / "examples", ignore=UNWANTED)
    shutil.copy(ICON, pages / "site")
    shutil.copy(CONFIGURATION, target)
    texts = {path.relative_to(ROOT / "docs").as_posix(): path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    texts |= {page: (ROOT / name).read_text().replace("](docs/", "](") for name, page in OF_THE_ROOT.items()}
    texts |= {f"reference/{name}.md": text for name, text in api_reference.pages()}
    readmes = (EXAMPLES / "README.md", *EXAMPLES.glob("[!.]*/README.md"))
    texts |= {_example_page(path): path.read_text() for path in readmes}
    texts = {page: _without_marks(text) for page, text in texts.items() if not page.startswith("programs/")}
    (pages / "reference").mkdir()
    for page, text in texts.items():
        (pages / page).write_text(_for_generator(text))
    command = [str(environment().python), "-m", "zensical", "build", "--strict", "--config-file", CONFIGURATION.name]
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
    told = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    if done.returncode or "Warning" in told:
        raise SiteProblem(told.partition("Traceback")[0] or told)
    _write_for_models(texts, site)
    return site


def _example_page(path: Path) -> str:
    """The page of a README, which a generator would call an index, too."""
    return path.relative_to(ROOT).with_name("index.md").as_posix()


def _without_marks(text: str) -> str:
    """Without the comments that are for tests, and with links to what lies beside docs where the site has it."""
    for name, page in OF_THE_ROOT.items():
        text = text.replace(f"](../{name}", f"]({page}")
    text = _TO_DOCS.sub(r"](\1", text)
    text = _TO_EXAMPLES.sub(r"](\1examples/", text)
    text = _README.sub(r"](\1index.md", text)
    return "".join(part if part.startswith("```") else _MARK.sub("", part) for part in _BLOCK.split(text))


def _for_generator(text: str) -> str:
    """In code of a table it takes a bar for one as it is, and shows the backslash that others want before it."""
    return re.sub(r"^\|.*", lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M)


# ── for models ──


class Entry(NamedTuple):
    section: str
    title: str
    page: str


def navigation(items: list[Any] | None = None, section: str = "") -> Iterator[Entry]:
    """The pages in the order of the navigation, each with the title of its topmost section."""
    given = tomllib.loads(CONFIGURATION.read_text())["project"]["nav"] if items is None else items
    for item in given:
        for title, value in item.items() if isinstance(item, dict) else [(section, item)]:
            if isinstance(value, str):
                yield Entry(section, title, value)
            else:
                yield from navigation(value, section or title)


def _write_for_models(texts: Mapping[str, str], site: Path) -> None:
    """The pages as Markdown; llms.txt, which lists them; llms-full.txt, which holds them all."""
    project = tomllib.loads(CONFIGURATION.read_text())["project"]
    about: dict[str, str] = {}
    for teller in TELLING:
        for row in _ROW.finditer(texts[teller]):
            page = posixpath.normpath(posixpath.join(posixpath.dirname(teller), row["page"]))
            about.setdefault(page, _LINK.sub(r"\1", row[2] or row[3]).replace(" | ", "; shows "))
    lines, last = [f"# {project['site_name']}", "", f"> {project['site_description']}"], ""
    for section, title, page in navigation():
        lines += ["", f"## {section}", ""] if section != last else []
        lines.append(f"- [{title}]({page}): {about.get(page) or _first_sentence(texts[page])}")
        (site / page).write_text(texts[page])
        last = section
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    (site / "llms-full.txt").write_text("\n".join(f"<!-- {page} -->\n\n{texts[page]}" for *_, page in navigation()))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n", 2)[1].split())
    return _LINK.sub(r"\1", re.split(r"(?<=[.:]) ", paragraph)[0].removesuffix(".").removesuffix(":"))


def main() -> int:
    if (reason := environment().make()) is not None:
        print(f"! {reason}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    try:
        site = build()
    except SiteProblem as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"the site is in {site.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
