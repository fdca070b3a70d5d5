"""What lowering knows of the machine that kernels are scheduled for; pipelines hand it down."""

from __future__ import annotations

from dataclasses import dataclass

from weft.capabilities import PROCESSOR, Capabilities


@dataclass(frozen=True)
class Machine:
    """What the target can do, and the sizes that schedules are chosen by.

    Where programs are thread blocks, tiles lie spread over the registers of their threads, and `gpu_schedule` has the
    rules. Else a program is a loop nest of one thread, its tiles lie in the first-level cache, and `schedule` has them.
    """

    tile_elements: int = 4096
    """Elements of a tile that every iteration works on."""
    row_elements: int = 16384
    """The longest row that is held from its reduction to its use."""
    lanes: int = 64
    """Rows that are reduced, or scanned, side by side."""
    product_rows: int = 0
    """Rows of the blocks that matmuls have in registers, where blocks of memory are chosen for many cores by them."""
    multiprocessors: int = 0
    """How many units run thread blocks."""
    capabilities: Capabilities = PROCESSOR


CPU = Machine()


def gpu_machine(multiprocessors: int = 132, *, clusters: bool = True) -> Machine:
    """A GPU of so many multiprocessors, of 65,536 registers of 32 bits each; those with `clusters` of
    blocks hold longer rows, and have TMA."""
    return machine_of(gpu_capabilities(clusters=clusters), multiprocessors)


def gpu_capabilities(*, clusters: bool, fast_matmuls: bool = False) -> Capabilities:
    """What a GPU can do that runs thread blocks, and those with `clusters` of them with TMA."""
    return Capabilities(
        own_memory=True,
        thread_blocks=True,
        clusters=clusters,
        unordered_stores=True,
        matrix_units=True,
        fast_matmuls=fast_matmuls,
        streamed_weights=True,
        async_copies=True,
        bulk_copies=clusters,
        library_first=True,
    )


def machine_of(capabilities: Capabilities, multiprocessors: int) -> Machine:
    """A machine of thread blocks, with so many units that run them."""
    row = 131072 if capabilities.clusters else 32768
    return Machine(4096, row, 128, multiprocessors=multiprocessors, capabilities=capabilities)
