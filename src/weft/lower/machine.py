"""What lowering knows of the machine that kernels are scheduled for; pipelines hand it down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The sizes that schedules are chosen by.

    With `multiprocessors` it is a GPU: a program is one block of threads, its tiles lie spread over the registers of
    these, and `gpu_schedule` has the rules. Without, a program is a loop nest of one thread, its tiles lie in the
    first-level cache, and `schedule` has them.
    """

    tile_elements: int = 4096
    """Elements of a tile that every turn works on."""
    row_elements: int = 16384
    """The longest row that is held from its reduction to its use."""
    lanes: int = 64
    """Rows that are reduced, or scanned, side by side."""
    product_rows: int = 0
    """Rows of the blocks that products have in registers, where blocks of memory are chosen for many cores by them."""
    multiprocessors: int = 0
    brings_rows: bool = False
    """Whether a copy engine brings pieces of rows to where threads share them."""

    @property
    def is_gpu(self) -> bool:
        return self.multiprocessors > 0


CPU = Machine()


def gpu_machine(multiprocessors: int = 132, *, clusters: bool = True) -> Machine:
    """A GPU of so many multiprocessors, of 65,536 registers of 32 bits each; those with `clusters` of
    blocks hold longer rows, and have a copy engine."""
    row = 131072 if clusters else 32768
    return Machine(
        tile_elements=4096, row_elements=row, lanes=128, multiprocessors=multiprocessors, brings_rows=clusters
    )
