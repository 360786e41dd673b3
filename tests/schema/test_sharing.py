"""Sharing: what one look through a document says about who may be answered together."""

import pytest
from graphql import build_schema, parse

from schema.sharing import Sharing

SCHEMA = build_schema("""
  type Query { x: Int }
  type Subscription { live(after: String, since: String): Live }
  type Live { seen(since: String): Int }
""")


@pytest.mark.parametrize(
    ("fields", "cursor_variable"),
    [
        ("live(after: $from) { seen }", "from"),
        ("live(since: $from) { seen }", None),
        ("live(after: $from) { seen(since: $from) }", None),
        ("live(after: $from, since: $from) { seen }", None),
        ("live(after: $from) { ... Part } } fragment Part on Live { seen(since: $from)", None),
    ],
)
def test_a_cursor_is_of_no_consequence_where_it_is_nothing_else(fields, cursor_variable):
    """A variable that says where to begin and is used for something else as well tells two subscribers apart."""
    document = parse("subscription($from: String) { " + fields + " }")
    assert Sharing(SCHEMA, document).cursor_variable() == cursor_variable
