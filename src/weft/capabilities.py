"""What a target can do: what passes, lowerings and front ends ask, so that none of them asks for a target by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capabilities:
    """Facts about a target that change which code is made for it, or who makes it.

    The defaults are those of a processor: one thread runs a program, and tiles of any size lie in memory near it.
    """

    dynamic_sizes: bool = True
    """Sizes may be symbols, whose values are known when the program is called."""
    matmul_tile: tuple[int, int, int] | None = None
    """BM, BN and BK of the one tile that products are made of; None where tiles are chosen for each product."""

    own_memory: bool = False
    """Arrays lie in memory of the device's own; the host goes on while it works, and hears later what was wrong."""

    # Who runs a program.
    thread_blocks: bool = False
    """A program is a block of threads, which its tiles are spread over; else it is a loop nest of one thread."""
    clusters: bool = False
    """Thread blocks work in clusters, whose shared memory all of them reach."""
    unordered_stores: bool = False
    """Programs store at the same time: which of two values for one place stays is not said."""

    # Products.
    matrix_units: bool = False
    """Matrix units multiply fragments of tiles, of operands that are as narrow as the program's."""
    fast_matmuls: bool = False
    """Generated kernels keep the matrix units as busy as a vendor's library does, with what follows in one kernel."""
    streamed_weights: bool = False
    """Products read weights where they lie: those that are chosen for a row, and codes, widened in registers."""

    # Copies.
    async_copies: bool = False
    """Copies run ahead of the loop that reads them."""
    bulk_copies: bool = False
    """A unit of its own (TMA) copies whole tiles, and rows of any length, to where threads share them."""

    # Libraries.
    library_matrix_tiles: bool = False
    """The framework's library multiplies bf16 in matrix tiles of the processor (AMX)."""
    library_convolutions: bool = False
    """The framework's library has code for convolutions and their gradients on this machine."""
    library_transforms: bool = True
    """The framework's library has fast Fourier transforms."""
    library_first: bool = False
    """The vendor's library takes products of all floats, convolutions, sorts and scans unless a kernel is known to be
    as fast; else it takes only what it is known to do faster."""


PROCESSOR = Capabilities()
"""What every processor can do."""
