"""What is chosen in lowering, passes and backends is chosen by asking, not by trying and catching."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft import errors

SOURCE = Path(errors.__file__).parent
FOLDERS = ("ir", "ops", "lower", "passes", "backends", "targets", "tile", "runtime")
OURS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.WeftError)}
STEERING = OURS | {"Exception", "BaseException"}
ALLOWED = {
    "backends/nvidia/compile.py": "a thread hands its error to the one that waits for it",
    "backends/target.py": "a package that is no target takes no other with it",
    "passes/transform/autocast.py": "an op's own type rule says which dtypes it takes",
    "runtime/cuda/cuda_graphs.py": "what a library does not let be captured is launched",
    "runtime/kept_constants.py": "an entry of the cache that cannot be read is none",
    "runtime/cuda/cubins.py": "PTX that was not assembled ahead is loaded as it is",
    "runtime/tune.py": "a measured candidate that does not compile is no candidate",
    "runtime/tune_device.py": "a measured candidate that does not compile is no candidate",
}
"""Where an error of ours decides what comes next, and why that is no choice of a lowering. Nothing may be added."""


def caught(text: str) -> Iterator[tuple[int, str]]:
    """Handlers that swallow an error of ours: those that raise another on every way are not steering."""
    if "except" not in text and "suppress" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            names = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)} if node.type else {"all"}
            if names & (STEERING | {"all"}) and not isinstance(node.body[-1], ast.Raise):
                yield node.lineno, ", ".join(sorted(names))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            names = {ast.unparse(each) for each in node.args}
            if names & STEERING:
                yield node.lineno, ", ".join(sorted(names))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_error_decides_what_comes_next(folder: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line} catches {names}"
        for path in sorted((SOURCE / folder).rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in ALLOWED
        for line, names in caught(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize("path", ALLOWED)
def test_what_is_allowed_is_there(path: str) -> None:
    assert list(caught((SOURCE / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("try:\n    lower()\nexcept LoweringError:\n    other()", 1),
        ("try:\n    lower()\nexcept (KeyError, WeftError) as error:\n    log(error)\n    other()", 1),
        ("try:\n    lower()\nexcept:\n    other()", 1),
        ("try:\n    lower()\nexcept Exception:\n    other()", 1),
        ("with suppress(LoweringError):\n    lower()", 1),
        ("with contextlib.suppress(Exception):\n    lower()", 1),
        ("try:\n    lower()\nexcept LoweringError as error:\n    raise LoweringError(name) from error", 0),
        ("try:\n    text = read()\nexcept OSError:\n    text = None", 0),
    ],
)
def test_what_counts_as_steering(text: str, count: int) -> None:
    assert len(list(caught(text))) == count
