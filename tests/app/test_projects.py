"""Projects as rows of an earlier version left them."""

from app import projects


def test_settings_that_are_younger_than_a_row_have_their_default():
    """A project of an earlier version reads as if it had been asked."""
    assert projects.ProjectSettings.stored({"concurrency": 7}) == projects.ProjectSettings(concurrency=7)
