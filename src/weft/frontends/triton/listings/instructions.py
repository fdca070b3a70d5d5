"""The instructions of a kernel for a GPU as text: `get_sass(handle.asm["cubin"])`."""

from __future__ import annotations

import re
from pathlib import Path

from weft.backends.nvidia.driver.assembler import disassemble
from weft.frontends.triton.errors import KernelUnsupportedError

_HEAD = re.compile(r"^\s*(?:Function : |//-+ \.text\.)(?P<name>\w+).*$", re.MULTILINE)
"""How cuobjdump and nvdisasm begin a function."""


def get_sass(cubin_asm: bytes, fun: str | None = None) -> str:
    """The instructions of a cubin, or of one function in it."""
    text = disassemble(cubin_asm)
    if not text:
        raise KernelUnsupportedError(
            "there is no disassembler here", hint="install NVIDIA's CUDA tools (nvdisasm or cuobjdump)"
        )
    return text if fun is None else _function(text, fun)


def extract(file_path: str, fun: str | None = None) -> str:
    """The instructions of a cubin in a file."""
    return get_sass(Path(file_path).read_bytes(), fun)


def _function(text: str, name: str) -> str:
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return "".join(text[head.start() : end] for head, end in zip(heads, ends, strict=True) if head["name"] == name)
