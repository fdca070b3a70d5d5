"""How commands end: usage errors are JSON too with `--json`, and a typo is not handed to a script as its argument."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from weft.tools.terminal import Terminal, UsageError

_LIKE = 0.75
# Typer brings click along under a name of its own, or takes the one that is installed.
_Refused: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")


class Commands(TyperGroup):
    """All commands: what is wrong with a command line is said as any other error is."""

    def main(self, args: Sequence[str] | None = None, *given: Any, standalone_mode: bool = True, **named: Any) -> Any:
        terminal = Terminal(json="--json" in own_arguments(sys.argv[1:] if args is None else args))
        plain = standalone_mode and not terminal.json
        try:
            with terminal.reporting_errors():
                try:
                    code = super().main(args, *given, standalone_mode=plain, **named)
                except _Refused as error:
                    if not standalone_mode:
                        raise
                    told: Any = error
                    raise UsageError(told.format_message()) from error
        except typer.Exit as stopped:
            code = stopped.exit_code
        if not standalone_mode:
            return code
        sys.exit(code)


class ScriptCommand(TyperCommand):
    """A command that takes a script and its arguments: an option that is almost one of the command's is a typo."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        for word in own_arguments(args):
            option = word.partition("=")[0]
            if not option.startswith("--") or option in known or option == "--help":
                continue
            close = [name for name in known if _is_like(option[2:], name[2:])]
            if close:
                raise UsageError(
                    f"there is no option {option} (did you mean {close[0]}?)",
                    hint=f"if the script takes {option}, put -- before its arguments",
                )
        return super().parse_args(ctx, args)


def own_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before `--`: what stands behind it is a script's."""
    return arguments[: list(arguments).index("--")] if "--" in arguments else arguments


def _is_like(given: str, name: str) -> bool:
    begun = len(given) > 1 and name.startswith(given)
    return begun or difflib.SequenceMatcher(None, given, name).ratio() >= _LIKE
