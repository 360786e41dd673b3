"""How a field of the schema is bound to the function that answers it, and which rule its caller must meet."""

import enum
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

import strawberry
from strawberry.types.arguments import InputContext
from strawberry.utils.str_converters import to_camel_case

from app.auth import REACHED, Rule, admit
from app.enums import Described
from resolvers import mutations
from resolvers.context import Context
from schema.payloads import UserError
from schema.rules import RULE, SHARED

Info = strawberry.Info[Context, Any]
Answer = Callable[..., Any]
MISSING = inspect.Parameter.empty
Enum = TypeVar("Enum", bound=type[Described])
Kind = TypeVar("Kind", bound=type)


@dataclass(frozen=True)
class Argument:
    """An argument of a field: its GraphQL type, what it means, and its default."""

    kind: Any
    description: str
    default: Any = MISSING


def described(words: Enum, description: str, *, name: str | None = None) -> Enum:
    """An enum of app/ in the schema; each value says its own sentence."""
    strawberry.enum(words, name=name, description=description)
    definition = words.__strawberry_definition__  # type: ignore[attr-defined]
    for value in definition.values:
        value.description = words[value.name].sentence
    return words


def later(name: str, module: str) -> Any:
    """A type of a module that imports this one."""
    return Annotated[name, strawberry.lazy(module)]


def many(kind: Any) -> Any:
    return list.__class_getitem__(kind)


def plain(kind: Kind) -> Kind:
    """An input that comes in hundreds: what it holds is handed on as it is, without an object for each of them."""
    definition = kind.__strawberry_definition__  # type: ignore[attr-defined]
    names = {to_camel_case(one.python_name): one.python_name for one in definition.fields}

    def build(_kind: type, given: Mapping[str, Any], _: InputContext) -> dict[str, Any]:
        return {names[name]: value for name, value in given.items()}

    definition.from_input = build
    return kind


def field(
    answer: Answer, gives: Any, description: str, *, rule: Rule = REACHED, shared: bool = False, **takes: Argument
) -> Any:
    """A field of an object: whoever holds the object may read it, unless a rule about callers says more."""

    def resolve(root: Any, info: Info) -> Any:
        return answer(info.context, root)

    def resolve_with(root: Any, info: Info, **given: Any) -> Any:
        return answer(info.context, root, **_said(given))

    def resolve_for_some(root: Any, info: Info, **given: Any) -> Any:
        admit(info.context.principal, rule)
        return answer(info.context, root, **_said(given))

    resolver = resolve_for_some if rule is not REACHED else resolve_with if takes else resolve
    return strawberry.field(
        resolver=_with_signature(resolver, answer, gives, takes),
        description=description,
        metadata={RULE: rule},
        directives=SHARED if shared else (),
    )


def query(answer: Answer, gives: Any, description: str, *, rule: Rule, **takes: Argument) -> Any:
    """A root field of queries; its rule is met before it is answered."""

    async def resolve(root: Any, info: Info, **given: Any) -> Any:
        await info.context.authorise(rule, given)
        answered = answer(info.context, root, **_said(given))
        return await answered if inspect.isawaitable(answered) else answered

    return strawberry.field(
        resolver=_with_signature(resolve, answer, gives, takes), description=description, metadata={RULE: rule}
    )


def subscription(
    answer: Callable[..., Any], gives: Any, description: str, *, rule: Rule, shared: bool = False, **takes: Argument
) -> Any:
    """A root field of subscriptions; its rule is met before anything is told. A shared one answers with a `Live`."""

    async def resolve(root: Any, info: Info, **given: Any) -> AsyncIterable[Any]:
        await info.context.authorise(rule, given)
        answered = answer(info.context, root, **_said(given))
        events: AsyncIterable[Any] = await answered if inspect.isawaitable(answered) else answered
        return events

    return strawberry.subscription(
        resolver=_with_signature(resolve, answer, AsyncIterator[gives], takes),
        description=description,
        metadata={RULE: rule},
        directives=SHARED if shared else (),
    )


def mutation(
    act: Callable[..., Awaitable[Any]],
    payload: type,
    description: str,
    *,
    takes: type,
    rule: Rule,
    answers: str,
    raw: bool = False,
    served: bool = False,
) -> Any:
    """A root field of mutations: one `input`, one payload; `answers` is the payload's field with the object.

    The text of a `raw` one is taken as it is: what it calls makes it storable. A `served` one is also given the
    parts of the server, as `services`.
    """
    name = f"{act.__module__}.{act.__name__}"
    change = mutations.Mutation(name=name, act=act, rule=rule, answers=answers, raw=raw, served=served)

    async def resolve(root: Any, info: Info, **given: Any) -> Any:
        outcome = await mutations.run(info.context, change, _plain(given["input"]))
        errors = [UserError.of(error) for error in outcome.pop("errors")]
        return payload(**outcome, errors=errors)

    arguments = {"input": Argument(takes, "What to do.")}
    return strawberry.mutation(
        resolver=_with_signature(resolve, act, payload, arguments), description=description, metadata={RULE: rule}
    )


def _with_signature(resolve: Answer, answer: Answer, gives: Any, takes: Mapping[str, Argument]) -> Answer:
    """Strawberry reads the arguments off the signature, so that of `resolve` is written here from data."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter("root", positional, annotation=Any),
        inspect.Parameter("info", positional, annotation=Info),
        *(
            inspect.Parameter(
                name,
                keyword,
                annotation=Annotated[taken.kind, strawberry.argument(description=taken.description)],
                default=taken.default,
            )
            for name, taken in takes.items()
        ),
    ]
    resolve.__signature__ = inspect.Signature(parameters, return_annotation=gives)  # type: ignore[attr-defined]
    resolve.__name__ = answer.__name__
    return resolve


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a field, without those that the client left out."""
    return {name: _plain(value) for name, value in given.items() if value is not strawberry.UNSET}


def _plain(given: Any) -> Any:
    """Inputs as plain values: what a client left out is left out here too. What a JSON scalar holds is not touched."""
    if isinstance(given, list):
        return [_plain(value) for value in given]
    if isinstance(given, enum.Enum) or not hasattr(given, "__strawberry_definition__"):
        return given
    values = {one.name: getattr(given, one.name) for one in fields(given)}
    return {name: _plain(value) for name, value in values.items() if value is not strawberry.UNSET}
