import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dbos import DBOS, SetWorkflowID

from dovetail import Context, Server

DATABASE = os.environ.get("FILMS_DATABASE", "sqlite:///films.sqlite")  # or postgresql://…


@DBOS.step()
async def draw(scene: str, frame: int) -> None:
    await asyncio.sleep(0.05)
    note(f"{scene} {frame}")


@DBOS.workflow()
async def film(scene: str, frames: int) -> str:
    for frame in range(frames):
        await draw(scene, frame)
    return f"{scene}: {frames} frames"


def note(line: str) -> None:
    with open(os.environ.get("FILMS_LOG", os.devnull), "a") as file:
        file.write(f"{line}\n")


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[None]:
    DBOS(config={"name": "films", "system_database_url": DATABASE, "application_version": "1"})
    DBOS.launch()  # workflows that a worker has left unfinished go on
    yield
    DBOS.destroy(workflow_completion_timeout_sec=0)


server = Server("films", version="1.0.0", lifespan=running)


@server.tool(task=True)
async def render(scene: str, frames: int, ctx: Context) -> str:
    """Render a scene. A scene that is being rendered, or was rendered, is not rendered again."""
    owner = ctx.principal.subject if ctx.principal else "all"
    with SetWorkflowID(f"{owner}/{scene}/{frames}"):
        workflow = await DBOS.start_workflow_async(film, scene, frames)
    return await workflow.get_result()


if __name__ == "__main__":
    server.run("http", port=int(os.environ.get("PORT", "8000")))
