"""`weft explain kernel.py:name`: a kernel's source beside the tile IR of each line, then LLVM IR beside assembly.

The script is run; the kernel is shown for the arguments of its first launch, and `kernel.py` alone shows every kernel
that is launched. One that is not is compiled for what `--signature` says: `*fp32,*fp32,i32,BLOCK=1024`. For a GPU, it
is PTX and SASS, and what the kernel takes of a multiprocessor; `--ir` and `--save` have the `nvidia` dialect, too.
"""

# The script's objects can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from weft.backends.llvm.stated_lines import with_source
from weft.backends.nvidia.target import NvidiaTarget
from weft.errors import WeftError
from weft.frontends.triton.enable import enable
from weft.frontends.triton.listings.device_listing import device_listing_of
from weft.frontends.triton.listings.listing import Listing, listing_of
from weft.frontends.triton.runtime.jit import OPTIONS, JITFunction, KernelInterface
from weft.frontends.triton.runtime.specialise import SHORT_NAMES, element_type
from weft.frontends.triton.runtime.stand_ins import MockTensor
from weft.frontends.triton.tuning.autotune import kernel_of
from weft.tools.explain.device import DeviceKernel, choices_table, device_figures, device_table, sass, single_kernel
from weft.tools.terminal import Terminal, UsageError


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    file: Path
    name: str
    arguments: tuple[str, ...] = ()
    signature: str | None = None
    save: Path | None = None
    target: NvidiaTarget | None = None
    """A GPU to compile for, instead of this processor."""
    ir: bool = False
    """Whether the texts at each level are printed, one below the other,"""
    each_pass: bool = False
    """and those after each pass over the kernel of a GPU that changed it, or saved."""

    def __post_init__(self) -> None:
        if self.each_pass and self.target is None:
            raise UsageError(
                "--each-pass is about passes over kernels of a GPU",
                hint="name one, which need not be there: --target sm_90a",
            )


def is_script_of_kernels(path: Path) -> bool:
    """Whether a script has kernels in Triton's language, and compiles no graphs."""
    try:
        text = path.read_text()
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return False  # whoever runs it says so
    return bool(_kernels_in(tree)) and not re.search(r"\b(?:torch|weft)\.compile\(", text)


def _kernels_in(tree: ast.Module) -> list[str]:
    """The functions that `@triton.jit`, alone or under others, makes kernels of."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(_is_jit(each) for each in node.decorator_list)
    ]


def _is_jit(decorator: ast.expr) -> bool:
    match decorator.func if isinstance(decorator, ast.Call) else decorator:
        case ast.Attribute(value=ast.Name(id="triton" | "tr"), attr="jit"):
            return True
        case _:
            return False


def explain_kernels(terminal: Terminal, wanted: Wanted) -> None:
    """Show every kernel that a script launches, for its first launch."""
    first: dict[str, tuple[JITFunction, tuple[Any, ...], dict[str, Any]]] = {}
    for kernel, args, keywords in _launches(wanted):
        first.setdefault(kernel.__name__, (kernel, args, keywords))
    if not first:
        names = _kernels_in(ast.parse(wanted.file.read_text()))
        raise UsageError(
            f"{wanted.file} launched no kernel; it has {', '.join(names)}",
            hint=f"say what to compile one for: {wanted.file}:{names[0]} --signature '*fp32,*fp32,i32,BLOCK=1024'",
        )
    terminal.finish({"ok": True, "kernels": [_explained(terminal, wanted, *launch) for launch in first.values()]})


def explain_kernel(terminal: Terminal, wanted: Wanted) -> None:
    """Show the kernel at every level, side by side."""
    terminal.finish({"ok": True, **_explained(terminal, wanted, *_launch(wanted))})


def _explained(
    terminal: Terminal, wanted: Wanted, kernel: JITFunction, args: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    taken: list[DeviceKernel] = []
    if wanted.target is None:
        listing = listing_of(kernel, args, keywords)
    else:
        listing, code = device_listing_of(kernel, args, keywords, wanted.target, each_pass=wanted.each_pass)
        instructions = sass(code)
        listing = listing if instructions is None else replace(listing, code={**listing.code, "sass": instructions})
        taken.append(single_kernel(listing.name, code))
    if wanted.ir:
        terminal.text("\n".join(f"// {listing.name} as {level}\n{text}" for level, text in listing.levels().items()))
    terminal.show(*_report(listing))
    table = device_table({1: taken})
    for each in (table, choices_table([(listing.name, listing.passes)])):
        if each is not None:
            terminal.show(each)
    if wanted.save is not None:
        for level, text in listing.levels().items():
            wanted.save.mkdir(parents=True, exist_ok=True)
            (wanted.save / f"{listing.name}.{level}").write_text(text)
        terminal.show(Text(f"written to {wanted.save}"))
    figures = {"kernel": listing.name, "file": listing.file, "device_kernels": device_figures(taken)}
    return {**figures, "passes": [asdict(note) for note in listing.passes], **listing.levels()}


def _launch(wanted: Wanted) -> tuple[JITFunction, tuple[Any, ...], dict[str, Any]]:
    """The kernel, and arguments to compile it for."""
    if not wanted.file.is_file():
        raise UsageError(f"there is no script {wanted.file}")
    if wanted.signature is not None:
        found = _run(wanted, "__weft_explain__").get(wanted.name)
        if not isinstance(found, KernelInterface):
            raise UsageError(f"{wanted.file} has no kernel called {wanted.name}")
        kernel = kernel_of(found)
        args, keywords = _arguments(kernel, wanted.signature)
        try:
            kernel.signature.bind(*args, **{name: each for name, each in keywords.items() if name not in OPTIONS})
        except TypeError as error:
            raise UsageError(
                f"the signature does not fit the kernel: {error}",
                hint=f"its parameters are {', '.join(kernel.arg_names)}",
            ) from error
        return kernel, args, keywords
    launches = _launches(wanted)
    for kernel, args, keywords in launches:
        if kernel.__name__ == wanted.name:
            return kernel, args, keywords
    seen = ", ".join(sorted({kernel.__name__ for kernel, _, _ in launches})) or "none"
    raise UsageError(
        f"{wanted.file} launched no kernel called {wanted.name}; launched: {seen}",
        hint="say what to compile it for: --signature '*fp32,*fp32,i32,BLOCK=1024'",
    )


def _launches(wanted: Wanted) -> list[tuple[JITFunction, tuple[Any, ...], dict[str, Any]]]:
    """What the script launches."""
    launches: list[tuple[JITFunction, tuple[Any, ...], dict[str, Any]]] = []
    with JITFunction.watching(lambda kernel, args, keywords: launches.append((kernel, args, keywords))):
        _run(wanted, "__main__")
    return launches


def _run(wanted: Wanted, name: str) -> dict[str, Any]:
    kept = sys.argv, sys.path
    folder = str(wanted.file.resolve().parent)
    sys.argv, sys.path = [str(wanted.file), *wanted.arguments], [folder, *sys.path]
    try:
        with enable():  # the file may say `import triton`
            return runpy.run_path(str(wanted.file), run_name=name)
    except SystemExit:
        return {}
    finally:
        sys.argv, sys.path = kept


def _arguments(kernel: JITFunction, signature: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments like a signature: `*fp32` is a tensor, `i32` a number (no multiple of 16), `NAME=value` a constant.

    As Triton writes what it specializes on, `i32:16` is a multiple of 16 and `i32:1` is 1; `*fp32:16` says of a tensor
    that it is aligned, which all are here.
    """
    args: list[Any] = []
    keywords: dict[str, Any] = {}
    for part in filter(None, map(str.strip, signature.split(","))):
        name, given, value = part.partition("=")
        try:
            if given:
                keywords[name] = int(value) if value.lstrip("-").isdigit() else value
            elif part.startswith("*"):
                args.append(MockTensor(element_type(_element(part[1:].removesuffix(":16")))))
            else:
                args.append(_number(part))
        except UsageError:
            raise
        except WeftError as error:
            raise UsageError(f"{part} is not a type: {error.message}", hint="types are fp32, i32, *fp16 ...") from error
    return tuple(args), keywords


def _number(part: str) -> int | float:
    """A number like a type and what is known of it: `i32`, `i32:16`, `fp32`."""
    text, given, known = part.partition(":")
    name = _element(text)
    if given and (known not in ("1", "16") or name[0] not in "iu"):
        raise UsageError(f"{part} is not a type", hint="i32:16 is divisible by 16, i32:1 is 1, *fp16:16 is aligned")
    if name[0] in "fb":
        return 0.5
    return 1 if known == "1" else (1 << 40 if name == "i64" else 0) + (16 if known else 3)


def _element(text: str) -> str:
    short = SHORT_NAMES.get(text)
    if short is None:
        raise UsageError(f"{text} is not a type", hint="types are fp32, i32, *fp16 ...")
    return short


def _report(listing: Listing) -> Sequence[RenderableType]:
    lines = Table(title=f"{listing.name}({listing.signature})", title_justify="left")
    lines.add_column("line", justify="right")
    lines.add_column("source", overflow="fold", ratio=2)
    lines.add_column("tile", overflow="fold", ratio=3)
    for row in listing.rows():
        place = str(row.line) if row.file == listing.file else f"{Path(row.file).name}:{row.line}"
        lines.add_row(place, Text(row.source), Text(row.tile))
    code = Table(title="Code", title_justify="left")
    for level in listing.code:
        code.add_column(level, overflow="fold", ratio=1)
    texts = (with_source(text) if level in ("asm", "ptx") else text for level, text in listing.code.items())
    code.add_row(*(Text(text.expandtabs(4)) for text in texts))
    return [lines, code]
