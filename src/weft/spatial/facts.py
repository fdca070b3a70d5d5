"""Facts of machine descriptions: a value, how far to trust it and where it comes from; and the reader of their files.

A leaf of a file is `[value, tag, source]`. A class of sections says which fields there are and of which type, and what
does not fit it is refused with the name of the field and its line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite
from pathlib import Path
from reprlib import Repr
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

import yaml

from weft.diagnostics import nearest
from weft.errors import WeftError

TAGS = ("published", "derived", "assumed")
_WORD, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_short = Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 2, 60, 60


class MachineError(WeftError):
    """A machine description that cannot be used: the message names the field."""


@dataclass(frozen=True)
class Fact:
    """A number of a description, how far to trust it, and where it comes from."""

    value: Any
    tag: str
    source: str


@dataclass(frozen=True)
class Description:
    """What all machines have: a name, a clock, and for each of their facts its tag and source."""

    name: str
    clock_hz: int
    facts: Mapping[str, Fact] = field(repr=False, kw_only=True)

    @property
    def digest(self) -> str:
        """Names the description in reports: any other value gives another."""
        told = sorted((path, repr(fact.value)) for path, fact in self.facts.items())
        return hashlib.sha256(repr(told).encode()).hexdigest()[:8]

    def tagged(self, tag: str) -> list[str]:
        """The fields that have a tag."""
        return [path for path, fact in self.facts.items() if fact.tag == tag]


Machine = TypeVar("Machine", bound=Description)


@dataclass(frozen=True)
class Place:
    """Where a description comes from: its name, and the lines of its fields where it is a file."""

    name: str
    lines: Mapping[str, int] = field(default_factory=dict[str, int])

    def refuse(self, path: str, what: str, hint: str | None = None) -> MachineError:
        """An error about a field, with the line of it or of the section that it should be in."""
        told = path
        while told and told not in self.lines:
            told = told.rpartition(".")[0]
        location = f"{self.name}:{self.lines[told] if told else 1}" if self.lines else None
        return MachineError(f"{self.name}: {what}", location=location, hint=hint)


class _Reader(yaml.SafeLoader):
    """Reads words that look like dates as words: no field is one."""

    yaml_implicit_resolvers: ClassVar[Any] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in cast(Any, yaml).SafeLoader.yaml_implicit_resolvers.items()
    }


def read_tree(path: Path) -> tuple[Any, Place]:
    """What a file says, and on which lines."""
    try:
        reader: Any = _Reader(path.read_text(encoding="utf-8"))
        nodes = reader.get_single_node()
        lines = _lines(nodes, "")
        place = Place(path.name, dict(reversed(lines)))
        _check_nodes(nodes, place.name, set(), set())
        return None if nodes is None else reader.construct_document(nodes), place
    except UnicodeDecodeError as error:
        raise MachineError(f"{path.name} is not text in UTF-8") from error
    except OSError as error:
        raise MachineError(f"{path.name} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise MachineError(
            f"{path.name} is nested too deeply", hint="it has sections, and these have leaves"
        ) from error
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        location = None if mark is None else f"{path.name}:{mark.line + 1}"
        message = f"{path.name} is not YAML: {' '.join(str(error).split())}"
        raise MachineError(message, location=location) from error


def _lines(node: Any, prefix: str) -> list[tuple[str, int]]:
    """The lines of sections and of their leaves."""
    found: list[tuple[str, int]] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in cast("list[tuple[Any, Any]]", node.value):
            path = f"{prefix}{key.value}"
            found += [(path, key.start_mark.line + 1), *([] if prefix else _lines(value, f"{path}."))]
    return found


def _check_nodes(node: Any, name: str, above: set[int], done: set[int]) -> None:
    """Refuse what YAML allows and a description has not: parts of themselves, keys twice, keys that are no words."""
    if id(node) in done or node is None or isinstance(node, yaml.ScalarNode):
        return
    where = f"{name}:{node.start_mark.line + 1}"
    if id(node) in above:
        raise MachineError(f"{name}: what begins on line {node.start_mark.line + 1} contains itself", location=where)
    inner = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        told: dict[str, int] = {}
        for key, value in cast("list[tuple[Any, Any]]", node.value):
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (_WORD, _MERGE):
                raise MachineError(f"{name}: a field has no name", location=f"{name}:{line}", hint="names are words")
            if key.value in told:
                what = f"{name}: the field {key.value} is there twice, on line {told[key.value]} too"
                raise MachineError(what, location=f"{name}:{line}", hint="which of them holds would be a guess")
            told[key.value] = line
            _check_nodes(value, name, inner, done)
    else:
        for each in node.value:
            _check_nodes(each, name, inner, done)
    done.add(id(node))


def read_facts(cls: type[Machine], tree: dict[str, Any], overrides: Mapping[str, Any], place: Place) -> Machine:
    """A description of a class from the fields of a tree, some of them replaced."""
    left = dict(overrides)
    facts: dict[str, Fact] = {}
    made = _section(cls, tree, "", left, facts, place)
    if left:
        path = next(iter(left))
        raise MachineError(f"{place.name} has no field {path!r} to override{nearest(path, facts)}")
    return cls(**made, facts=facts)


def _section(
    cls: type, tree: dict[str, Any], prefix: str, overrides: dict[str, Any], facts: dict[str, Fact], place: Place
) -> dict[str, Any]:
    hints = {each.name: get_type_hints(cls)[each.name] for each in fields(cast(Any, cls)) if each.name != "facts"}
    if unknown := [name for name in tree if name not in hints]:
        what = f"unknown field {prefix}{unknown[0]}{nearest(unknown[0], hints)}"
        raise place.refuse(f"{prefix}{unknown[0]}", what)
    made: dict[str, Any] = {}
    for name, hint in hints.items():
        path = f"{prefix}{name}"
        if name not in tree:
            raise place.refuse(path, f"the field {path} is missing")
        if is_dataclass(hint):
            if not isinstance(tree[name], dict):
                raise place.refuse(path, f"{path} is not a table of fields")
            section: Any = hint
            made[name] = section(**_section(section, tree[name], f"{path}.", overrides, facts, place))
        else:
            facts[path] = _fact(path, tree[name], hint, overrides, place)
            made[name] = facts[path].value
    return made


def _fact(path: str, leaf: Any, hint: type[Any], overrides: dict[str, Any], place: Place) -> Fact:
    parts: list[Any] = cast("list[Any]", leaf) if isinstance(leaf, list) else []
    if len(parts) != 3 or parts[1] not in TAGS or not isinstance(parts[2], str) or not parts[2]:
        form = f"a leaf is [value, tag, source], its tag one of {', '.join(TAGS)}"
        raise place.refuse(path, f"{path} is {_short.repr(leaf)}", form)
    value, tag, source = parts
    if path in overrides:
        value, tag, source = overrides.pop(path), "assumed", "override"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if hint is str:
        good, wanted = isinstance(value, str) and bool(value), "it is a word"
    elif hint is int:
        good, wanted = whole and value > 0, "it is a whole number above 0"
    else:
        good = (whole or isinstance(value, float)) and value > 0 and isfinite(value)
        wanted = "it is a number above 0"
    if not good:
        raise place.refuse(path, f"{path} is {_short.repr(value)}", wanted)
    return Fact(value, tag, source)
