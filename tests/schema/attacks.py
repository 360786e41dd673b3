"""Requests made to cost the server far more than their sender. `python -m tests.schema.attacks` times them."""

import asyncio
import json
import sys
import time

from graphql import get_introspection_query

from app.errors import AppError
from schema.answers import Answers, Caller, read
from tests.schema import toy

TYPE_REF = "kind name ofType { kind name ofType { kind name ofType { kind name } } }"


def nested(name: str, levels: int, leaf: str) -> str:
    return f"{name} {{ " * levels + leaf + " }" * levels


def amplified(fragments: int) -> str:
    """Each fragment spreads the next one twice: 2 to the power of `fragments` fields."""
    parts = [f"fragment F{i} on Item {{ child {{ ...F{i + 1} }} other {{ ...F{i + 1} }} }}" for i in range(fragments)]
    return "{ item { ...F0 } } " + " ".join(parts) + f" fragment F{fragments} on Item {{ a: number b: number }}"


def repeated_fragments(count: int) -> str:
    fragments = " ".join(f"fragment F{i} on Item {{ number }}" for i in range(count))
    return f"{{ item {{ {spread(range(count))} }} }} {fragments}"


def circular(fragments: int) -> str:
    parts = [f"fragment F{i} on Item {{ child {{ ...F{(i + 1) % fragments} }} }}" for i in range(fragments)]
    return "{ item { ...F0 } } " + " ".join(parts)


def spread(numbers) -> str:
    return " ".join(f"...F{number}" for number in numbers)


def crossed(fragments: int) -> str:
    """Each fragment spreads the five that follow; nothing of it is used by an operation."""
    parts = [
        f"fragment F{i} on Item {{ child {{ number {spread(range(i + 1, min(i + 6, fragments)))} }} }}"
        for i in range(fragments)
    ]
    return "{ hello } " + " ".join(parts)


WIDE = ("child", "other", "children")

DOCUMENTS = {
    "3,000 levels": "{ " + nested("item", 3_000, "number") + " }",
    "13 levels": "{ item { " + nested("child", 11, "number") + " } }",
    "13 levels through fragments": "{ item { ...A } } fragment A on Item { "
    + nested("child", 6, "...B")
    + " } fragment B on Item { "
    + nested("child", 6, "number")
    + " }",
    "2,000 aliases": "{ " + " ".join(f"a{i}: hello" for i in range(2_000)) + " }",
    "31 aliases": "{ item { " + " ".join(f"a{i}: number" for i in range(31)) + " } }",
    "aliases multiplied by fragments": amplified(9),
    "fragments multiplied without end": amplified(40),
    "3 to the power of 9 fields": "{ item { ...F0 } } "
    + " ".join(f"fragment F{i} on Item {{ {' '.join(f'{n} {{ ...F{i + 1} }}' for n in WIDE)} }}" for i in range(9))
    + " fragment F9 on Item { number }",
    "one field 1,900 times": "{ " + "hello " * 1_900 + "}",
    "one object 480 times": "{ " + "item { number } " * 480 + "}",
    "400 overlapping fragments": repeated_fragments(400),
    "200 overlapping fragments": repeated_fragments(200),
    "circular fragments": circular(40),
    "a fragment that spreads itself": "{ item { ...A } } fragment A on Item { child { ...A } }",
    "fragments crossed and unused": crossed(60),
    "a chain of fragments, spread 190 times each": (
        "{ item { " + "...A " * 190 + "} } fragment A on Item { " + "...B " * 190 + "} "
        "fragment B on Item { " + "...C " * 190 + "} fragment C on Item { number }"
    ),
    "21 root fields": "{ " + " ".join(f"a{i}: hello" for i in range(21)) + " }",
    "200,000 comments": "#\n" * 200_000 + "{ hello }",
    "30,000 comments": "#\n" * 30_000 + "{ hello }",
    "a long document": "{ hello(name: " + json.dumps("x" * 70_000) + ") }",
    "too many tokens": "{ echo(value: [" + "1 " * 2_000 + "]) }",
    "51 directives": "{ hello " + "@include(if: true) " * 51 + "}",
    "introspection in depth": "{ __schema { types { "
    + nested("fields { type", 5, TYPE_REF).replace("}", "} }", 5)
    + " } } }",
    "introspection in lists": "{ __schema { types { fields { type { fields { name } } } } } }",
    "introspection again and again": "{ "
    + " ".join(f"a{i}: __schema {{ types {{ fields {{ args {{ type {{ {TYPE_REF} }} }} }} }} }}" for i in range(20))
    + " }",
    "pages in pages": "{ items(first: 100) { nodes { items(first: 1000) { nodes { number } } } } }",
    "lists in lists": "{ item { " + nested("children", 6, "number") + " } }",
}

VARIABLES = {
    "400,000 values": ("query ($l: [Leaf!]!) { sum(leaves: $l) }", {"l": [0] * 400_000}),
    "21,000 objects": ("query ($l: [Leaf!]!) { sum(leaves: $l) }", {"l": [{"number": 1}] * 21_000}),
    "60,000 unknown names": (
        "query ($l: [Leaf!]!) { sum(leaves: $l) }",
        {"l": [{f"n{number}": number for number in range(60_000)}]},
    ),
    "pages by variable": (
        "query ($n: Int) { items(first: $n) { nodes { items(last: $n) { nodes { number } } } } }",
        {"n": 1_000},
    ),
}

WELCOME = {
    "introspection": get_introspection_query(specified_by_url=True, input_value_deprecation=True),
    "introspection of GraphiQL": get_introspection_query(
        descriptions=True, directive_is_repeatable=True, schema_description=True, input_value_deprecation=True
    ),
    "12 levels": "{ item { " + nested("child", 10, "number") + " } }",
    "30 aliases": "{ item { " + " ".join(f"a{i}: number" for i in range(30)) + " } }",
    "60 fragments on one object": repeated_fragments(60),
    "a page of pages": "{ items(first: 50) { nodes { items(first: 20) { nodes { number } } } } }",
}


def measure() -> None:
    one = toy.Toy()
    principal = toy.Principal(kind=toy.PrincipalKind.USER, id=toy.UUID(int=1), name="toy")
    answers = Answers(toy.schema(), toy.Settings(), one.make_context, None)

    def answered(query, variables=None):
        request = read({"query": query, "variables": variables})
        try:
            operation = answers.prepare(request, principal)
        except AppError as error:
            return error.message
        return asyncio.run(answers.answer(operation, request, Caller(principal, "-"))).body[:100].decode()

    documents = {name: (document, None) for name, document in {**DOCUMENTS, **WELCOME}.items()}
    for name, request in {**documents, **VARIABLES}.items():
        started = time.process_time()
        message = answered(*request)
        spent = (time.process_time() - started) * 1_000
        sys.stdout.write(f"{name:36} {spent:8.1f} ms  {message[:110]}\n")


if __name__ == "__main__":
    measure()
