"""Real OpenAPI specifications: each is imported whole, passes the lint, and its tools make requests that fit it.

The judge of the requests is openapi-core, which knows nothing of Dovetail. The short form takes 250 operations in all,
the long form all 3,758.
"""

import functools
import socket
import time
from random import Random
from typing import Any

import fetch_specifications
import pytest
from specification_judge import Arrived, operations, problems, read, recording

import missing
from dovetail import Client
from dovetail.cli.lint import check_catalog, fetch_catalog
from dovetail.cli.lint.rules import ERROR
from dovetail.openapi import OpenApi
from random_values import RandomValues

SPECIFICATIONS = tuple(fetch_specifications.SPECIFICATIONS)
SHORT, LONG = 25, 10_000  # operations of each; the long form has all of them
OF_ALL_TOOLS = {"tool-count-limit"}  # an error of no tool: large catalogues are what tool search is for
HANG = 60  # seconds for an import; only a hang needs them. What it really takes is measured by the benchmarks
MAPPING = "its discriminator names files that do not exist"
ANY_OF = "openapi-core applies readOnly to a parameter, if it is in a union"
FORM = "openapi-core leaves the values of maps, and all but the first branch of unions, as text in forms"
MULTIPART = "openapi-core applies a style to a part of a multipart body, which has none"
EMPTY = "its schema asks for an empty text, which openapi-core refuses in a query"
NO_SCHEMA = "a property stands in the place of a keyword, where openapi-core gives up"
CONTRADICTION = "it requires a property that it does not describe, and allows no such properties"
OBJECTS = "there is no way to write a list of objects in a query"
EMPTY_OBJECTS = "there is no way to write an empty object in a list of a form"
UNJUDGED = {  # operations whose request is made, but not judged, and why
    ("digitalocean", "post /v2/droplets/{droplet_id}/actions"): MAPPING,
    ("digitalocean", "post /v2/volumes/actions"): MAPPING,
    ("digitalocean", "post /v2/volumes/{volume_id}/actions"): MAPPING,
    ("digitalocean", "get /v2/account/keys/{ssh_key_identifier}"): ANY_OF,
    ("digitalocean", "put /v2/account/keys/{ssh_key_identifier}"): ANY_OF,
    ("digitalocean", "delete /v2/account/keys/{ssh_key_identifier}"): ANY_OF,
    ("jira", "get /rest/api/3/project/search"): OBJECTS,
    ("jira", "put /rest/api/3/issuesecurityschemes/{schemeId}/level/{levelId}/member"): CONTRADICTION,
    ("jira", "post /rest/api/3/screenscheme"): CONTRADICTION,
    ("codat", "post /companies/{companyId}/connections/{connectionId}/push/items"): NO_SCHEMA,
    ("stripe", "post /v1/checkout/sessions"): EMPTY_OBJECTS,
    ("stripe", "post /v1/coupons"): FORM,
    ("stripe", "post /v1/customers/{customer}/subscriptions"): FORM,
    ("stripe", "post /v1/plans"): FORM,
    ("stripe", "post /v1/prices"): FORM,
    ("stripe", "post /v1/prices/{price}"): FORM,
    ("stripe", "post /v1/shipping_rates"): FORM,
    ("stripe", "post /v1/subscriptions"): FORM,
    ("stripe", "post /v1/subscription_items/{subscription_item}/usage_records"): FORM,
    ("stripe", "post /v1/files"): MULTIPART,
    ("stripe", "get /v1/invoices/upcoming/lines"): EMPTY,
}


@pytest.fixture(autouse=True)
def _demand_specifications() -> None:
    missing.demand(fetch_specifications.why_missing())


@functools.cache
def listener() -> socket.socket:
    """The address of the API, for all tests of a process."""
    return socket.create_server(("127.0.0.1", 0))


@functools.cache
def spec_of(name: str) -> dict[str, Any]:
    return read(fetch_specifications.path_of(name).read_bytes())


@functools.cache
def imported(name: str) -> OpenApi:
    port = listener().getsockname()[1]
    return OpenApi(fetch_specifications.path_of(name), base_url=f"http://127.0.0.1:{port}", name=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_every_operation_becomes_a_tool(name: str) -> None:
    began = time.monotonic()
    report = imported(name).report
    assert time.monotonic() - began < HANG
    assert report.tools == len(list(operations(spec_of(name)))), report.left_out


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIFICATIONS)
async def test_every_tool_passes_the_lint(name: str) -> None:
    async with Client(imported(name)) as client:
        catalog = await fetch_catalog(client)
    assert len(catalog.tools) == imported(name).report.tools
    errors = [found for found in check_catalog(catalog) if found.level == ERROR]
    assert [found for found in errors if found.rule not in OF_ALL_TOOLS] == []


async def requested(client: Client, tool: str, arguments: dict[str, Any], seen: list[Arrived]) -> Arrived:
    """The one request that a tool makes of its arguments."""
    seen.clear()
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    assert len(seen) == 1, f"{arguments} made {len(seen)} requests: {result.text}"
    return seen[0]


async def check_requests(name: str, count: int) -> None:
    """A random request of so many operations, or of all if there are fewer."""
    spec = spec_of(name)
    everything = list(operations(spec))
    chosen = Random(name).sample(everything, min(count, len(everything)))
    tools = {f"{method}_{everything.index((method, path))}": (method, path) for method, path in chosen}
    names = {operation: tool for tool, operation in tools.items()}
    api = OpenApi(
        fetch_specifications.path_of(name),
        base_url=f"http://127.0.0.1:{listener().getsockname()[1]}",
        only=[f"{method.upper()} {path}" for method, path in chosen],
        names=lambda _, method, path: names[method.lower(), path],
        name=name,
    )
    found = []
    async with recording(listener()) as seen, Client(api) as client:
        for tool in await client.list_tools():
            method, path = tools[tool.name]
            is_cut = any(cut.startswith(f"{method.upper()} {path}: deeper") for cut in api.report.cut)
            values = RandomValues(tool.input_schema, f"{method} {path}", optional=0.0 if is_cut else 0.4)
            arguments = values.next()
            arrived = await requested(client, tool.name, arguments, seen)
            if (name, f"{method} {path}") not in UNJUDGED:
                found += [f"{method} {path} {arguments}: {each}" for each in problems(spec, path, arrived)]
    assert not found, f"{len(found)} of {len(chosen)}:\n" + "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIFICATIONS)
async def test_requests_fit_the_specification(name: str) -> None:
    await check_requests(name, SHORT)


@pytest.mark.soak
@pytest.mark.parametrize("name", SPECIFICATIONS)
async def test_many_requests_fit_the_specification(name: str) -> None:
    await check_requests(name, LONG)
