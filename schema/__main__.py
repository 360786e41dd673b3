"""`python -m schema`: print the contract as SDL, write it to schema/schema.graphql, or check that it is there."""

import difflib
import sys
from pathlib import Path

import schema

FILE = Path(__file__).parent / "schema.graphql"


def main(arguments: list[str]) -> int:
    exported = schema.build().as_str() + "\n"
    if arguments == ["--write"]:
        FILE.write_text(exported)
    elif arguments == ["--check"]:
        stored = FILE.read_text()
        old, new = stored.splitlines(keepends=True), exported.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(old, new, "stored", "built"))
        if stored != exported:
            print("schema/schema.graphql is not what the code exports. Write it anew with `make sdl`.", file=sys.stderr)
            return 1
    else:
        sys.stdout.write(exported)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
