"""The process of one worker: it reads kernels, and answers with how each is launched, then with its PTX.

It ends when the process that started it does, and when nothing has come for a while.
"""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import select
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from weft.backends.nvidia import layout, pipeline, transforms
from weft.backends.nvidia.compile import annotate_in_place, llvm_of, telling
from weft.backends.nvidia.ir.kernel_passes import KernelPass, PassNote
from weft.backends.nvidia.target import NvidiaTarget, llvm_to_ptx
from weft.backends.nvidia.workers.kernel_bytes import from_bytes
from weft.backends.nvidia.workers.pool import PTX, READY, WRITTEN

IDLE_SECONDS = 120.0
"""How long it waits for the next kernel."""


def serve(requests: BinaryIO, answers: BinaryIO, idle: float = IDLE_SECONDS) -> None:
    """Answer requests until there are no more."""

    def answer(*said: Any) -> None:
        pickle.dump(said, answers)
        answers.flush()

    passes: Sequence[KernelPass] = ()
    answer(READY)
    while select.select([requests], [], [], idle)[0]:
        try:
            target, given, kernel = pickle.load(requests)
        except EOFError:
            return
        with telling(answer):
            passes = passes if given is None else pickle.loads(given)
            _compile(kernel, target, passes, answer)


def _compile(kernel: bytes, target: NvidiaTarget, passes: Sequence[KernelPass], answer: Any) -> None:
    notes: list[PassNote] = []
    own = from_bytes(kernel)
    launch = annotate_in_place(own, target, passes, notes)
    text = llvm_of(own, launch, target)
    answer(WRITTEN, launch, notes)
    answer(PTX, llvm_to_ptx(text, target))


def load_passes() -> None:
    """Import the modules of all passes, before there is a kernel that waits for them."""
    for folder in (pipeline, layout, transforms):
        for found in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            importlib.import_module(found.name)


def main(answers: int) -> None:
    """Serve what comes by standard input, and answer to a file by its number."""
    load_passes()
    serve(os.fdopen(os.dup(sys.stdin.fileno()), "rb"), os.fdopen(answers, "wb"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
