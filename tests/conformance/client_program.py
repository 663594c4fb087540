"""The client of the official suite's client scenarios: `client_program.py <URL of a server>`.

The suite names the scenario and what it needs in the environment. Everything is done with `dovetail.Client`, as a
user's program would do it.
"""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dovetail import Client, ElicitRequest, SamplingRequest
from dovetail.client.oauth import ClientCredentials, EnterpriseManaged, JwtBearer, OAuth

Play = Callable[[str], Awaitable[None]]
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
REVISION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION")
METADATA = "https://conformance-test.local/client-metadata.json"  # where this program would be described
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


def confirm(question: ElicitRequest) -> dict[str, Any]:
    """Accept: yes to what has to be said, and the defaults of the form for all else."""
    fields = question.fields.items()
    return {name: True for name, field in fields if field.get("type") == "boolean" and "default" not in field}


def sample(request: SamplingRequest) -> str:
    return f"an answer to {len(request.messages)} messages"


def connect(url: str, **options: Any) -> Client:
    return Client(url, protocol_version=REVISION, **options)


async def call_all(url: str) -> None:
    """Call every tool that the client can use."""
    async with connect(url) as client:
        for tool in await client.list_tools():
            await client.call_tool(tool.name, {"a": 2, "b": 3} if tool.name == "add_numbers" else {})


async def list_only(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()


async def answer(url: str) -> None:
    """Call every tool, and answer what it asks."""
    async with connect(url, elicitation_handler=confirm) as client:
        await client.list_tools()
        await client.call_tool("test_client_elicitation_defaults")


async def declare_everything(url: str) -> None:
    async with connect(url, elicitation_handler=confirm, sampling_handler=sample, roots=["."]) as client:
        await client.discover()
        await client.list_tools()


async def keep_state_apart(url: str) -> None:
    """Call one tool while another one asks."""

    async def meanwhile(question: ElicitRequest) -> dict[str, Any]:
        await client.call_tool("test_mrtr_unrelated")
        return confirm(question)

    async with connect(url, elicitation_handler=meanwhile) as client:
        for name in ("test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_no_result_type"):
            await client.call_tool(name)


async def use_everything(url: str) -> None:
    async with connect(url) as client:
        for tool in await client.list_tools():
            await client.call_tool(tool.name)
        for resource in await client.list_resources():
            await client.read_resource(resource.uri)
        for prompt in await client.list_prompts():
            await client.get_prompt(prompt.name)


async def call_as_instructed(url: str) -> None:
    async with connect(url) as client:
        for call in CONTEXT["toolCalls"]:
            await client.call_tool(call["name"], call["arguments"])


async def echo_schema(url: str) -> None:
    async with connect(url) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        await client.call_tool("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})


async def list_skills(url: str) -> None:
    async with connect(url) as client:
        await client.list_skills()


async def load_skill(url: str) -> None:
    """Load the first skill; one that is not what was listed is refused, and nothing else of it is read."""
    async with connect(url) as client:
        skill = (await client.list_skills())[0]
        await skill.read()
        await skill.read("references/FORMS.md")


# ── signing in ──


def browse(url: str) -> None:
    """The user, who agrees to everything: the suite's page sends the browser back at once."""
    with urllib.request.urlopen(url, timeout=20) as page:
        page.read()


async def sign_in(make_auth: Callable[[], Any], url: str) -> None:
    async with connect(url, auth=make_auth()) as client:
        await client.list_tools()
        await client.call_tool("test-tool")


def as_person(**options: Any) -> OAuth:
    return OAuth(open_browser=browse, **options)


def as_known_program() -> OAuth:
    return as_person(client_id=CONTEXT["client_id"], client_secret=CONTEXT["client_secret"])


def as_employee() -> EnterpriseManaged:
    return EnterpriseManaged(
        CONTEXT["client_id"],
        CONTEXT["client_secret"],
        id_token=CONTEXT["idp_id_token"],
        idp_token_endpoint=CONTEXT["idp_token_endpoint"],
        idp_client_id=CONTEXT["idp_client_id"],
    )


AUTH: dict[str, Callable[[], Any]] = {
    "auth/pre-registration": as_known_program,
    "auth/client-credentials-basic": lambda: ClientCredentials(CONTEXT["client_id"], CONTEXT["client_secret"]),
    "auth/client-credentials-jwt": lambda: ClientCredentials(
        CONTEXT["client_id"], private_key=CONTEXT["private_key_pem"]
    ),
    "auth/enterprise-managed-authorization": as_employee,
    "auth/wif-jwt-bearer": lambda: JwtBearer(CONTEXT["client_id"], CONTEXT["valid_jwt"]),
    "auth/dpop": partial(as_person, dpop=True),
    "auth/dpop-nonce": partial(as_person, dpop=True),
}
PLAYS: dict[str, Play] = {
    "initialize": list_only,
    "tools_call": call_all,
    "elicitation-sep1034-client-defaults": answer,
    "sse-retry": call_all,
    "request-metadata": declare_everything,
    "sep-2322-client-request-state": keep_state_apart,
    "http-standard-headers": use_everything,
    "http-custom-headers": call_as_instructed,
    "http-invalid-tool-headers": call_all,
    "json-schema-ref-no-deref": list_only,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2640-client-no-prefetch": list_skills,
    **{f"sep-2640-client-verify-{what}": load_skill for what in ("digest", "frontmatter", "size")},
}


def play_of(scenario: str) -> Play:
    if scenario.startswith("auth/"):
        return partial(sign_in, AUTH.get(scenario, partial(as_person, client_metadata_url=METADATA)))
    if scenario not in PLAYS:
        sys.exit(f"there is no play for the scenario {scenario!r}")
    return PLAYS[scenario]


async def main(url: str) -> None:
    await play_of(SCENARIO)(url)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
