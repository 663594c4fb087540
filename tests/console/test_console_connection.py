"""What the page does when a connection is not as it should be: late, lost, refused, or full of names that are none."""

from typing import Any

import pytest
from console_impostor import Impostor, schema
from console_page import ConsolePage

pytestmark = pytest.mark.slow


def test_the_time_does_not_run_while_the_user_is_asked(tab: ConsolePage) -> None:
    told = tab.page.evaluate(
        """async () => {
          const { Patience } = await import("/console/static/patience.js");
          const later = () => new Promise((resolve) => setTimeout(resolve, 150));
          const patience = new Patience(0.05, new AbortController().signal);
          patience.hold();
          patience.hold();
          patience.restart(); // a log line
          patience.release(); // the first answer
          await later();
          const asked = patience.signal.aborted;
          patience.release();
          await later();
          return [asked, patience.signal.aborted, patience.signal.reason.name];
        }"""
    )
    assert told == [False, True, "TimeoutError"]


def test_a_stream_that_gets_on_is_taken_up_as_often_as_it_takes(tab: ConsolePage) -> None:
    told = tab.page.evaluate(
        """async () => {
          const { SessionConnection } = await import("/console/static/session.js");
          const { BrokenStream } = await import("/console/static/wire.js");
          let resumed = 0;
          const broken = () => new BrokenStream({ lastId: `${resumed}`, retry: 1 });
          const wire = {
            async ask() { throw broken(); },
            async send() {},
            async follow() { resumed += 1; if (resumed < 25) throw broken(); return { result: { ok: resumed } }; },
          };
          const connection = new SessionConnection({ wire, revision: "2025-11-25", settings: {}, traffic: null });
          connection.id = "s";
          return connection.request("tools/call", {});
        }"""
    )
    assert told == {"ok": 25}


def test_a_call_waits_for_the_session_and_ends_with_it(tab: ConsolePage) -> None:
    told = tab.page.evaluate(
        """async () => {
          const { SessionConnection } = await import("/console/static/session.js");
          const asked = [];
          const wire = {
            ask(message, headers, { signal }) {
              asked.push(message.method);
              if (message.method !== "initialize")
                return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
              const answer = { result: { protocolVersion: "2025-11-25" } };
              return new Promise((resolve) => setTimeout(() => resolve(answer), 50));
            },
            async tell(message) { asked.push(message.method); },
            async send() { throw Object.assign(new Error("no stream"), { status: 405 }); },
          };
          const connection = new SessionConnection({ wire, revision: "2025-11-25", settings: {}, traffic: null });
          connection.open();
          const call = connection.request("tools/call", {}).catch((failure) => failure.message);
          await new Promise((resolve) => setTimeout(resolve, 150));
          connection.close();
          return [...asked, await call];
        }"""
    )
    assert told[:3] == ["initialize", "notifications/initialized", "tools/call"]
    assert "connection was closed" in told[3]
    assert len(told) == 4


def test_a_server_that_fails_once_is_tried_again(tab: ConsolePage) -> None:
    failures = [503]

    def answer(route: Any) -> None:
        if "server/discover" in (route.request.post_data or "") and failures:
            route.fulfill(status=failures.pop(), body="not yet")
        else:
            route.continue_()

    tab.page.route("**/mcp", answer)
    tab.start_again()
    tab.page.unroute_all()
    assert not failures
    tab.complaints.clear()  # the browser tells of the refusal


def test_a_name_that_no_address_can_hold_hides_no_other(impostor: Impostor) -> None:
    impostor.tools = [{"name": "bad\ud800", "inputSchema": schema()}, {"name": "good", "inputSchema": schema()}]
    impostor.tab.start_again("tools/good")
    links = impostor.tab.region("All tools").get_by_role("link")
    links.nth(1).wait_for()
    links.first.click()
    impostor.tab.button("Call").wait_for()


def test_what_was_asked_for_is_what_is_kept(tab: ConsolePage) -> None:
    tab.start_again("prompts/greeting")
    tab.field("who").fill("ann")

    def answer(route: Any) -> None:
        if "prompts/get" in (route.request.post_data or ""):
            tab.field("who").fill("bob")
        route.continue_()

    tab.page.route("**/mcp", answer)
    tab.button("Get prompt").click()
    tab.sees(tab.result, "Greet ann")
    tab.page.unroute_all()
    kept = tab.page.evaluate("JSON.stringify({...localStorage})")
    assert "ann" in kept
    assert "bob" not in kept
