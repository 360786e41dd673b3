"""Changes of files, and the agent's own record of its session, as clients see them."""

import strawberry

from app.enums import FileChangeKind
from resolvers import files as resolve
from schema.fields import described, field
from schema.rules import reached

described(FileChangeKind, "What became of a file.")


@reached("How a file is another one than before.", shared=True)
class FileChange:
    path = field(resolve.path_of, str, "Its path in the repository.")
    previous_path = field(resolve.previous_path_of, str | None, "Its path before it was renamed.")
    kind = field(resolve.kind_of, FileChangeKind, "What became of it.")
    additions = field(resolve.additions_of, int, "Lines that are new.")
    deletions = field(resolve.deletions_of, int, "Lines that are gone.")
    diff = field(
        resolve.diff_of,
        str,
        "Unified diff as git writes it; never cut: a very large one is loaded when this field is asked for.",
    )
    size_bytes = field(resolve.size_of, int, "Its size afterwards.")
    binary = field(resolve.is_binary, bool, "Whether it is not text.")


@reached("The agent's own record of its session.")
class Transcript:
    session_id: str = strawberry.field(description="By which the session can be resumed.")
    size_bytes = field(resolve.size_of_transcript, int, "Its size.")
    jsonl = field(resolve.lines_of_transcript, str, "One JSON object a line; loaded when this field is asked for.")
