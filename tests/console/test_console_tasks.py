"""Tasks of 2025-11-25 in the console, with a server of ours, in a real browser."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from console_page import ConsolePage

pytestmark = pytest.mark.slow
WITH_TASKS, BEFORE = "2025-11-25", "2025-06-18"


class Sent(list[dict[str, Any]]):
    """The messages that the page sends."""

    def hear(self, request: Any) -> None:
        if request.method == "POST" and request.url.endswith("/mcp"):
            self.append(json.loads(request.post_data))

    def of(self, method: str) -> list[Any]:
        return [message.get("params") for message in self if message.get("method") == method]


@pytest.fixture
def sent(tab: ConsolePage) -> Iterator[Sent]:
    messages = Sent()
    tab.page.on("request", messages.hear)
    tab.speak(WITH_TASKS)
    yield messages
    tab.page.remove_listener("request", messages.hear)
    tab.page.unroute_all()


def the_call(sent: Sent) -> dict[str, Any]:
    (call,) = sent.of("tools/call")
    return dict(call)


def test_a_tool_that_can_be_a_task_is_one(tab: ConsolePage, sent: Sent) -> None:
    tab.call("render")
    tab.sees(tab.result, "5 frames")
    assert the_call(sent)["task"] == {}
    assert len(sent.of("tasks/get")) > 1
    assert len(sent.of("tasks/result")) == 1
    assert not sent.of("tasks/cancel")


def test_a_poll_that_is_refused_for_a_moment_does_not_cancel_the_task(tab: ConsolePage, sent: Sent) -> None:
    lost: list[str] = []

    def lose_one_poll(route: Any) -> None:
        if not lost and route.request.method == "POST" and '"tasks/get"' in route.request.post_data:
            lost.append(route.request.post_data)
            route.fulfill(status=429)
        else:
            route.continue_()

    tab.page.route("**/mcp", lose_one_poll)
    tab.call("render")
    tab.sees(tab.result, "5 frames")
    assert lost
    assert not sent.of("tasks/cancel")


def test_a_tool_that_runs_only_as_a_task(tab: ConsolePage, sent: Sent) -> None:
    tab.call("develop")
    tab.sees(tab.result, "the film is developed")
    assert the_call(sent)["task"] == {}


def test_no_task_is_asked_for_where_there_can_be_none(tab: ConsolePage, sent: Sent) -> None:
    tab.call("fail")
    tab.sees(tab.result, "It failed")
    assert "task" not in the_call(sent)
    tab.speak(BEFORE)
    sent.clear()
    tab.call("render")
    tab.sees(tab.result, "5 frames")
    assert "task" not in the_call(sent)


def refuse_streams(route: Any) -> None:
    if route.request.method == "GET":
        route.fulfill(status=405)
    else:
        route.fallback()


@pytest.mark.rule("TASK-55")
@pytest.mark.parametrize("stream", ["GET", "tasks/result"])
def test_the_questions_of_a_task_are_answered(tab: ConsolePage, sent: Sent, stream: str) -> None:
    if stream == "tasks/result":
        tab.page.route("**/mcp", refuse_streams)
        tab.speak(BEFORE)
        tab.speak(WITH_TASKS)
    tab.call("premiere")
    tab.sees(tab.dialog, "Who comes?")
    tab.sees(tab.page, "task input required")
    tab.field("name", tab.dialog).fill("Ada")
    tab.field("meal", tab.dialog).select_option(label="cake")
    tab.dialog.get_by_role("button", name="Accept").click()
    tab.sees(tab.result, "Ada comes")
    assert len(sent.of("tasks/result")) == 1  # it waited meanwhile
    assert len([message for message in sent if "result" in message]) == 1


def test_a_task_is_followed_and_cancelled_with_its_call(tab: ConsolePage, sent: Sent) -> None:
    tab.call("cancellations")
    before = int(tab.result.locator(".block").first.inner_text())
    sent.clear()
    tab.call("render", frames="500")
    tab.page.get_by_text(re.compile(r"task working · Drawing \(\d+/500\)")).wait_for()
    bar = tab.page.get_by_role("progressbar", name="Progress")
    tab.page.wait_for_function("bar => 0 < bar.value", arg=bar.element_handle())
    tab.page.get_by_role("log", name="Logs").get_by_text("frame 5 drawn").wait_for()
    tab.button("Cancel").click()
    tab.sees(tab.result, "Cancelled")
    tab.call("cancellations")
    tab.sees(tab.result, str(before + 1))
    assert len(sent.of("tasks/cancel")) == 1
    call = next(message["id"] for message in sent if message.get("method") == "tools/call")
    assert call not in [each["requestId"] for each in sent.of("notifications/cancelled")]  # it had its response


def test_a_task_is_cancelled_with_its_session(tab: ConsolePage, sent: Sent) -> None:
    tab.call("cancellations")
    before = int(tab.result.locator(".block").first.inner_text())
    tab.call("render", frames="500")
    tab.sees(tab.page, "task working")
    tab.speak(BEFORE)
    tab.call("cancellations")
    tab.sees(tab.result, str(before + 1))


def test_a_task_that_fails(tab: ConsolePage, sent: Sent) -> None:
    tab.tool("develop")
    tab.field("ok").uncheck()
    tab.button("Call").click()
    tab.sees(tab.result, "The film is torn")
    tab.call("premiere")
    tab.dialog.get_by_role("button", name="Decline").click()
    tab.sees(tab.result, "Nobody comes.")  # a result with isError
    assert len(sent.of("tasks/result")) == 2
    assert not sent.of("tasks/cancel")


def test_a_question_of_a_task_is_closed_with_its_call(tab: ConsolePage, sent: Sent) -> None:
    tab.call("premiere")
    tab.sees(tab.dialog, "Who comes?")
    cancels = []

    def refuse(route: Any) -> None:
        message = json.loads(route.request.post_data)
        if message.get("method") == "tasks/get":
            route.fulfill(status=400, body="Not now.")
        elif message.get("method") == "tasks/cancel":
            cancels.append(route)  # so that the server does not take its question back
        else:
            route.fallback()

    with tab.page.expect_request(lambda request: "tasks/cancel" in (request.post_data or "")):
        tab.page.route("**/mcp", refuse)
    tab.sees(tab.result, "400")
    assert not tab.dialog.count()
    cancels[0].continue_()
    assert sent.of("tasks/cancel")
