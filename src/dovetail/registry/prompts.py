"""Prompts and completions, compiled from functions."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from dovetail.errors import SetupError
from dovetail.protocol.capabilities import Completion
from dovetail.protocol.methods import CompleteParams
from dovetail.protocol.results import PromptResult
from dovetail.protocol.types import CONTENT_TYPES, Message, PromptArgument, PromptDefinition, Role
from dovetail.registry import registration
from dovetail.registry.arguments import Arguments
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import Invocation, inspect_function
from dovetail.registry.registration import AccessRule, CommonOptions, access_rule, checked_options, did_you_mean
from dovetail.registry.tools import closed_choices, definition_fields

if TYPE_CHECKING:
    from dovetail.registry.mounts import Mounted

ROLES = get_args(Role)
log = logging.getLogger("dovetail")


class PromptOptions(CommonOptions, total=False):
    """Options of `@server.prompt`."""

    name: str
    description: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled prompt."""

    definition: PromptDefinition
    invocation: Invocation
    decode: Callable[[bytes | msgspec.Raw], dict[str, Any]]
    choices: Mapping[str, Sequence[str]] = {}
    access: AccessRule | None = None  # None: every caller may get it
    mounted: "Mounted | None" = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def argument_names(self) -> list[str]:
        return [argument.name for argument in self.definition.arguments or ()]


def compile_prompt(function: Callable[..., Any], options: PromptOptions, *, injectable: type | None = None) -> Prompt:
    """Compile a prompt. On the wire its arguments are strings, also for a parameter of another type."""
    info = inspect_function(function, kind="prompt", injectable=injectable, name=options.get("name"))
    options = checked_options(options, PromptOptions.__optional_keys__, info.where)
    arguments = Arguments(info)
    properties = arguments.schema["properties"]
    described = [
        PromptArgument(name=each.name, description=properties[each.name].get("description"), required=each.required)
        for each in info.parameters
    ]
    fields = definition_fields(options, info.where, info.name, info.summary)
    return Prompt(
        definition=PromptDefinition(arguments=described or None, **fields),
        invocation=Invocation.from_info(info, options),
        decode=arguments.decode,
        choices=closed_choices(arguments.schema),
        access=access_rule(options, info.where),
    )


def to_prompt_result(value: Any, description: str | None) -> PromptResult:
    """The result for text, a message, content, or a list of them; text becomes a message of the user."""
    meta = None
    if isinstance(value := registration.from_official(value), PromptResult):
        value, description, meta = value.messages, value.description, value.meta
    items = value if isinstance(value, (list, tuple)) else [value]
    return PromptResult([_as_message(item) for item in items], description, meta)


def _as_message(item: Any) -> Message:
    if isinstance(item, Mapping):
        return msgspec.convert(item, Message)
    message = item if isinstance(item, Message) else Message("user", item)
    if message.role not in ROLES or not isinstance(message.content, (str, *CONTENT_TYPES)):
        kind = type(message.content).__name__
        raise TypeError(f"a prompt returns text or content, for {' or '.join(ROLES)}; not {kind} for {message.role!r}")
    return message


class Completer(msgspec.Struct, frozen=True, kw_only=True):
    """A function that suggests values for one argument, or for all."""

    invocation: Invocation
    names: Sequence[str]  # of its parameters; those of one for all are the target, the argument, the context
    is_for_all: bool = False
    where: str  # for error messages: "completion of trip, city (mymodule.cities)"

    def arguments(self, params: CompleteParams) -> dict[str, Any]:
        if self.is_for_all:
            return dict(zip(self.names, (params.ref, params.argument, params.context), strict=True))
        known = {"value": params.argument.value, "arguments": dict(params.context.arguments)}
        return {name: known[name] for name in self.names}  # the arguments that the user has already chosen, too

    def read(self, value: Any) -> Completion | None:
        """The suggestions in a return value; None if a function for all has nothing to say of this argument."""
        return None if value is None and self.is_for_all else to_completion(value)

    def check(self, catalog: Catalog[Any], name: str, argument: str) -> None:
        """Raises SetupError if the catalog has no such item; an argument that the item does not have is only logged."""
        item = catalog.find(name)
        if item is None:
            raise SetupError(f"{self.where}: there is no {catalog.noun} {name}{did_you_mean(name, catalog.names())}")
        if argument not in (names := item.argument_names):
            known = f"{did_you_mean(argument, names)}; it has {', '.join(names) or 'none'}"
            log.warning("%s: the %s %s has no argument %s%s", self.where, catalog.noun, name, argument, known)


def compile_completer(
    function: Callable[..., Any], subject: str | None, *, injectable: type | None = None
) -> Completer:
    """Compile a function that takes `value`, and optionally `arguments` and a context. Raises SetupError.

    Without a subject it is one for all arguments, and takes what is completed, the argument and the context of that.
    """
    kind = "completion" if subject is None else "completion of"
    info = inspect_function(function, kind=kind, injectable=injectable, name=subject)
    names = [parameter.name for parameter in info.parameters]
    is_right = len(names) == 3 if subject is None else "value" in names and {*names} <= {"value", "arguments"}
    if not is_right:
        takes = "(ref, argument, context) for all arguments" if subject is None else "(value) or (value, arguments)"
        raise SetupError(f"{info.where}: a completion takes {takes}, not ({', '.join(names)})")
    invocation = Invocation.from_info(info, {})
    return Completer(invocation=invocation, names=names, is_for_all=subject is None, where=info.where)


def to_completion(value: Any) -> Completion:
    if isinstance(value := registration.from_official(value), Completion):
        return msgspec.structs.replace(value, values=[str(item) for item in value.values])
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"a completion returns strings or Completion, not {type(value).__name__}")
    return Completion([str(item) for item in value])


def complete_choice(choices: Sequence[str], value: str) -> Completion:
    """The choices that begin with the user's text; case does not matter."""
    typed = value.casefold()
    return Completion([choice for choice in choices if choice.casefold().startswith(typed)])
