"""How large a document may be: measured once for each document, before the rules of validation, which cost far more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLField,
    GraphQLInputType,
    GraphQLNamedType,
    GraphQLSchema,
    InlineFragmentNode,
    IntValueNode,
    NullValueNode,
    OperationDefinitionNode,
    OperationType,
    SelectionSetNode,
    VariableNode,
    get_introspection_query,
    get_named_type,
    get_nullable_type,
    is_composite_type,
    is_input_object_type,
    is_list_type,
    parse,
)

from app.settings import Settings
from schema.errors import CostExceeded

PAGE_DEFAULT = 20  # objects of a connection when the client names no number
PAGE_UNKNOWN = 100  # and when its number cannot be told before execution
LIST = 10  # objects of a list that has no pages
DIRECTIVES = 50
SELECTIONS = 10_000  # selections with every fragment expanded
REPEATS = 30_000  # pairs of selections that validation would have to compare
VARIABLE_VALUES = 20_000
INTROSPECTION_DEPTH = 20
INTROSPECTION_LISTS = 2  # of those below, one inside the other
INTROSPECTION_GROWS = frozenset({"types", "fields", "inputFields", "interfaces", "possibleTypes"})

Page = tuple[int | str, ...]  # a number, or the name of the variable that holds it; several when both ends are named


@dataclass(slots=True)
class Cost:
    """Objects that a selection may return: `fixed`, and `listed` once for each object of the page it stands under."""

    fixed: int = 0
    listed: int = 0
    open: list["Branch"] = field(default_factory=list)

    def total(self, variables: Mapping[str, Any]) -> int:
        fixed, listed = self._evaluate(variables)
        return fixed + LIST * listed

    def add(self, branch: "Branch") -> None:
        if branch.is_open:
            self.open.append(branch)
        else:
            self._grow(*branch.evaluate({}))

    def _evaluate(self, variables: Mapping[str, Any]) -> tuple[int, int]:
        fixed, listed = self.fixed, self.listed
        for branch in self.open:
            more_fixed, more_listed = branch.evaluate(variables)
            fixed, listed = fixed + more_fixed, listed + more_listed
        return fixed, listed

    def _grow(self, fixed: int, listed: int) -> None:
        self.fixed += fixed
        self.listed += listed


@dataclass(frozen=True, slots=True)
class Branch:
    """One field that returns objects, and what is selected on them."""

    page: Page | None
    is_list: bool
    below: Cost

    @property
    def is_open(self) -> bool:
        return bool(self.below.open) or any(isinstance(size, str) for size in self.page or ())

    def evaluate(self, variables: Mapping[str, Any]) -> tuple[int, int]:
        fixed, listed = self.below._evaluate(variables)  # noqa: SLF001 - the two halves of one recursion
        if self.page is None:
            each = 1 + fixed + LIST * listed
            return (0, each) if self.is_list else (each, 0)
        size = _page_size(self.page, variables)
        return (size * (1 + fixed + LIST * listed), 0) if self.is_list else (1 + fixed + size * listed, 0)


def _page_size(page: Page, variables: Mapping[str, Any]) -> int:
    named = [variables.get(size) if isinstance(size, str) else size for size in page]
    sizes = [size if type(size) is int else PAGE_UNKNOWN for size in named if size is not None]
    return max(0, *sizes) if sizes else PAGE_DEFAULT


class Limits:
    """The bounds of one schema. `measure` answers with each operation's cost or raises CostExceeded."""

    def __init__(self, schema: GraphQLSchema, settings: Settings) -> None:
        self.schema = schema
        self.settings = settings
        self.introspection_cost = 0
        standard = parse(get_introspection_query(specified_by_url=True, input_value_deprecation=True))
        self.introspection_cost = 2 * _Measure(self, standard).introspection_cost()

    def measure(self, document: DocumentNode) -> dict[str | None, Cost]:
        return _Measure(self, document).operations()

    def refuse(self, what: str, found: int, most: int) -> None:
        if found > most:
            raise CostExceeded(f"The document has {what}: {found}; at most {most} are allowed.")


Member = tuple[GraphQLNamedType | None, FieldNode]


class _Measure:
    """One document, walked as execution would walk it: fragments expanded, fields of one name merged.

    Every step counts towards SELECTIONS for the whole document, so that neither cycles nor fragments that multiply each
    other make the walk long.
    """

    def __init__(self, limits: Limits, document: DocumentNode) -> None:
        self.limits = limits
        self.schema = limits.schema
        self.settings = limits.settings
        self.document = document
        self.fragments = {
            node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)
        }
        self.reached: set[str] = set()
        self.selections = self.repeats = self.aliases = self.directives = 0
        self.introspected = Cost()

    def operations(self) -> dict[str | None, Cost]:
        costs = {
            node.name.value if node.name else None: self._operation(node)
            for node in self.document.definitions
            if isinstance(node, OperationDefinitionNode)
        }
        for name, fragment in self.fragments.items():
            if name not in self.reached:  # validation reads what nobody uses too
                self._below([(self._named(fragment), fragment.selection_set)], 1)
        return costs

    def introspection_cost(self) -> int:
        (operation,) = (node for node in self.document.definitions if isinstance(node, OperationDefinitionNode))
        members = self._merge([(self.schema.query_type, operation.selection_set)])["__schema"]
        return self._introspection(members, 1, 0).total({})

    def _operation(self, operation: OperationDefinitionNode) -> Cost:
        self.aliases, self.introspected = 0, Cost()
        self._count_directives(operation)
        root = self.schema.get_root_type(operation.operation)
        merged = self._merge([(root, operation.selection_set)])
        self.limits.refuse("too many root fields", len(merged), self.settings.document_root_fields)
        cost = Cost()
        for members in merged.values():
            if operation.operation is OperationType.QUERY and members[0][1].name.value in {"__schema", "__type"}:
                branch = Branch(None, is_list=False, below=self._introspection(members, 1, 0))
                self.introspected.add(branch)
            else:
                self._add(cost, members, 1)
        most = self.limits.introspection_cost
        self.limits.refuse("too much introspection", self.introspected.total({}), most)
        return cost

    def _below(self, sets: list[tuple[GraphQLNamedType | None, SelectionSetNode]], depth: int) -> Cost:
        self.limits.refuse("too many levels of fields", depth, self.settings.document_depth)
        cost = Cost()
        for members in self._merge(sets).values():
            self._add(cost, members, depth)
        return cost

    def _add(self, cost: Cost, members: list[Member], depth: int) -> None:
        sets = self._sets(members)
        below = self._below(sets, depth + 1) if sets else Cost()
        definition, node = self._definition(members)
        if definition is not None and is_composite_type(get_named_type(definition.type)):
            is_list = is_list_type(get_nullable_type(definition.type))
            cost.add(Branch(_page(definition, node), is_list, below))

    def _introspection(self, members: list[Member], depth: int, lists: int) -> Cost:
        self.limits.refuse("too many levels of introspection", depth, INTROSPECTION_DEPTH)
        lists += members[0][1].name.value in INTROSPECTION_GROWS
        self.limits.refuse("too many introspection lists inside each other", lists, INTROSPECTION_LISTS)
        cost = Cost()
        for below in self._merge(self._sets(members)).values():
            definition, _ = self._definition(below)
            inner = self._introspection(below, depth + 1, lists)
            if definition is not None and is_composite_type(get_named_type(definition.type)):
                cost.add(Branch(None, is_list_type(get_nullable_type(definition.type)), inner))
        return cost

    def _merge(self, sets: list[tuple[GraphQLNamedType | None, SelectionSetNode]]) -> dict[str, list[Member]]:
        """The fields of one place in the answer by their response names."""
        merged: dict[str, list[Member]] = {}
        spread: dict[str, int] = {}
        waiting = list(sets)
        while waiting:
            parent, selection_set = waiting.pop()
            self._count(len(selection_set.selections))
            for selection in selection_set.selections:
                self._count_directives(selection)
                if isinstance(selection, FieldNode):
                    self._count_alias(selection)
                    name = (selection.alias or selection.name).value
                    merged.setdefault(name, []).append((parent, selection))
                elif isinstance(selection, InlineFragmentNode):
                    waiting.append((self._named(selection) or parent, selection.selection_set))
                elif isinstance(selection, FragmentSpreadNode):
                    name = selection.name.value
                    if name not in spread:
                        waiting.extend(self._fragment(name))
                    spread[name] = spread.get(name, 0) + 1
        self._count_repeats(sum(spread.values()), *map(len, merged.values()))
        return merged

    def _fragment(self, name: str) -> Iterable[tuple[GraphQLNamedType | None, SelectionSetNode]]:
        self.reached.add(name)
        if fragment := self.fragments.get(name):
            yield self._named(fragment), fragment.selection_set

    def _named(self, fragment: FragmentDefinitionNode | InlineFragmentNode) -> GraphQLNamedType | None:
        condition = fragment.type_condition
        return self.schema.get_type(condition.name.value) if condition else None

    def _sets(self, members: list[Member]) -> list[tuple[GraphQLNamedType | None, SelectionSetNode]]:
        sets = []
        for parent, node in members:
            if node.selection_set:
                definition = self._field(parent, node)
                sets.append((get_named_type(definition.type) if definition else None, node.selection_set))
        return sets

    def _definition(self, members: list[Member]) -> tuple[GraphQLField | None, FieldNode]:
        """Fields of one response name may stand on different types; the first one that exists speaks for all."""
        for parent, node in members:
            if definition := self._field(parent, node):
                return definition, node
        return None, members[0][1]

    def _field(self, parent: GraphQLNamedType | None, node: FieldNode) -> GraphQLField | None:
        return self.schema.get_field(parent, node.name.value) if is_composite_type(parent) else None

    def _count(self, selections: int) -> None:
        self.selections += selections
        self.limits.refuse("too many fields when its fragments are expanded", self.selections, SELECTIONS)

    def _count_repeats(self, *repeats: int) -> None:
        self.repeats += sum(count * count for count in repeats if count > 1)
        if self.repeats > REPEATS:
            raise CostExceeded("The document selects the same fields too often.")

    def _count_alias(self, node: FieldNode) -> None:
        if node.alias:
            self.aliases += 1
            self.limits.refuse("too many aliases", self.aliases, self.settings.document_aliases)

    def _count_directives(self, node: Any) -> None:
        if node.directives:
            self.directives += len(node.directives)
            self.limits.refuse("too many directives", self.directives, DIRECTIVES)


def _page(definition: GraphQLField, node: FieldNode) -> Page | None:
    if "first" not in definition.args and "last" not in definition.args:
        return None
    return tuple(
        _size(argument.value)
        for argument in node.arguments or ()
        if argument.name.value in {"first", "last"} and not isinstance(argument.value, NullValueNode)
    )


def _size(value: Any) -> int | str:
    if isinstance(value, VariableNode):
        return value.name.value
    # A number of more digits is beyond GraphQL's Int, which validation says better.
    return int(value.value) if isinstance(value, IntValueNode) and len(value.value) <= 10 else PAGE_UNKNOWN


def check_variables(types: Mapping[str, GraphQLInputType], variables: Mapping[str, Any]) -> None:
    """Refuse variables of more values than coercing them is worth. What a custom scalar holds counts as one."""
    waiting = [(variables[name], kind) for name, kind in types.items() if name in variables]
    counted = 0
    while waiting:
        value, declared = waiting.pop()
        kind = get_nullable_type(declared)
        counted += 1 + (len(value) if isinstance(value, list | dict) else 0)
        if counted > VARIABLE_VALUES:
            raise CostExceeded(f"The variables hold too many values; at most {VARIABLE_VALUES} are allowed.")
        if is_list_type(kind) and isinstance(value, list):
            waiting.extend((item, kind.of_type) for item in value)
        elif is_input_object_type(kind) and isinstance(value, dict):
            waiting.extend((value[name], below.type) for name, below in kind.fields.items() if name in value)
