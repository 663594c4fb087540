"""The site of the documentation, built once: its links and anchors, what it fetches, what models are given."""

import fcntl
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import api_reference
import docs_site
import pytest

import dovetail
import missing
from documented import ROOT

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}  # by the browser itself


class Page(HTMLParser):
    """The links, the anchors and the fetched files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.comments: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (where := FETCHED.get(tag)) in given:
            self.fetched.append(given[where])

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the first process of a run that needs it."""
    missing.demand(docs_site.why_missing())
    own = tmp_path_factory.getbasetemp()
    target = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "built-site"
    target.mkdir(exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return target / "site" if (target / "site" / "llms-full.txt").exists() else docs_site.build(target)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


def is_elsewhere(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def test_every_link_and_every_anchor_of_the_site_leads_somewhere(site: Path, pages: dict[str, Page]) -> None:
    assert len(pages) > 60
    for name, page in pages.items():
        for link in [*page.links, *page.fetched]:
            if is_elsewhere(link):
                continue
            address = urlsplit(urljoin(f"/{name}", link))
            target = unquote(address.path).removeprefix("/") or "index.html"
            assert (site / target).is_file(), f"{name} leads to {link}, which is not there"
            if address.fragment and target.endswith(".html"):
                assert unquote(address.fragment) in pages[target].anchors, f"{name}: {link} has no such anchor"


def test_every_page_is_in_the_navigation_once(pages: dict[str, Page]) -> None:
    listed = [entry.page.replace(".md", ".html") for entry in docs_site.navigation()]
    assert sorted(listed) == sorted(pages.keys() - {"404.html"})


def test_the_site_fetches_nothing_from_other_hosts(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert not [link for link in page.fetched if is_elsewhere(link) and not link.startswith("data:")], name
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path.name


def test_the_marks_of_tests_do_not_show(pages: dict[str, Page], site: Path) -> None:
    assert not [name for name, page in pages.items() if any(".py " in comment for comment in page.comments)]
    assert "<!-- tools.py" not in (site / "tools.md").read_text()


def test_models_are_given_every_page_as_markdown(site: Path) -> None:
    text, everything = (site / "llms.txt").read_text(), (site / "llms-full.txt").read_text()
    assert text.startswith("# Dovetail\n\n> ")
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", text, re.MULTILINE)
    assert linked == [entry.page for entry in docs_site.navigation()]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        *dict.fromkeys(each.section for each in docs_site.navigation())
    ]
    for page in linked:
        assert (site / page).read_text() in everything
    assert "](" not in "".join(re.findall(r"^- \[[^\]]+\]\([^)]+\): (.*)$", text, re.MULTILINE)), "links from elsewhere"
    assert "- [4. Tests](tutorial/4-tests.md): all of this, checked in a second\n" in text
    assert "- [SQL](examples/sql/index.md): questions in SQL to a database; shows limits" in text
    assert "#" not in re.sub(r"^#.*|\w+#", "", text, flags=re.MULTILINE), "a heading is no sentence"


def headings(text: str) -> Iterator[str]:
    yield from re.findall(r"^#{2,3} (\S+)$", text, re.MULTILINE)


def test_the_reference_has_every_public_name_with_its_signature_and_its_options() -> None:
    texts = dict(api_reference.pages())
    found = [*headings("\n".join(texts.values()))]
    assert {*dovetail.__all__, "Jwt", "SignIn", "OAuth", "ServerOptions", "ToolOptions", "AsgiOptions"} <= {*found}
    assert {"Server.tool", "Context.elicit", "Client.call_tool", "ToolRegistry.register_tool"} <= {*found}
    assert "remove_tool(name: str) -> bool\n" in texts["servers"]
    assert "await call_tool(\n    name: str,\n" in texts["client"]
    assert re.search(r"^\| `max_queue` \| `int` \| `1000` \| .+ \|$", texts["servers"], re.MULTILINE)
    assert 'server = Server("weather", version="1.0.0")\n\n@server.tool\n' in texts["servers"], "examples become code"
    assert "Unpack[" not in "".join(texts.values())


def test_the_reference_has_the_methods_and_constructors_that_are_for_its_readers_and_no_others() -> None:
    texts = dict(api_reference.pages())
    found = {*headings("\n".join(texts.values()))}
    methods = ("list_resources", "list_prompts", "get_prompt", "ping", "instructions", "server_info", "set_log_level")
    assert {f"Client.{method}" for method in methods} | {"TokenStore.save", "Context.notify_tools_changed"} <= found
    assert not {"Server.http_options", "Auth.for_app", "Elicit.read", "ChangeStream.add", "Result.encode"} & found
    assert "JwtBearer(\n    client_id: str,\n    assertion: str |" in texts["client"]
    assert "ClientCredentials(\n    client_id: str,\n    client_secret:" in texts["client"], "its base is not public"
    assert "\nContext(" not in texts["functions"]


def test_a_stale_internal_name_of_the_reference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_reference, "INTERNAL", {*api_reference.INTERNAL, "Server.gone"})
    with pytest.raises(ValueError, match=r"Server\.gone"):
        list(api_reference.pages())


def test_the_types_of_the_reference_are_written_out() -> None:
    texts = dict(api_reference.pages())
    assert "tags: str | Iterable[str] = ()," in texts["servers"]
    assert "    leeway: float = 60.0," in texts["authorization"]
    assert "Approve = Callable[[ToolDefinition, dict[str, Any]], bool | Awaitable[bool]]\n" in texts["client"]
    assert "await elicit_url(" in texts["functions"]
    assert ") -> AbstractAsyncContextManager[ChangeStream]\n" in texts["client"], "is not awaited"
    assert "Options: [ServerOptions](#serveroptions)\n" in texts["servers"]
    assert re.search(r"^\| `timeout` \| `float \\\| None` \| `30` \| ", texts["client"], re.MULTILINE)
    for text in texts.values():
        assert not re.search(r"see (above|below)|\[below\]|Coro\[|\bself: |ClassVar", text)


def test_without_the_generator_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"python scripts/docs_site\.py"):
        missing.demand(docs_site.why_missing(tmp_path))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NO SITE GENERATOR"):
        missing.demand(docs_site.why_missing(tmp_path))


@pytest.mark.slow
def test_the_site_works_from_a_folder_and_fits_a_phone(site: Path, chromium: Any) -> None:
    requested: list[str] = []
    tab = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    tab.on("request", lambda request: requested.append(request.url))
    names = ("index", "tools", "sign-in", "from-fastmcp", "from-the-sdk", "troubleshooting", "reference/client")
    for name in (*names, "quickstart", "tutorial/5-keys-and-deploying", "examples/gateway/index"):
        tab.goto((site / f"{name}.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide for a phone"
    tab.set_viewport_size({"width": 1280, "height": 800})
    for name in names:
        tab.goto((site / f"{name}.html").as_uri())
        cut = "each => each.some(table => table.offsetWidth > table.parentNode.clientWidth)"
        assert not tab.locator(".md-typeset__table").evaluate_all(cut), f"a table of {name} has columns out of sight"
    tab.get_by_role("button", name="Search").first.click()
    tab.get_by_placeholder("Search").fill("rate limit")
    tab.get_by_role("option", name="Too many calls at once").click()
    tab.wait_for_url("**/limits.html*")
    assert {urlsplit(url).scheme for url in requested} <= {"file", "data", "about", "blob"}
    tab.close()


def test_the_pages_of_the_site_are_those_of_the_repository(site: Path) -> None:
    """With their words, and links to what lies beside docs."""
    assert "](contributing.md)" in (site / "architecture.md").read_text()
    for page in ("tools.md", "commands/run.md"):
        source = (ROOT / "docs" / page).read_text()
        shown = (site / page).read_text()
        assert [*headings(shown)] == [*headings(source)]
        assert shown.count("```") == source.count("```")
