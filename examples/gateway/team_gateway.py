"""A company's HTTP API for models: each team has a URL, keys, and the tools that are its business."""

import logging
import os
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from dovetail import OpenApi, Server
from dovetail.auth import ApiKeys

DOCUMENT = os.environ.get("COMPANY_API", "http://127.0.0.1:9000/openapi.json")
TOKEN = os.environ.get("COMPANY_TOKEN", "token-of-the-gateway")
TEAMS = {  # the operations of each team, by the tags, methods and names in the document
    "sales": ["tag:customers", "tag:orders", "look_into_stock"],
    "warehouse": ["tag:stock", "list_orders"],
}


def gateway(team: str) -> Server:
    """The server of a team. Its keys are in SALES_KEYS or WAREHOUSE_KEYS, as `ada:<key>,bob:<key>`."""
    server = Server(
        f"company-{team}",
        version="1.0.0",
        instructions=f"The systems of the company, as the {team} team may use them.",
        auth=ApiKeys.from_env(f"{team.upper()}_KEYS"),
        rate_limit=["60/minute per principal", "2000/day per principal"],
        tool_search="auto",
        token_budget=200,  # so that four tools are searched here; leave it out for an API with hundreds
        audit=True,  # who did what, a line of JSON for each call
    )
    server.mount(OpenApi(DOCUMENT, auth=TOKEN, only=TEAMS[team], timeout=10))
    return server


def write_audit(path: Path) -> None:
    """Write what `audit=True` logs into a file."""
    log = logging.getLogger("dovetail.audit")
    log.setLevel(logging.INFO)
    log.addHandler(logging.FileHandler(path))


def create_app() -> Starlette:
    """All teams in one process: /sales/mcp and /warehouse/mcp."""
    write_audit(Path(__file__).with_name("audit.log"))
    app = Starlette()
    for team in TEAMS:
        gateway(team).asgi().mount_on(app, f"/{team}/mcp")
    return app


if __name__ == "__main__":
    uvicorn.run(create_app(), log_level="warning")
