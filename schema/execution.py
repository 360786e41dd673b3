"""From a document's text to results: parsed, measured and validated once, then executed by graphql-core itself."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, cast

from graphql import (
    DocumentNode,
    ExecutionResult,
    Executor,
    GraphQLError,
    GraphQLInputType,
    GraphQLSchema,
    OperationDefinitionNode,
    OperationType,
    create_source_event_stream,
    get_named_type,
    get_nullable_type,
    is_input_object_type,
    is_list_type,
    parse,
    specified_rules,
    type_from_ast,
    validate,
)
from strawberry.schema.validation_rules.maybe_null import MaybeNullValidationRule

from app.errors import BadUserInput, Unavailable
from app.settings import Settings
from schema.documents import digest
from schema.errors import CostExceeded, Refused
from schema.limits import Cost, Limits, check_variables
from schema.sharing import Sharing

DOCUMENTS = 1_000  # kept ready to execute
DOCUMENTS_TOKENS = 250_000  # of them together; one takes about 550 bytes in a syntax tree
COMMENTS = 500
RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 4.0)  # pauses, while what an event needs is away
ERRORS = 20  # of one document; each is dear, for its suggestions

RULES = (*specified_rules, MaybeNullValidationRule)


class Context(Protocol):
    """What resolvers find in `info.context`; made anew for each operation and each event of a subscription."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One executable operation of a valid document."""

    kind: OperationType
    name: str | None
    document: DocumentNode
    sha256: str
    cost: Cost
    variables: Mapping[str, GraphQLInputType]  # those of lists and input objects, which may be large
    shared: bool = False  # a subscription in which it does not matter who asks
    cursor_variable: str | None = None  # the one that says only where a subscriber's own part ends


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid document: its operations by name, and how much of it there is."""

    operations: dict[str | None, Operation]
    tokens: int


class Documents:
    """The documents that were found valid lately, by their text. What is refused is not remembered."""

    def __init__(self, schema: GraphQLSchema, settings: Settings) -> None:
        self._schema = schema
        self._settings = settings
        self._limits = Limits(schema, settings)
        self._ready: OrderedDict[str, Prepared] = OrderedDict()
        self._tokens = 0

    def operation(self, text: str, name: str | None) -> Operation:
        """Raises Refused or CostExceeded. An empty name means that the document has one operation."""
        prepared = self._ready.get(text)
        if prepared is None:
            prepared = self._prepare(text)
            self._keep(text, prepared)
        else:
            self._ready.move_to_end(text)
        return _choose(prepared.operations, name or None)

    def _prepare(self, text: str) -> Prepared:
        document = self._parse(text)
        costs = self._limits.measure(document)
        errors = validate(self._schema, document, RULES, max_errors=ERRORS)
        if errors:
            raise Refused(errors)
        sha256 = digest(text)
        operations = {
            name: self._operation(node, document, sha256, costs[name]) for name, node in _operations(document).items()
        }
        return Prepared(operations, _tokens(document))

    def _operation(self, node: OperationDefinitionNode, document: DocumentNode, sha256: str, cost: Cost) -> Operation:
        name, variables = node.name.value if node.name else None, _compound(self._schema, node)
        if node.operation is not OperationType.SUBSCRIPTION:
            return Operation(node.operation, name, document, sha256, cost, variables)
        sharing = Sharing(self._schema, document)
        return Operation(
            node.operation,
            name,
            document,
            sha256,
            cost,
            variables,
            shared=sharing.possible,
            cursor_variable=sharing.cursor_variable(),
        )

    def _parse(self, text: str) -> DocumentNode:
        settings = self._settings
        if len(text.encode(errors="surrogatepass")) > settings.document_bytes:
            raise CostExceeded(f"The document is too long; at most {settings.document_bytes} bytes are allowed.")
        try:
            return parse(text, max_lexical_tokens=settings.document_tokens, max_comments=COMMENTS)
        except GraphQLError as error:
            # graphql-core says in words alone that it gave up because of a limit.
            if error.message.endswith("Parsing aborted."):
                raise CostExceeded(error.message.removeprefix("Syntax Error: ")) from None
            raise Refused([error]) from None

    def _keep(self, text: str, prepared: Prepared) -> None:
        self._ready[text] = prepared
        self._tokens += prepared.tokens
        while len(self._ready) > DOCUMENTS or self._tokens > DOCUMENTS_TOKENS:
            _, oldest = self._ready.popitem(last=False)
            self._tokens -= oldest.tokens


def _tokens(document: DocumentNode) -> int:
    token, count = document.loc and document.loc.start_token, 0
    while token:
        token, count = token.next, count + 1
    return count


def _operations(document: DocumentNode) -> dict[str | None, OperationDefinitionNode]:
    return {
        node.name.value if node.name else None: node
        for node in document.definitions
        if isinstance(node, OperationDefinitionNode)
    }


def _choose(operations: dict[str | None, Operation], name: str | None) -> Operation:
    if name is None:
        if len(operations) == 1:
            return next(iter(operations.values()))
        raise BadUserInput("`operationName` must say which of the document's operations to execute.")
    if name not in operations:
        raise BadUserInput(f"The document has no operation named `{name[:80]}`.")
    return operations[name]


def _compound(schema: GraphQLSchema, operation: OperationDefinitionNode) -> dict[str, GraphQLInputType]:
    types = {}
    for definition in operation.variable_definitions or ():
        kind = cast("GraphQLInputType", type_from_ast(schema, definition.type))
        if is_list_type(get_nullable_type(kind)) or is_input_object_type(get_named_type(kind)):
            types[definition.variable.name.value] = kind
    return types


class _Awaitables(dict[type, bool]):
    """Whether values of a type can be awaited, asked once for each type rather than once for each value."""

    def __missing__(self, kind: type) -> bool:
        answer = self[kind] = hasattr(kind, "__await__")
        return answer

    def holds(self, value: Any) -> TypeGuard[Awaitable[Any]]:
        return self[type(value)]


def _absence(result: ExecutionResult) -> Unavailable | None:
    """Why some of an event's objects could not be loaded, when that may pass.

    So may slowness: the document is no dearer than it was for the events before.
    """
    for error in result.errors or ():
        match error.original_error:
            case Unavailable() as away:
                return away
            case CostExceeded(message=message):
                return Unavailable(message)
    return None


class Execution:
    def __init__(self, schema: GraphQLSchema, settings: Settings) -> None:
        self._schema = schema
        self._settings = settings
        self._is_awaitable = _Awaitables().holds

    async def run(self, operation: Operation, variables: dict[str, Any] | None, context: Context) -> ExecutionResult:
        """Execute a query or mutation. Raises Refused for variables that do not fit, CostExceeded for too many."""
        return await self._finish(self._executor(operation, variables, context))

    async def event(
        self, operation: Operation, variables: dict[str, Any] | None, make_context: Callable[[], Context], event: Any
    ) -> ExecutionResult:
        """One event of a subscription with its objects: tried again while they are away, never told without them.

        An error that leaves nothing to tell is raised as it is.
        It is an execution of its own with a context of its own. An executor that lives as long as the subscription
        remembers every event's selections (see tests/schema/test_memory.py). Who gives up ends the stream before the
        event, so that the client resumes from a cursor that stands there too.
        """
        pauses = iter(RETRY_SECONDS)
        while True:
            result = await self._finish(self._executor(operation, variables, make_context(), root=event))
            absence = _absence(result)
            if absence is None:
                break
            pause = next(pauses, None)
            if pause is None:
                raise absence
            await asyncio.sleep(pause)
        if result.data is None and result.errors:
            error = result.errors[-1]  # after this one nothing was left, so that no other came
            raise error.original_error or error
        return result

    def requested_cost(self, operation: Operation, variables: dict[str, Any] | None) -> int:
        return operation.cost.total(self._executor(operation, variables, None).variable_values.coerced)

    def _executor(
        self, operation: Operation, variables: dict[str, Any] | None, context: Context | None, root: Any = None
    ) -> Executor[Any]:
        if operation.variables and variables:
            check_variables(operation.variables, variables)
        executor = Executor.build(
            self._schema,
            operation.document,
            root,
            context,
            variables,
            operation.name,
            is_awaitable=self._is_awaitable,
        )
        if isinstance(executor, list):
            raise Refused(executor)
        self._check_cost(operation.cost.total(executor.variable_values.coerced))
        return executor

    def _check_cost(self, cost: int) -> None:
        most = self._settings.document_cost
        if cost > most:
            raise CostExceeded(f"The operation may return {cost} objects; at most {most} are allowed.")

    async def _finish(self, executor: Executor[Any]) -> ExecutionResult:
        result = executor.execute_operation()
        if isinstance(result, ExecutionResult):
            return result
        try:
            finished: ExecutionResult = await self._in_time(cast("Awaitable[Any]", result))
        except CostExceeded as late:
            return ExecutionResult(None, [GraphQLError(late.message, original_error=late)])
        return finished

    async def open(
        self, operation: Operation, variables: dict[str, Any] | None, context: Context
    ) -> AsyncIterable[Any]:
        """The source of a subscription, whose rule its caller has met."""
        executor = self._executor(operation, variables, context)
        opening = create_source_event_stream(executor)
        source = opening if isinstance(opening, ExecutionResult | AsyncIterable) else await self._in_time(opening)
        if isinstance(source, ExecutionResult):
            raise Refused(source.errors or [])
        return source

    async def _in_time(self, work: Awaitable[Any]) -> Any:
        seconds = self._settings.query_seconds
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise CostExceeded(f"The operation took longer than {seconds:g} seconds.") from None
