"""Which subscriptions can be answered once for many: those that select nothing in which it matters who asks."""

import strawberry
from graphql import (
    DocumentNode,
    FieldNode,
    GraphQLSchema,
    TypeInfo,
    TypeInfoVisitor,
    VariableNode,
    Visitor,
    visit,
)
from strawberry.schema_directive import Location

CURSOR = "after"  # the argument that says where a subscriber's own part ends


@strawberry.schema_directive(
    locations=[Location.OBJECT, Location.INTERFACE, Location.FIELD_DEFINITION],
    name="shared",
    description="The same for everybody who may read it. A subscription that selects nothing else is executed once "
    "for all who follow the same stream by the same document.",
)
class Shared:
    pass


class Sharing(Visitor):
    """One look through a valid document: whether it may be shared, and which variable holds only a cursor."""

    def __init__(self, schema: GraphQLSchema, document: DocumentNode) -> None:
        super().__init__()
        self._types = TypeInfo(schema)
        self._uses: dict[str, int] = {}
        self._cursors: set[str] = set()
        self.possible = True
        visit(document, TypeInfoVisitor(self._types, self))

    def cursor_variable(self) -> str | None:
        """Its value is of no consequence for what is told of one batch."""
        only = [name for name in self._cursors if self._uses[name] == 1]
        return only[0] if only else None

    def enter_field(self, node: FieldNode, *_: object) -> None:
        parent, definition = self._types.get_parent_type(), self._types.get_field_def()
        if node.name.value == "__typename":
            return
        if not (_marked(parent) or _marked(definition)):
            self.possible = False
        for argument in node.arguments or ():
            if argument.name.value == CURSOR and isinstance(argument.value, VariableNode):
                self._cursors.add(argument.value.name.value)

    def enter_variable(self, node: VariableNode, _key: object, parent: object, *_: object) -> None:
        if getattr(parent, "kind", "") != "variable_definition":
            self._uses[node.name.value] = self._uses.get(node.name.value, 0) + 1


def _marked(definition: object) -> bool:
    extensions = getattr(definition, "extensions", None) or {}
    known = extensions.get("strawberry-definition")
    return any(isinstance(one, Shared) for one in getattr(known, "directives", None) or ())
