"""A process that ends: what its clients see of its streams and of the last answer."""

import asyncio

from drain_stage import LISTEN

from dovetail.engine.subscriptions import LIST_KINDS, Change
from http_serving import serving, settle
from http_stage import Stage as ServerStage
from http_stage import text_of
from http_wire import HttpWire


async def test_who_has_ended_its_streams_tells_nothing_more_on_them_while_calls_finish() -> None:
    stage = ServerStage()
    async with serving(stage.server) as app:
        call = (await HttpWire.session(app)).start_call("work")
        await stage.entered.wait()
        listen = HttpWire(app).start("subscriptions/listen", LISTEN)
        await listen.message()
        draining = asyncio.create_task(app.drain(5))
        await settle(3)
        for kind in LIST_KINDS:
            stage.server.engine.publish(Change(kind))
        ended = await listen.done()
        assert "list_changed" not in str(ended.messages)
        assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).status == 503
        stage.go.set()
        assert text_of((await call.done()).answer) == "done"
        await draining
