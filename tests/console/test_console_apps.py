"""The views of tools in the console: what they get from their host, and what its sandbox and policy keep from them."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from console_page import ConsolePage

pytestmark = pytest.mark.slow

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"


calls = itertools.count()


@pytest.fixture
def view(tab: ConsolePage) -> Any:
    """The frame of a view, after a call of its tool."""
    return shown(tab)


def shown(tab: ConsolePage) -> Any:
    of = f"rain {next(calls)}"
    tab.call("chart", of=of)
    frame = tab.region("View").locator("iframe:visible")
    frame.content_frame.locator("#result").get_by_text(of).wait_for()
    return frame.element_handle().content_frame()


@pytest.fixture
def own_tab(tab: ConsolePage) -> Iterator[ConsolePage]:
    """A tab whose browser may complain of what a view tries."""
    opened = ConsolePage(tab.page.context.new_page(), tab.base)
    yield opened
    opened.page.close()


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_a_view_gets_the_input_and_the_result_of_its_tool(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    view = shown(tab)
    given = json.loads(view.inner_text("#input"))
    assert json.loads(view.inner_text("#result"))["structuredContent"] == {**given, "points": [1, 5, 3]}
    host = view.evaluate("host")
    assert host["protocolVersion"] == "2026-01-26"
    assert host["hostInfo"]["name"] == "dovetail-console"
    assert host["hostContext"]["toolInfo"]["tool"]["name"] == "chart"
    assert host["hostContext"]["theme"] == "light"
    frame = tab.region("View").locator("iframe:visible")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    tab.page.wait_for_function("document.querySelector('.frames').clientHeight === 333")
    tab.switch("Resources")
    tab.switch("Tools")
    tab.tool("table")
    tab.tool("chart")  # the frame has left the page, and comes back
    frame.content_frame.locator("#result").get_by_text(given["of"]).wait_for()


def test_a_view_calls_a_tool_after_a_yes_and_not_after_a_no(tab: ConsolePage, view: Any) -> None:
    call = "name => { globalThis.answer = ask('tools/call', {name, arguments: {of: 'snow'}}); }"
    view.evaluate(call, "more_points")
    tab.sees(tab.dialog, "The view wants to call more_points")
    tab.dialog.get_by_role("button", name="Let it call").click()
    assert view.evaluate("answer")["structuredContent"] == {"of": "snow", "points": [0, 1]}
    tab.region("Messages").get_by_text("tools/call").nth(1).wait_for()
    view.evaluate(call, "more_points")  # is not asked again
    assert view.evaluate("answer")["structuredContent"]["points"] == [0, 1]
    view.evaluate(call, "redraw")
    tab.dialog.get_by_role("button", name="Refuse").click()
    assert "does not let the view call redraw" in view.evaluate("answer")["message"]
    view.evaluate(call, "redraw")
    assert "does not let" in view.evaluate("answer")["message"]
    for hidden in ("rename_chart", "elsewhere", ""):
        view.evaluate(call, hidden)
        assert "for apps" in view.evaluate("answer")["message"]
    assert not tab.dialog.count()
    again = shown(tab)  # another view of the same tool has no yes yet
    again.evaluate(call, "more_points")
    tab.dialog.get_by_role("button", name="Refuse").click()
    assert again.evaluate("answer")["code"] == -1


HASTY = """() => new MutationObserver(() => {
  const dialog = document.querySelector("dialog");
  dialog?.querySelector("footer button").click();
  dialog?.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", ctrlKey: true}));
}).observe(document.body, {childList: true})"""


def test_a_click_meant_for_the_view_is_no_yes(own_tab: ConsolePage) -> None:
    """A view may ask just when its user clicks twice, or presses a key, where the button will be."""
    tab, view = own_tab, shown(own_tab)
    tab.page.evaluate(HASTY)
    view.evaluate("() => { globalThis.answer = ask('tools/call', {name: 'redraw', arguments: {}}); }")
    tab.sees(tab.dialog, "The view wants to call redraw")
    tab.dialog.get_by_role("button", name="Refuse").click()
    assert "does not let the view call redraw" in view.evaluate("answer")["message"]


def test_a_view_gets_no_keys_that_are_meant_for_a_dialog(tab: ConsolePage, view: Any) -> None:
    view.evaluate("() => { document.body.insertAdjacentHTML('beforeend', '<input id=keys>'); }")
    take_focus = "() => { keys.focus(); return keys.value; }"
    tab.button("Settings").click()
    field = tab.dialog.get_by_role("textbox").first
    field.focus()
    view.evaluate(take_focus)
    tab.page.keyboard.type("secret")
    assert view.evaluate(take_focus) == ""
    assert field.input_value().endswith("secret")
    tab.dialog.get_by_role("button", name="Cancel").click()


def test_a_question_moves_nothing_below_the_view(tab: ConsolePage, view: Any) -> None:
    place = tab.result.bounding_box()
    tab.button("Settings").click()
    assert tab.result.bounding_box() == place
    tab.dialog.get_by_role("button", name="Cancel").click()


def test_a_view_is_told_of_another_theme(tab: ConsolePage, view: Any) -> None:
    for theme in ("Dark", "Light"):
        tab.button(theme).click()
        view.wait_for_function("theme => host.hostContext.theme === theme", arg=theme.lower())


def test_the_chart_of_the_documentation_is_drawn_and_grows(tab: ConsolePage) -> None:
    tab.call("forecast", city="Oslo")
    chart = tab.region("View").locator("iframe:visible").content_frame
    chart.get_by_role("heading", name="Oslo").wait_for()
    assert chart.locator("#bars div").count() == 7
    chart.get_by_role("button", name="Two days more").click()
    tab.dialog.get_by_role("button", name="Let it call").click()
    chart.locator("#bars div").nth(8).wait_for()


def test_a_view_reads_resources_and_opens_links_after_a_yes(tab: ConsolePage, view: Any) -> None:
    (contents,) = view.evaluate("ask('resources/read', {uri: 'counter://value'})")["contents"]
    assert contents["text"].startswith("count is")
    link = "url => { globalThis.answer = ask('ui/open-link', {url}); }"
    view.evaluate(link, "javascript:alert(1)")
    assert view.evaluate("answer")["code"] == -32602
    view.evaluate(link, f"{tab.base}/console/static/icon.svg")
    with tab.page.expect_popup() as opened:
        tab.dialog.get_by_role("button", name="Open").click()
    assert opened.value.evaluate("window.opener") is None
    opened.value.close()
    assert view.evaluate("answer") == {}
    view.evaluate(link, "http://other.example:9/page")
    tab.sees(tab.dialog, "other.example")
    tab.dialog.get_by_role("button", name="Refuse").click()
    assert view.evaluate("answer") == {"isError": True}
    assert view.evaluate("ask('ui/open-link', {url: 'http://other.example/'})") == {
        "isError": True
    }  # without a question
    for method, params in {"ui/message": {"isError": True}, "ui/request-display-mode": {"mode": "inline"}}.items():
        assert view.evaluate("method => ask(method)", method) == params
    assert view.evaluate("ask('ui/update-model-context')")["code"] == -32601


def test_the_sandbox_and_the_policy_hold(own_tab: ConsolePage, foreign: str) -> None:
    tab, view = own_tab, shown(own_tab)

    def failure_of(expression: str) -> Any:
        return view.evaluate(
            f"async () => {{ try {{ {expression}; return 'done' }} catch (failure) {{ return failure.name }} }}"
        )

    assert view.evaluate("origin") == "null"
    for reach in ("parent.document", "top.location.href", "localStorage", "document.cookie", "indexedDB.open('x')"):
        assert failure_of(reach) == "SecurityError", reach
    assert failure_of("top.location = 'about:blank'") == "SecurityError"
    for url in (f"http://other.example:{foreign}/", f"{tab.base}/console/api/about", f"{tab.base}/mcp"):
        assert failure_of(f"await fetch({url!r})") == "TypeError", url
    allowed = f"await fetch('http://allowed.example:{foreign}/', {{mode: 'no-cors'}})"
    assert failure_of(allowed) == "done"
    picture = "await new Promise((done, fail) => Object.assign(new Image(), {onload: done, onerror: fail, src}))"
    assert failure_of(f"const src = '{tab.base}/console/static/icon.svg'; {picture}") != "done"
    assert view.evaluate("window.open('about:blank')") is None
    assert tab.page.title().endswith("Dovetail console")
    with tab.page.expect_console_message(lambda said: "frame-src 'self'" in said.text):
        view.evaluate(f"location = 'http://other.example:{foreign}/?secret'")  # not even by leaving
    assert all("other.example" not in frame.url for frame in tab.page.frames)


def test_a_view_can_not_give_itself_another_policy(own_tab: ConsolePage) -> None:
    """It may lead its frame to one with another policy, but gets no document there."""
    tab, view = own_tab, shown(own_tab)
    view.evaluate("location = '/console/view?connectDomains=http://other.example:*'")
    frame = tab.region("View").locator("iframe:visible")
    frame.content_frame.locator("#result").wait_for(state="detached")
    assert frame.element_handle().content_frame().evaluate("document.body?.innerText ?? ''").strip() == ""


def test_other_windows_are_not_heard(tab: ConsolePage, view: Any) -> None:
    forged = {"jsonrpc": "2.0", "id": 9, "method": "ui/open-link", "params": {"url": "https://other.example/"}}
    tab.page.evaluate("message => window.postMessage(message, '*')", forged)
    view.evaluate("ask('ping')")
    assert not tab.dialog.count()


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_a_view_that_is_edited_is_shown_anew_with_its_result(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    given = json.loads(shown(tab).inner_text("#input"))
    other = ConsolePage(tab.page.context.new_page(), tab.base)
    other.open()
    other.call("redraw", heading=f"edited in {revision}")
    inside = tab.region("View").locator("iframe:visible").last.content_frame
    inside.get_by_role("heading", name=f"edited in {revision}").wait_for()
    inside.locator("#result").get_by_text(given["of"]).wait_for()
    other.page.close()


def test_a_view_of_another_type_is_not_shown(impostor: Any) -> None:
    impostor.offer({"type": "object"}, _meta={"ui/resourceUri": "ui://a/b"})
    impostor.tab.button("Call").click()
    impostor.tab.sees(impostor.tab.region("View"), "It can't be shown: its type is")
    assert not impostor.tab.page.locator("iframe:visible").count()
