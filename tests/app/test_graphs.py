"""Cycles in what waits for what."""

import itertools
import random

from app.graphs import _path_back


def reaches(needs, start):
    """The plain definition: can one come back to `start`?"""
    seen, waiting = set(), list(needs.get(start, ()))
    while waiting:
        here = waiting.pop()
        if here == start:
            return True
        if here not in seen:
            seen.add(here)
            waiting += needs.get(here, ())
    return False


def test_a_path_is_found_exactly_where_there_is_one():
    """In random graphs: a found path walks along edges from the node back to itself and meets no node twice."""
    chance = random.Random(7)
    found = 0
    for _ in range(2_000):
        nodes = range(chance.randint(1, 9))
        needs = {node: chance.sample(nodes, chance.randint(0, min(2, len(nodes)))) for node in nodes}
        start = chance.choice(nodes)
        path = _path_back(needs, start)

        assert bool(path) == reaches(needs, start)
        if path:
            found += 1
            assert (path[0], path[-1]) == (start, start)
            assert all(there in needs[here] for here, there in itertools.pairwise(path))
            assert len(set(path[1:])) == len(path) - 1
    assert 200 < found < 1_800


def test_the_smallest_cycles():
    """A node that needs itself, two that need each other, and none."""
    assert _path_back({1: [1]}, 1) == [1, 1]
    assert _path_back({1: [2], 2: [1]}, 1) == [1, 2, 1]
    assert _path_back({1: [2], 2: [3], 3: [2]}, 1) == []


def test_a_long_chain_is_no_trouble():
    """Ten thousand in a row, closed and open."""
    chain = {node: [node + 1] for node in range(10_000)}
    assert _path_back(chain, 0) == []
    assert len(_path_back({**chain, 10_000: [0]}, 0)) == 10_002
