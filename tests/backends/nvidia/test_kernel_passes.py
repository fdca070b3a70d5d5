"""Kernel passes: what is listed is what runs, alternatives are tried in order, and what is refused is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.nvidia.compile import annotate as annotate_by
from weft.backends.nvidia.ir.dialect import WARPS, integer, set_integer
from weft.backends.nvidia.ir.kernel_passes import (
    Alternative,
    FirstThatMatches,
    KernelPass,
    Match,
    PassNote,
    Refused,
    run_passes,
)
from weft.backends.nvidia.ir.trace_passes import PassTrace
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.target import NvidiaTarget, target_named
from weft.errors import LoweringError
from weft.frontends.triton.listings.device_listing import device_listing_of
from weft.tile import dialect as tile
from weft.tools.explain.explain import explain_program

from .product_kernels import of_many, product
from .row_kernels import planned, row_kernel

TARGET = target_named("sm_90a")
SOFTMAX = """\
"graph.func"() ({
^bb0(%x: tensor<6x33xf32>):
  %m = "graph.max"(%x) {dims = [1 : i64], keep = true} : (tensor<6x33xf32>) -> tensor<6x1xf32>
  %d = "graph.sub"(%x, %m) : (tensor<6x33xf32>, tensor<6x1xf32>) -> tensor<6x33xf32>
  "graph.return"(%d) : (tensor<6x33xf32>) -> ()
}) {sym_name = "shifted"} : () -> ()
"""


def agrees(passes: Sequence[KernelPass], notes: list[PassNote], inside: tuple[str, ...] = ()) -> None:
    """Take the notes of a list of passes off, and see that they are those of all of it, in its order."""
    for each in passes:
        note = notes.pop(0)
        assert (note.name, note.inside) == (each.name, inside)
        if isinstance(each, FirstThatMatches):
            assert note.refused is None
            for alternative in each.alternatives:
                note = notes.pop(0)
                place = (*inside, each.name, alternative.name)
                assert (note.name, note.inside) == (alternative.name, place[:-1])
                if note.refused is None:
                    agrees(alternative.passes, notes, place)
                    break
                began = [alternative.passes[number].name for number in range(len(alternative.passes))]
                while notes and notes[0].inside[: len(place)] == place:
                    tried = notes.pop(0)
                    assert tried.inside != place or tried.name == began.pop(0)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def log_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1)


def few_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w.mT


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide = x.float()
    return (wide * wide.mean(-1, keepdim=True)).to(x.dtype), wide.sum(0)


def rows_of_sums(*shape: int) -> tile.KernelOp:
    """The kernel of rows whose columns are summed up, beside the one that adds up what its programs have."""
    (kernel,) = [kernel for name, kernel in planned(scaled, shape).kernels.items() if name.endswith("_rows")]
    return kernel


KERNELS: dict[str, Callable[[], tile.KernelOp]] = {
    "TMA brings rows of programs that stay": lambda: rows_of_sums(8192, 4096),
    "TMA brings rows": lambda: row_kernel(softmax, (8192, 32767)),
    "TMA brings rows once for several loops": lambda: row_kernel(softmax, (4096, 32768)),
    "TMA brings blocks of rows": lambda: row_kernel(log_sum, (8192, 128256)),
    "TMA brings weights": lambda: row_kernel(few_rows, (8, 4096), (14336, 4096)),
    "TMA brings operands of wgmma": lambda: row_kernel(linear, (4096, 4096), (4096, 4096)),
    "threads load what they need": lambda: row_kernel(softmax, (64, 128)),
}


@pytest.mark.parametrize(
    ("arch", "taken"), [("sm_80", "threads load what they need"), *(("sm_90a", k) for k in KERNELS)]
)
def test_the_listed_passes_are_those_that_run(arch: str, taken: str) -> None:
    passes, notes = nvidia_kernel_passes(), list[PassNote]()
    annotate_by(KERNELS[taken](), target_named(arch), passes, notes)
    ways = [note for note in notes if note.inside == ("choose_copies",)]
    assert all(note.refused for note in ways[:-1]) and ways[-1] == PassNote(taken, ("choose_copies",))
    agrees(passes, notes)
    assert not notes


@triton.jit
def turned(p, x, out, N: tl.constexpr):
    places = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + places, tl.dot(tl.trans(tl.load(p + places).to(tl.bfloat16)), tl.load(x + places)))


def zeros(dtype: Any, count: int, side: int) -> list[np.ndarray]:
    """Matrices apart from each other: what is written must be nothing that is copied."""
    return [np.zeros((side, side), dtype) for _ in range(count)]


SIDES = {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4}
LANGUAGE: dict[str, tuple[Any, Sequence[Any], dict[str, Any]]] = {
    "TMA brings operands of wgmma": (
        product,
        [*zeros(np.float16, 3, 256), *[256] * 6],
        {"ta": 0, "END": "mask", "MASKED": 1, "BM": 128, "BN": 128, "BK": 64, "num_warps": 8},
    ),
    "threads copy operands of wgmma (cp.async)": (
        of_many,
        [np.zeros(3, np.int64), np.zeros(1, np.int32), 1],
        {"TILES": 5, **SIDES},
    ),
    "threads stage operands of wgmma in shared memory": (
        turned,
        [*zeros(np.float32, 1, 64), *zeros(bfloat16, 1, 64), *zeros(np.float32, 1, 64)],
        {"N": 64, "num_warps": 4},
    ),
}


@pytest.mark.parametrize("taken", LANGUAGE)
def test_kernels_of_the_language_go_the_same_way(taken: str) -> None:
    function, arguments, options = LANGUAGE[taken]
    notes = list(device_listing_of(function, arguments, options, TARGET)[0].passes)
    assert PassNote(taken, ("choose_copies",)) in notes
    agrees(nvidia_kernel_passes(), notes)
    assert not notes


def test_each_way_is_taken_by_a_kernel_here() -> None:
    (copies,) = (each for each in nvidia_kernel_passes() if isinstance(each, FirstThatMatches))
    assert {each.name for each in copies.alternatives} == {*KERNELS, *LANGUAGE}


def test_the_report_says_why_alternatives_were_not_taken() -> None:
    explanation = explain_program(SOFTMAX, "text", programs=False, target=TARGET)
    (record,) = explanation.records
    (notes,) = record.kernel_passes.values()
    agrees(nvidia_kernel_passes(), list(notes))
    figures = explanation.figures()["graphs"][0]["kernel_passes"]
    (said,) = figures.values()
    assert {"name": "mark_unaligned", "inside": (), "refused": notes[6].refused} in said
    report = str(explanation)
    assert "Alternatives of kernels" in report and "it has no dot of tiles" in report
    assert "threads load what they need" in report


def test_passes_are_frozen_and_say_what_they_do() -> None:
    names: dict[str, type[KernelPass]] = {}
    for each in (each for listed in nvidia_kernel_passes() for each in listed.passes):
        assert names.setdefault(each.name, type(each)) is type(each)
        assert "→" in (type(each).__doc__ or ""), each.name
        for option in fields(each):  # type: ignore[arg-type]
            with pytest.raises(AttributeError):
                setattr(each, option.name, None)
    assert len(names) >= 25


@dataclass(frozen=True)
class SetWarps(KernelPass):
    """A kernel     →     the same with so many warps, if these are even."""

    name: ClassVar[str] = "set_warps"
    decides: ClassVar[bool] = True
    warps: int = 1
    least: int = 0

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        return True if self.warps % 2 == 0 else Refused(f"{self.warps} is odd")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Refused | None:
        set_integer(kernel, WARPS, self.warps)
        return None if self.warps >= self.least else Refused(f"{self.warps} are too few", hint="take more")


def choice(*warps: tuple[int, int]) -> FirstThatMatches:
    made = (Alternative(f"{count} warps", (SetWarps(count, least),)) for count, least in warps)
    return FirstThatMatches("warps", tuple(made))


def test_an_alternative_that_is_refused_leaves_nothing() -> None:
    kernel, notes = row_kernel(softmax, (64, 128)), list[PassNote]()
    text = str(kernel)
    listed = choice((3, 0), (2, 4), (8, 4), (16, 0))
    assert run_passes(kernel, [listed], TARGET, notes) is None
    assert integer(kernel, WARPS) == 8 and str(kernel).replace(", nvidia.warps = 8 : i64", "") == text
    assert list(map(str, notes)) == [
        "warps",
        "  3 warps: no, 3 is odd",
        "  2 warps: no, 2 are too few",
        "    set_warps: no, 2 are too few",
        "  8 warps",
        "    set_warps",
    ]
    kernel.verify()


def test_a_trace_has_the_kernel_after_each_pass_that_was_taken() -> None:
    kernel, notes, trace = row_kernel(softmax, (64, 128)), list[PassNote](), PassTrace()
    listed = choice((2, 4), (8, 4), (16, 0))
    made = kernel.clone()
    assert run_passes(made, trace.watch([SetWarps(4), listed]), TARGET, notes) is None
    plain, same = kernel.clone(), list[PassNote]()
    assert run_passes(plain, [SetWarps(4), listed], TARGET, same) is None
    assert str(plain) == str(made) and same == notes
    steps = trace.steps_of(kernel.sym_name.data, notes)
    found = [(step.name, step.inside, integer(step.kernel, WARPS)) for step in steps]
    assert found == [("set_warps", (), 4), ("set_warps", ("warps", "8 warps"), 8), ("warps", (), 8)]
    assert [number for number, _, _ in trace.changes_of(kernel, notes)] == [1, 2]
    assert not trace.steps_of("another", notes)


def test_where_nothing_fits_the_last_reason_is_the_error() -> None:
    kernel = row_kernel(softmax, (64, 128))
    with pytest.raises(LoweringError, match="2 are too few") as caught:
        annotate_by(kernel, TARGET, [choice((3, 0), (2, 4))])
    assert caught.value.hint == "take more"


def test_what_has_a_launch_is_left_as_it_is() -> None:
    passes, notes = nvidia_kernel_passes(), list[PassNote]()
    kernel, launch = annotate_by(row_kernel(softmax, (4096, 32768)), TARGET, passes)
    again, same = annotate_by(kernel, TARGET, passes, notes)
    assert not notes and same == launch and str(again) == str(kernel)
