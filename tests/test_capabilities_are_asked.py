"""Code asks what a machine can do, never which one it is; only targets and their matmul units know architectures."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft

SOURCE = Path(weft.__file__).parent
ASKED = re.compile(
    r"\bis_gpu\b|\bhas_wgmma\b|\btensor_cores ?=|[\"']sm_\d|\bconfig\.target ==|\btarget == [\"']"
    r"|\.arch (?:==|!=|<|>|<=|>=|in|not) |\.arch\.(?:starts|ends)with"
)
"""Ways to ask for a machine by its kind, its architecture or its name."""
TARGETS = ("targets/", "backends/nvidia/target.py", "backends/nvidia/driver/")
ALLOWED = {
    "backends/target.py": "finds the target that was named",
    "tools/opt/opt.py": "a command's option says for which target to print",
    "triton/language/target_info.py": "Triton's own questions, which kernels ask",
}
"""What else names machines, and why. Nothing may be added: `weft.capabilities` says what they can do."""


def asking(text: str) -> Iterator[tuple[int, str]]:
    """The lines of code that ask, without comments and docstrings."""
    if not ASKED.search(text):
        return
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.line.lstrip()[:1] in "\"'"):
            for number in range(token.start[0], token.end[0] + 1):
                start = token.start[1] if number == token.start[0] else 0
                end = token.end[1] if number == token.end[0] else len(lines[number - 1])
                line = lines[number - 1]
                lines[number - 1] = line[:start] + " " * (end - start) + line[end:]
    yield from ((number, line.strip()) for number, line in enumerate(lines, 1) if ASKED.search(line))


FOLDERS = sorted(
    path.name for path in SOURCE.iterdir() if path.is_dir() and path.name not in ("testing", "__pycache__")
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_asks_for_a_kind_of_machine(folder: str) -> None:
    found = [
        f"{name}:{line}: {text}"
        for path in sorted((SOURCE / folder).rglob("*.py"))
        if not (name := str(path.relative_to(SOURCE))).startswith(TARGETS) and name not in ALLOWED
        for line, text in asking(path.read_text(encoding="utf-8"))
    ]
    assert not found, "`weft.capabilities` says what a machine can do"


@pytest.mark.parametrize("name", [*ALLOWED, "backends/nvidia/target.py"])
def test_what_may_ask_does(name: str) -> None:
    assert list(asking((SOURCE / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("if machine.is_gpu:\n    pass", 1),
        ("if target.has_wgmma and k:\n    pass", 1),
        ("claim(tensor_cores=True)", 1),
        ("wide = arch == 'sm_90a'", 1),
        ("if target.arch >= minimum:\n    pass", 1),
        ("if config.target == name:\n    pass", 1),
        ("x = 1  # is_gpu was here", 0),
        ('"""What is_gpu was."""\nx = 1', 0),
        ("if machine.capabilities.matrix_units:\n    pass", 0),
    ],
)
def test_what_counts_as_asking(text: str, count: int) -> None:
    assert len(list(asking(text))) == count
