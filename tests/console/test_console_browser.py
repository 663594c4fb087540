"""The console in a real browser: what its user does, and what is then seen. The long form is in soak."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from console_page import PROBE, ConsolePage, Impostor, call_of, schema

from web_pages import violations

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.slow
SCRIPT = "<script>document.title = 'taken over'</script>"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"


def test_everything_is_listed(tab: ConsolePage) -> None:
    listing = {"tools": ["order", "wipe"], "resources": ["Counter", "City"], "prompts": ["greeting"]}
    for section, names in listing.items():
        tab.open(section)
        listed = tab.region(f"All {section}")
        for name in names:
            listed.get_by_role("link", name=re.compile(f"^{name}")).wait_for()


def test_a_form_says_what_is_wrong_and_calls_when_all_is_right(tab: ConsolePage) -> None:
    tab.tool("order")
    tab.field("item").fill("x")
    tab.button("Call").click()
    item, amount = tab.field("item"), tab.field("amount")
    for field in (item, amount):
        assert field.get_attribute("aria-invalid") == "true"
        assert field.evaluate("it => document.getElementById(it.getAttribute('aria-describedby').split(' ').at(-1))"
                              ".textContent.trim().length > 5")  # fmt: skip
    assert item.evaluate("it => it === document.activeElement")  # the first that is wrong
    item.fill("teapot")
    amount.fill("2")
    tab.field("colour").select_option(label="blue")
    tab.field("gift").check()
    tab.button("Call").click()
    tab.sees(tab.result, "Done")
    for shown in ("teapot", "blue"):
        tab.sees(tab.result, shown)
    assert item.get_attribute("aria-invalid") is None


def test_progress_and_logs_are_shown_while_it_runs_and_it_can_be_cancelled(tab: ConsolePage) -> None:
    tab.call("cancellations")
    before = int(tab.result.locator(".block").first.inner_text())
    tab.tool("slow")
    tab.button("Call").click()
    bar = tab.page.get_by_role("progressbar", name="Progress")
    bar.wait_for()
    tab.page.get_by_text(re.compile("step [2-9] of 50")).wait_for()
    assert 0 < bar.evaluate("it => it.value / it.max") < 1
    tab.page.get_by_role("log", name="Logs").get_by_text("step 1 done").wait_for()
    tab.button("Cancel").click()
    tab.sees(tab.result, "Cancelled")
    assert not bar.is_visible()
    tab.call("cancellations")
    tab.sees(tab.result, str(before + 1))


def test_a_tool_that_destroys_is_called_after_a_second_thought_only(tab: ConsolePage) -> None:
    tab.tool("wipe")
    tab.field("path").fill("/tmp")
    tab.button("Call").click()
    tab.dialog.get_by_role("button", name="Cancel").click()
    assert "gone" not in tab.result.inner_text()
    tab.button("Call").click()
    tab.dialog.get_by_role("button", name="Call anyway").click()
    tab.sees(tab.result, "/tmp is gone")


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_a_question_of_the_server_is_answered_in_the_page(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.tool("invite")
    tab.button("Call").click()
    tab.sees(tab.dialog, "Who is coming?")
    tab.dialog.get_by_role("button", name="Accept").click()  # with nothing in it
    name = tab.field("name", tab.dialog)
    assert name.get_attribute("aria-invalid") == "true"
    name.fill("Ada")
    tab.field("meal", tab.dialog).select_option(label="cake")
    tab.dialog.get_by_role("button", name="Accept").click()
    tab.sees(tab.result, "Ada gets cake")
    tab.button("Call").click()
    tab.dialog.get_by_role("button", name="Decline").click()
    tab.sees(tab.result, "Nobody: decline")


def test_results_of_every_kind_are_shown_as_what_they_are(tab: ConsolePage) -> None:
    tab.call("picture")
    picture = tab.result.get_by_role("img").first
    picture.wait_for()
    assert picture.evaluate("it => it.decode().then(() => it.naturalWidth)") == 1
    tab.call("table")
    tab.result.get_by_role("table").get_by_role("cell", name="Turku").wait_for()
    tab.call("link")
    tab.result.get_by_role("button", name="Open resource").click()
    tab.page.get_by_role("heading", name=re.compile("Counter")).wait_for()
    assert tab.button("Read").evaluate("it => it === document.activeElement")
    tab.call("fail", reason="of rain")
    tab.sees(tab.result, "It failed: of rain")


def test_what_a_server_says_stays_text(tab: ConsolePage) -> None:
    """In names, descriptions, forms, results; and nothing is loaded from where it says."""
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.call("ill")
    tab.sees(tab.result, SCRIPT)
    tab.tool("ill_links")
    tab.sees(tab.page.get_by_role("article"), SCRIPT)
    tab.field(SCRIPT).wait_for()
    tab.button("Call").click()
    tab.sees(tab.result, "javascript:")
    tab.button("As JSON").last.click()
    tab.open("resources", "stage://ill.html")
    tab.button("Read").click()
    tab.sees(tab.result, SCRIPT)
    tab.open("prompts", "ill_prompt")
    tab.button("Get prompt").click()
    tab.sees(tab.result, SCRIPT)
    assert "taken over" not in tab.page.title()
    assert not tab.page.locator("[src='x'], [href^='javascript:']").count()
    assert {url for url in asked if not url.startswith((tab.base, "data:", "blob:"))} == set()


@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_a_resource_that_is_subscribed_to_follows_its_changes(tab: ConsolePage, revision: str, stage: str) -> None:
    tab.speak(revision)
    tab.open("resources", "counter://value")
    tab.button("Read").click()
    tab.sees(tab.result, "count is")
    before = tab.count_shown()
    tab.button("Subscribe").click()
    tab.button("Unsubscribe").wait_for()
    with urlopen(call_of(stage, "count_up"), timeout=10) as answered:
        assert answered.status == 200
    tab.sees(tab.result, f"count is {before + 1}")  # without having been asked again
    tab.button("Unsubscribe").click()
    tab.button("Subscribe").wait_for()


def test_a_prompt_with_completion(tab: ConsolePage) -> None:
    tab.open("prompts", "greeting")
    tab.button("Get prompt").click()
    assert tab.field("who").get_attribute("aria-invalid") == "true"
    tab.field("who").fill("Ada")
    language = tab.field("language")
    language.click()
    language.press_sequentially("fin")
    tab.page.get_by_role("option", name="finnish").click()
    assert language.input_value() == "finnish"
    tab.button("Get prompt").click()
    tab.sees(tab.result, "Greet Ada in finnish.")


def pasted(form: str, text: str) -> str:
    """What it prints where it is pasted."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    program = sys.executable if form == "Python" else "sh"
    done = subprocess.run([program, "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def copies(tab: ConsolePage) -> dict[str, str]:
    """The call in view, in every form that can be copied."""
    found = {}
    for form in ("curl", "Python", "command"):
        tab.button(f"Copy as {form}").click()
        tab.page.get_by_text(f"Copied as {form}.").wait_for()
        found[form] = tab.page.evaluate("navigator.clipboard.readText()")
    return found


def test_a_call_can_be_made_again_and_taken_elsewhere(tab: ConsolePage) -> None:
    tab.call("order", item="teapot", amount="7")
    tab.sees(tab.result, "Done")
    tab.open("history")
    tab.page.get_by_role("article").get_by_role("heading", name="order").wait_for()
    copied = copies(tab)
    assert "item=teapot" in copied["command"]
    if shutil.which("curl") is None:
        del copied["curl"]
    assert {form for form, text in copied.items() if "teapot" in pasted(form, text)} == copied.keys()
    tab.button("Replay").click()
    tab.sees(tab.result, "Done")
    tab.sees(tab.result, "teapot")
    assert tab.button("Call").evaluate("it => it === document.activeElement")


def test_requests_sessions_and_subscriptions_are_watched_live(tab: ConsolePage) -> None:
    tab.speak(HANDSHAKE)
    tab.open("resources", "counter://value")
    tab.button("Subscribe").click()
    tab.button("Unsubscribe").wait_for()
    tab.switch("Live")
    main = tab.page.get_by_role("main")
    tab.sees(main, "dovetail-console")
    main.get_by_title("counter://value").wait_for()
    tab.sees(main, "memory")
    assert main.get_by_role("img").count() >= 1  # a chart that can be read aloud


def test_mounts_are_shown_with_their_state_and_without_secrets(tab: ConsolePage) -> None:
    tab.call("office_appointments", day="monday")
    tab.sees(tab.result, "6")
    tab.switch("Live")
    mounts = tab.page.get_by_role("region", name="Mounts")
    for name, words in {
        "calendar": ["office", "proxy: calendar", "reachable", MODERN, " ms"],
        "archive": ["proxy: 127.0.0.1:9", "unreachable: "],
        "ToolRegistry": ["sums", "registry", "here"],
    }.items():
        for word in words:
            tab.sees(mounts.get_by_role("row", name=name), word)
    assert "hush" not in tab.page.content()


# ── the dashboard ──

BUCKETS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]
NOTHING: dict[str, Any] = {"seconds": 10, "all": [0, 0, {}], "tools": {}, "mounts": {}, "lag": [0, 0, {}], "tasks": {}}
BUSY = {**NOTHING, "all": [20, 1, {"3": 20}], "tools": {"order": [15, 1, {"3": 15}], "wipe": [5, 0, {"9": 5}]}}


def watch(tab: ConsolePage, points: list[dict[str, Any]], **more: Any) -> None:
    """Open Live at a server that has these points behind it, and then ends the stream."""
    now = time.time()
    event = {
        "time": now,
        "uptime": 9000.0,
        "state": "memory",
        "points": [{**point, "time": now - 10 * (len(points) - 1 - at)} for at, point in enumerate(points)],
        "tail": {**NOTHING, "time": now, "seconds": 1},
        "buckets": BUCKETS,
        "failures": [],
        "methods": {},
        "subscriptions": 0,
        "sessions": [],
        "sessions_total": 0,
        "mounts": [],
        "mounts_total": 0,
        **more,
    }
    body = f"data: {json.dumps(event)}\n\n"
    tab.page.route("**/api/live", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body))
    tab.start_again("live")


@pytest.fixture
def routed(tab: ConsolePage) -> Iterator[ConsolePage]:
    yield tab
    tab.page.unroute_all()
    tab.page.set_viewport_size({"width": 1280, "height": 800})


def row(tab: ConsolePage, tool: str) -> list[str]:
    cells = tab.region("Tool calls").get_by_role("row", name=re.compile(f"^{tool}")).get_by_role("cell")
    return [text.strip() for text in cells.all_inner_texts()]


def test_the_hour_before_the_page_was_opened_is_there(routed: ConsolePage, axe: str) -> None:
    tab = routed
    watch(tab, [*[BUSY] * 180, *[NOTHING] * 150, *[BUSY] * 20])
    tab.sees(tab.region("Tool calls"), "3,000")
    tool, _, calls, errors, p50, p99 = row(tab, "order")
    assert (tool, calls, errors.split()[-1], p50, p99) == ("order", "3,000", "200", "7.5 ms", "10 ms")
    tab.page.get_by_role("radio", name="5 min", exact=True).check()
    tab.sees(tab.region("Tool calls"), "300")
    assert row(tab, "wipe")[2] == "100"
    chart = tab.page.get_by_role("group", name="Requests per second")
    chart.press("End")
    chart.press("ArrowLeft")
    chart.get_by_text("requests").wait_for()
    assert "2" in chart.inner_text().split()  # in a second
    tab.page.get_by_role("button", name="Tool", exact=True).click()
    assert tab.region("Tool calls").get_by_role("link").all_inner_texts() == ["order", "wipe"]
    tab.page.get_by_role("button", name="Tool", exact=True).click()
    assert tab.region("Tool calls").get_by_role("link").all_inner_texts() == ["wipe", "order"]
    tab.page.get_by_text("Disconnected: ").wait_for()  # and the figures stay
    assert row(tab, "wipe")[2] == "100"
    assert not violations(tab.page, axe)


def test_a_server_without_traffic_says_what_to_do(routed: ConsolePage) -> None:
    watch(routed, [])
    calls = routed.region("Tool calls")
    routed.sees(calls, "No tool was called in the last 60 minutes.")
    routed.sees(calls, f"{routed.base}/mcp")
    routed.sees(routed.region("Failed calls"), "No call has failed.")
    routed.button("Open the tools").click()
    routed.region("All tools").get_by_role("link").first.wait_for()


@pytest.mark.parametrize("width", [360, 420, 1600])
def test_no_page_is_wider_than_its_window(routed: ConsolePage, width: int) -> None:
    failure = {"time": time.time(), "method": "tools/call", "outcome": "tool_error", "duration": 1.5, "id": "1" * 300}
    failures = [{**failure, "tool": "order", "message": "word" * 70}]
    routed.page.set_viewport_size({"width": width, "height": 900})
    mounts = [{"name": "m" * 50, "namespace": "n" * 50, "kind": "proxy", "backend": None}]
    watch(routed, [BUSY] * 360, failures=failures, mounts=mounts, mounts_total=1)
    routed.sees(routed.region("Tool calls"), "5,400")
    assert routed.page.evaluate("document.documentElement.scrollWidth") == width


def test_errors_lead_to_their_messages(tab: ConsolePage) -> None:
    tab.call("fail", reason="of rain")
    tab.sees(tab.result, "of rain")
    tab.switch("Live")
    failed = tab.region("Failed calls")
    tab.sees(failed, "It failed: of rain")
    tab.region("Tool calls").get_by_role("button", name=re.compile("errors? of fail")).click()
    failed.get_by_role("heading", name="Failed calls of fail").wait_for()
    assert failed.get_by_role("heading").evaluate("it => it === document.activeElement")
    assert {item.split()[0] for item in failed.get_by_role("listitem").all_inner_texts()} == {"fail"}
    tab.button("Show all").click()
    failed.get_by_role("heading", name="Failed calls", exact=True).wait_for()


def test_results_are_kept_as_long_as_the_page(tab: ConsolePage) -> None:
    tab.start_again()
    tab.call("table")
    tab.sees(tab.result, "Turku")
    tab.call("fail", reason="of rain")
    tab.sees(tab.result, "of rain")
    called: list[str] = []
    tab.page.on("request", lambda request: called.append(request.headers.get("mcp-method", "")))
    tab.switch("History")
    history = tab.region("All calls")
    history.get_by_role("link", name=re.compile("fail.*the tool failed")).click()
    tab.sees(tab.result, "It failed: of rain")
    history.get_by_role("link", name=re.compile("table.* ms.*done")).click()
    tab.result.get_by_role("cell", name="Turku").wait_for()
    assert "tools/call" not in called
    assert "Turku" not in tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    tab.page.reload()
    tab.connected()
    tab.sees(tab.result, "results last as long as the page")


@pytest.mark.parametrize("section", ["tools", "live", "history"])
def test_nothing_is_in_the_way_of_people_with_disabilities(tab: ConsolePage, axe: str, section: str) -> None:
    tab.call("order", item="teapot", amount="7")
    tab.sees(tab.result, "Done")
    if section != "tools":
        tab.open(section)
    if section == "live":
        tab.page.get_by_role("main").get_by_role("img").first.wait_for()  # the charts are drawn
    assert not violations(tab.page, axe)


def test_only_the_page_itself_can_read_and_call(tab: ConsolePage) -> None:
    """What the tests below try is possible from here."""
    assert tab.page.evaluate(PROBE, tab.base) == ["about", "live", "call"]
    assert len(tab.complaints) <= 2  # the browser tells of those that were refused
    tab.complaints.clear()


@pytest.mark.parametrize(
    ("host", "read"),
    [("evil.example", []), ("localhost", ["call"])],  # of this machine: the endpoint lets it in, the console does not
)
def test_a_page_from_elsewhere_can_not(chromium: Any, stage: str, foreign: str, host: str, read: list[str]) -> None:
    page = chromium.new_page()
    page.goto(f"http://{host}:{foreign}/")
    assert page.evaluate(PROBE, stage) == read
    page.close()


# ── what a server asks is answered in the page ──


both_eras = pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])


def press(tab: ConsolePage, name: str) -> None:
    tab.dialog.get_by_role("button", name=name, exact=True).click()


@both_eras
def test_a_person_answers_for_the_model(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.call("ask_model")
    tab.sees(tab.dialog, "Name a fruit.")
    assert "Be brief.\nBe kind." in tab.dialog.inner_text()
    answer = tab.field("Answer", tab.dialog)
    assert answer.evaluate("it => it === document.activeElement")
    answer.fill("A fig.")
    press(tab, "Accept")
    tab.sees(tab.result, "the model said A fig.")
    tab.button("Call").click()
    press(tab, "Decline")
    tab.sees(tab.result, "rejected the sampling request")


@both_eras
def test_a_page_to_visit(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.tool("visit")
    for pressed, action in {"Accept": "accept", "Decline": "decline"}.items():
        tab.button("Call").click()
        tab.sees(tab.dialog, "Please pay.")
        link = tab.dialog.get_by_role("link", name="https://pay.example/invoice/7")
        assert link.get_attribute("rel") == "noopener noreferrer"
        press(tab, pressed)
        tab.sees(tab.result, f"the visit: {action}")


PLACEHOLDERS = {
    "curl": '-H "X-Tenant: $HEADER_X_TENANT"',
    "Python": 'headers={"X-Tenant": os.environ["HEADER_X_TENANT"]}',
    "command": '--header "X-Tenant: $HEADER_X_TENANT"',
}


def test_copies_have_the_names_of_headers_but_not_their_values(tab: ConsolePage) -> None:
    tab.button("Settings").click()
    tab.field("Headers", tab.dialog).fill("X-Tenant: hush hush")
    press(tab, "Save")
    tab.connected()
    tab.tool("tenant")
    for form, copied in copies(tab).items():
        assert PLACEHOLDERS[form] in copied
        assert "hush" not in copied
    tab.button("Call").click()
    tab.sees(tab.result, "for hush hush")
    assert "hush" not in tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    tab.start_again()
    tab.button("Settings").click()
    assert tab.field("Headers", tab.dialog).input_value() == ""
    press(tab, "Cancel")


# ── tasks ──

WORKING = {"taskId": "t1", "status": "working", "ttlMs": None, "pollIntervalMs": 20}
NAME = {"message": "Your name?", "requestedSchema": schema(name={"type": "string"})}
ASKING = {**WORKING, "status": "input_required"}
ASKING["inputRequests"] = {key: {"method": "elicitation/create", "params": NAME} for key in ("a", "b")}


@pytest.fixture
def tasks(impostor: Impostor) -> Iterator[dict[str, Any]]:
    """A server whose calls become tasks: `state` is what `tasks/get` says, `sent` are the params by method."""
    stage: dict[str, Any] = {"state": WORKING, "sent": {}}

    def note(method: str, result: Callable[[], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda params: stage["sent"].setdefault(method, []).append(params) or result()  # type: ignore[func-returns-value]

    results = {
        "tools/call": lambda: {"resultType": "task", **WORKING},
        "tasks/get": lambda: {"resultType": "complete", **stage["state"]},
        "tasks/update": lambda: {"resultType": "complete"},
        "tasks/cancel": lambda: {"resultType": "complete"},
    }
    impostor.methods = {method: note(method, result) for method, result in results.items()}
    impostor.offer(schema())
    impostor.tab.button("Call").click()
    impostor.tab.sees(impostor.tab.page, "task working")
    yield stage
    impostor.methods = {}


@pytest.mark.rule("TASK-9")
def test_a_task_is_followed_and_its_questions_are_answered(tab: ConsolePage, tasks: dict[str, Any]) -> None:
    tasks["state"] = {**WORKING, "statusMessage": "Drawing (3/10)"}
    tab.sees(tab.page, "task working · Drawing (3/10)")
    tasks["state"] = ASKING
    for name in ("Ada", "Bob"):  # one after the other
        tab.sees(tab.dialog, "Your name?")
        tab.field("name", tab.dialog).fill(name)
        tab.dialog.get_by_role("button", name="Accept").click()
    done = {"resultType": "complete", "content": [{"type": "text", "text": "a fine film"}]}
    tasks["state"] = {**WORKING, "status": "completed", "result": done}
    tab.sees(tab.result, "a fine film")
    answers = {key: each for params in tasks["sent"]["tasks/update"] for key, each in params["inputResponses"].items()}
    assert {key: each["content"]["name"] for key, each in answers.items()} == {"a": "Ada", "b": "Bob"}
    (call,) = tasks["sent"]["tools/call"]
    declared = call["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"]
    assert declared["io.modelcontextprotocol/tasks"] == {}
    assert "tasks/cancel" not in tasks["sent"]


def test_a_question_that_a_task_takes_back_is_closed(tab: ConsolePage, tasks: dict[str, Any]) -> None:
    tasks["state"] = ASKING
    tab.sees(tab.dialog, "Your name?")
    tasks["state"] = {**WORKING, "status": "failed", "error": {"code": -32603, "message": "The disk is full"}}
    tab.sees(tab.result, "The disk is full")
    assert not tab.dialog.count()


def test_a_task_has_no_end_of_questions(tab: ConsolePage, tasks: dict[str, Any]) -> None:
    question = ASKING["inputRequests"]["a"]
    for stem in ("first", "second"):
        tasks["state"] = {**ASKING, "inputRequests": {f"{stem} {number}": question for number in range(60)}}
        if stem == "first":
            tab.sees(tab.dialog, "Your name?")
    tab.sees(tab.result, "too many questions")
    assert not tab.dialog.count()


def test_a_task_is_cancelled_with_its_call(tab: ConsolePage, tasks: dict[str, Any]) -> None:
    with tab.page.expect_request(lambda request: request.headers.get("mcp-method") == "tasks/cancel") as sent:
        tab.button("Cancel").click()
    tab.sees(tab.result, "Cancelled")
    assert sent.value.headers["mcp-name"] == "t1"


# ── the long form ──


@pytest.mark.soak
def test_a_server_that_wants_a_token_gets_one(chromium: Any) -> None:
    program = ROOT / "docs" / "programs" / "auth_keys.py"
    command = [sys.executable, "-m", "dovetail.cli", "run", program, "--transport", "http", "--port", "0", "--console"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        base = process.stderr.readline().split()[4].removesuffix("/mcp")
        page = chromium.new_page()
        try:
            page.goto(f"{base}/console/")
            page.get_by_label("Token").fill("dovetail_example_key_of_alice")
            page.get_by_role("button", name="Connect").click()
            tab = ConsolePage(page, base)
            tab.connected()
            tab.page.get_by_role("link", name=re.compile("whoami")).click()
            tab.button("Call").click()
            tab.sees(tab.result, "alice")
            tab.button("Copy as curl").click()
            assert "dovetail_example_key" not in page.content()
        finally:
            page.close()
            process.terminate()
            process.stderr.read()
