"""The commands of `weft cache` and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.tools.commands.options import Json
from weft.tools.terminal import Terminal

cache = typer.Typer(help="The disk cache of compiled programs.", no_args_is_help=True)


@cache.command("list")
def cache_list(json: Json = False) -> None:
    """List the programs, the most recently used first."""
    from weft.tools.cache import list_entries

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        list_entries(terminal)


@cache.command("clear")
def cache_clear(json: Json = False) -> None:
    """Remove all programs."""
    from weft.tools.cache import clear

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        clear(terminal)


@cache.command("verify")
def cache_verify(
    fix: Annotated[bool, typer.Option("--fix", help="Remove the bad ones.")] = False, json: Json = False
) -> None:
    """Check every byte of every program."""
    from weft.tools.cache import verify

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        verify(terminal, fix=fix)
