"""`python -m weft.triton script.py arguments`: run a script that says `import triton` with Weft as Triton.

`python -m weft.triton -m package.module arguments` runs a module.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from weft.frontends.triton.enable import enable

_USAGE = "usage: python -m weft.triton script.py [arguments]   or   python -m weft.triton -m module [arguments]"


def main(arguments: list[str]) -> None:
    """Run what the arguments name, as Python itself would."""
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        enable()
        sys.argv = arguments[1:]
        sys.path[:0] = [str(Path.cwd())]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not arguments or arguments[0].startswith("-"):
        asked = arguments[:1] in (["-h"], ["--help"])
        print(_USAGE, file=sys.stdout if asked else sys.stderr)
        raise SystemExit(0 if asked else 2)
    script = Path(arguments[0])
    if not script.is_file():
        print(f"weft: there is no script {script}", file=sys.stderr)
        raise SystemExit(2)
    enable()
    sys.argv = arguments
    sys.path[:0] = [str(script.resolve().parent)]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
