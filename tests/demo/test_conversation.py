"""Reading a request: whose words are whose, and what the real API would refuse."""

import pytest

from demo.conversation import Malformed, Reply, Result, read

REQUEST = {"model": "claude-sonnet-4-5", "max_tokens": 100}


def user(*content):
    return {"role": "user", "content": [{"type": "text", "text": text} for text in content]}


def uses(*ids):
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": name, "name": "Bash", "input": {}} for name in ids],
    }


def results(**texts):
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in texts.items()],
    }


def conversation(*messages, **more):
    return read({**REQUEST, "messages": list(messages), **more})


def test_task_is_what_the_person_wrote():
    """What the agent's program adds to the first message is no part of the task."""
    added = "<system-reminder>\nAvailable agents: [[crash]]\n</system-reminder>"
    assert conversation(user(added, "Compute C(50,25)", added)).task == "Compute C(50,25)"


def test_one_reply_for_each_answer():
    """A reply has the results and the prompt that came before the next answer, in order."""
    seen = conversation(
        user("Do it"), uses("a", "b"), results(a="1", b="2"), {"role": "assistant", "content": "Done"}, user("Again")
    )
    assert seen.replies == (
        Reply(results=(Result("1", failed=False), Result("2", failed=False))),
        Reply(prompt="Again"),
    )


@pytest.mark.parametrize("role", ["user", "system"])
def test_message_during_the_turn_is_heard(role):
    """What a person says while the agent works is told apart from the tool's output, wherever the program puts it."""
    note = "The user sent a new message while you were working:\nStop,\nplease\n\nThis is how Claude Code says it."
    asides = {
        "user": [results(a=f"out\n\n<system-reminder>\n{note}\n</system-reminder>")],
        "system": [results(a="out"), {"role": "system", "content": note}],
    }
    [reply] = conversation(user("Do it"), uses("a"), *asides[role]).replies
    assert reply.output == "out"
    assert reply.heard == ("Stop,\nplease",)


def test_what_the_program_fills_in_is_nobodys():
    """The answer that stands for the model after a resume, and the note of an interruption, are skipped."""
    filled = {"role": "assistant", "content": [{"type": "text", "text": "No response requested."}]}
    [reply] = conversation(
        user("Do it"), uses("a"), results(a="1"), user("[Request interrupted by user]"), filled, user("Go on")
    ).replies
    assert reply == Reply(results=(Result("1", failed=False),), prompt="Go on")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "assistant", "content": "I begin"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": [{"text": "no type"}]}],
        ["text"],
        [user("Do it"), uses("a")],
        [user("Do it"), uses("a", "b"), results(a="1")],
        [user("Do it"), uses("a"), {"role": "assistant", "content": "on"}, results(a="1")],
        [user("Do it"), results(a="1")],
    ],
)
def test_refuses_what_the_real_one_refuses(messages):
    """Messages without shape, and tool calls without their results, are malformed."""
    with pytest.raises(Malformed):
        conversation(*messages)


@pytest.mark.parametrize("change", [{"model": ""}, {"model": 1}, {"max_tokens": 0}, {"max_tokens": "many"}])
def test_refuses_missing_fields(change):
    """The fields that every request must have are demanded."""
    with pytest.raises(Malformed):
        conversation(user("Do it"), **change)
    with pytest.raises(Malformed):
        read([])
