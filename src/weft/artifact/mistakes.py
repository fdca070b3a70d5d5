"""Mistakes in data that a model looks for as it runs: kinds of them, and the errors that callers get."""

from __future__ import annotations

from weft.errors import CountError, DataError, DivisionError, PlaceError, PowerError, WeftError

KINDS: dict[str, type[WeftError]] = {
    "place": PlaceError,
    "division": DivisionError,
    "count": CountError,
    "power": PowerError,
    "data": DataError,
}
"""By the names that front ends and manifests have for them."""


def mistake(name: str, kind: str, message: str) -> WeftError:
    """The error of a model that has found something."""
    return KINDS[kind](f"{name}: {message}")


def unknown_mistake(name: str, number: int) -> WeftError:
    """The error of a number that stands for none of a model's mistakes."""
    return DataError(f"{name} has found its data to be wrong: check number {number}")
