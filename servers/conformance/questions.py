"""The fixtures that ask the client: with `ctx` where any key will do, by hand where the suite wants exact ones."""

from collections.abc import Mapping
from typing import Any, Literal

from dovetail import Context, Elicit, InputRequired, Roots, Sample, Server

Questions = dict[str, Elicit[Any] | Sample | Roots]
NAME_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DEFAULTS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "User name", "default": "John Doe"},
        "age": {"type": "integer", "description": "User age", "default": 30},
        "score": {"type": "number", "description": "User score", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "description": "Verification status", "default": True},
    },
}
TITLED = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
CHOICES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}
ASK_NAME = Elicit("What is your name?", schema=NAME_SCHEMA)
ASK_CAPITAL = Sample("What is the capital of France?", max_tokens=100)


def add_asking_tools(server: Server) -> None:
    """Questions by `ctx`: the same lines ask a client of any revision."""

    @server.tool
    async def test_sampling(prompt: str, ctx: Context) -> str:
        """Ask the client's model."""
        answer = await ctx.sample(prompt, max_tokens=100)
        return f"LLM response: {answer.text}"

    @server.tool
    async def test_elicitation(message: str, ctx: Context) -> str:
        """Ask the user for a name and an address."""
        properties = {"username": {"type": "string"}, "email": {"type": "string", "format": "email"}}
        schema = {"type": "object", "properties": properties, "required": ["username", "email"]}
        answer = await ctx.elicit(message, schema=schema)
        return f"User response: {answer.action}, {answer.data}"

    @server.tool
    async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
        """Ask with a default in every kind of field."""
        answer = await ctx.elicit("Please review the defaults", schema=DEFAULTS_SCHEMA)
        return f"Elicitation completed: {answer.action}, {answer.data}"

    @server.tool
    async def test_elicitation_sep1330_enums(ctx: Context) -> str:
        """Ask with every kind of choice."""
        answer = await ctx.elicit("Please choose", schema=CHOICES_SCHEMA)
        return f"Elicitation completed: {answer.action}, {answer.data}"

    @server.tool
    async def test_streaming_elicitation(ctx: Context) -> str:
        """Tell something before asking."""
        await ctx.report_progress(0, total=1)
        answer = await ctx.elicit("Go on?", bool)
        return f"Go on: {answer.data}"

    @server.tool
    async def test_input_required_result_tampered_state(ctx: Context) -> str:
        """Ask once; a state that was changed on the way is refused before this function runs."""
        answer = await ctx.elicit("Confirm?", bool)
        return f"Confirmed: {answer.data}"


def add_questions_by_hand(server: Server) -> None:
    """Questions under the keys that the suite looks for."""

    @server.tool
    def test_input_required_result_elicitation(ctx: Context) -> str | InputRequired:
        """Ask for a name."""
        name = _content(ctx, "user_name").get("name")
        return f"Hello, {name}!" if isinstance(name, str) else InputRequired({"user_name": ASK_NAME})

    @server.tool
    def test_input_required_result_sampling(ctx: Context) -> str | InputRequired:
        """Ask the model."""
        answered = "capital_question" in _responses(ctx)
        return "The model has answered." if answered else InputRequired({"capital_question": ASK_CAPITAL})

    @server.tool
    def test_input_required_result_list_roots(ctx: Context) -> str | InputRequired:
        """Ask for the client's folders."""
        answered = "client_roots" in _responses(ctx)
        return "The client has roots." if answered else InputRequired({"client_roots": Roots()})

    @server.tool
    def test_input_required_result_request_state(ctx: Context) -> str | InputRequired:
        """Keep a state over the question."""
        if ctx.request_state == {"asked": True} and _content(ctx, "confirm"):
            return "state-ok"
        confirm = Elicit("Please confirm", schema=_field("ok", "boolean"))
        return InputRequired({"confirm": confirm}, state={"asked": True})

    @server.tool
    def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequired:
        """Ask three things at once."""
        greeting = Sample("Generate a greeting", max_tokens=50)
        questions: Questions = {"user_name": ASK_NAME, "greeting": greeting, "client_roots": Roots()}
        if questions.keys() <= _responses(ctx).keys():
            return "All three were answered."
        return InputRequired(questions, state="asked")

    @server.tool
    def test_input_required_result_multi_round(ctx: Context) -> str | InputRequired:
        """Ask twice."""
        if ctx.request_state is None:
            return InputRequired({"step1": ASK_NAME}, state={"round": 1})
        if ctx.request_state["round"] == 1:
            colour = Elicit("What is your favourite colour?", schema=_field("color", "string"))
            return InputRequired({"step2": colour}, state={"round": 2, "name": _content(ctx, "step1").get("name")})
        return f"{ctx.request_state['name']} likes {_content(ctx, 'step2').get('color')}."

    @server.tool
    def test_input_required_result_capabilities(ctx: Context) -> str | InputRequired:
        """Ask only what this client can answer."""
        declared = ctx.client.capabilities
        questions: Questions = {}
        if "elicitation" in declared:
            questions["user_name"] = ASK_NAME
        if "sampling" in declared:
            questions["capital_question"] = ASK_CAPITAL
        if not questions or questions.keys() <= _responses(ctx).keys():
            return "Nothing to ask."
        return InputRequired(questions)

    @server.prompt
    def test_input_required_result_prompt(ctx: Context) -> str | InputRequired:
        """A prompt that asks for its context."""
        context = _content(ctx, "user_context").get("context")
        if isinstance(context, str):
            return f"Use this context: {context}"
        question = Elicit("What context should the prompt use?", schema=_field("context", "string"))
        return InputRequired({"user_context": question})


def _responses(ctx: Context) -> Mapping[str, Any]:
    return ctx.input_responses or {}


def _content(ctx: Context, key: str) -> dict[str, Any]:
    """What the user filled in; nothing that a client sends is taken on trust."""
    answer = _responses(ctx).get(key)
    content = answer.get("content") if isinstance(answer, dict) and answer.get("action") == "accept" else None
    return content if isinstance(content, dict) else {}


def _field(name: str, kind: Literal["string", "boolean"]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
