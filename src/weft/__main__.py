"""The entry point `weft`, and `python -m weft` where the script is not installed.

A plain `weft run` does not wait for the import of all other commands: it starts processes that give one result.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        from weft.tools.commands.run_command_line import parse_run, run

        if (asked := parse_run(words[1:])) is not None:
            run(asked)
    from weft.tools.cli import main as all_commands

    all_commands()


if __name__ == "__main__":
    main()
