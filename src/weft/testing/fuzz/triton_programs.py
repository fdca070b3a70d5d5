"""Draws random Triton kernels as text: chains over tiles of one or two dimensions, masks, reductions, dots, loops.

A program of the grid has its own part of every result; what several add up goes through atomics, on integers. Values
that rounding has touched are not compared, cut off or used as integers.
"""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from weft.ir.types import bf16
from weft.testing.fuzz.triton_forms import PRELUDE, draw_form

ARITHMETIC = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "tl.maximum({0}, {1})", "tl.minimum({0}, {1})")
FLOATING = (
    "tl.exp(-tl.abs({0}))", "tl.sqrt(tl.abs({0}))", "tl.sin({0})", "tl.cos({0})", "tl.log(tl.abs({0}) + 1.0)",
    "tl.abs({0})",
    "tl.sigmoid({0})", "-{0}", "{0} * 0.5", "{0} / (tl.abs({1}) + 1.0)", "tl.exp2(-tl.abs({0}))", "tl.erf({0})",
    "{0} + 1.5",
    "tl.fma({0}, {1}, {0})", "tl.rsqrt(tl.abs({0}) + 1.0)", "tl.where({0} > 0, {0}, {1})", "tl.clamp({0}, -1.0, 1.0)",
)  # fmt: skip
WHOLE = (
    "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} << 1", "{0} >> 1", "~{0}", "tl.abs({0})", "{0} // 3", "{0} % 5", "-{0}",
    "{0} // (tl.abs({1}) + 1)", "tl.where({0} < {1}, {0}, {1})", "{0} * 3 + 1", "({0} > {1}).to(tl.int32)",
    "{0} % 7 - 3",
)  # fmt: skip
TYPES = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": bf16.numpy,
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}
LANGUAGE = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i8": "int8",
    "u8": "uint8",
}
_numbers = itertools.count()


@dataclass(frozen=True)
class TritonCase:
    """A kernel's lines, the types and lengths of its arrays, its grid and the integers it gets."""

    lines: tuple[str, ...]
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]
    grid: int
    numbers: dict[str, int]
    seed: int = 0
    device: str = "cpu"

    @property
    def names(self) -> list[str]:
        arrays = [f"x{n}" for n in range(len(self.inputs))] + [f"o{n}" for n in range(len(self.outputs))]
        return [*arrays, *self.numbers]

    def text(self) -> str:
        return "\n".join(
            ["@triton.jit", f"def kernel({', '.join(self.names)}):", *(f"    {line}" for line in self.lines), ""]
        )

    def kernel(self) -> Any:
        """The kernel itself."""
        import weft.triton as triton
        import weft.triton.language as language

        text, file = f"{PRELUDE}\n\n{self.text()}", f"<fuzz kernel {next(_numbers)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        scope: dict[str, Any] = {"triton": triton, "tl": language}
        exec(compile(text, file, "exec"), scope)
        return scope["kernel"]

    def arrays(self) -> list[np.ndarray]:
        """Arguments anew, results full of zeros."""
        rng = np.random.default_rng(self.seed)
        made: list[np.ndarray] = []
        for type_, size in self.inputs:
            dtype = TYPES[type_]
            if dtype.kind in "iu":
                made.append(rng.integers(0 if dtype.kind == "u" else -9, 10, size).astype(dtype))
            else:
                made.append(rng.standard_normal(size).astype(dtype))
        return [*made, *(np.zeros(size, TYPES[type_]) for type_, size in self.outputs)]

    def script(self, said: str) -> str:
        first = said.replace("\\", "/").replace('"""', "'''").splitlines()[0] if said else ""
        given = f"{self.inputs}, {self.outputs}, {self.grid}, {self.numbers}"
        settings = f"{given}, seed={self.seed}, device={self.device!r}"
        return (
            f'"""Found by `weft fuzz`: {first}"""\n\nimport weft.triton as triton\nimport weft.triton.language as tl\n'
            f"from weft.testing.fuzz.triton_judge import reproduce\n\n\n{PRELUDE}\n\n{self.text()}\n\n"
            f'if __name__ == "__main__":\n    reproduce(kernel, {settings})\n'
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> TritonCase:
        given: dict[str, Any] = dict(record)
        for name in ("inputs", "outputs"):
            given[name] = tuple((type_, size) for type_, size in record[name])
        given["lines"] = tuple(record["lines"])
        return TritonCase(**given)


@dataclass(frozen=True)
class _Tile:
    name: str
    type: str
    shape: tuple[int, ...]
    exact: bool

    @property
    def is_float(self) -> bool:
        return self.type in ("fp32", "fp16", "bf16", "fp64")


@dataclass
class _Drawing:
    rng: random.Random
    lines: list[str] = field(default_factory=list[str])
    tiles: list[_Tile] = field(default_factory=list[_Tile])
    inputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    outputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    grid: int = 1
    indent: str = ""
    count: int = 0

    def say(self, expression: str, type_: str, shape: tuple[int, ...], exact: bool) -> _Tile:
        tile = _Tile(f"v{self.count}", type_, shape, exact)
        self.count += 1
        self.lines.append(f"{self.indent}{tile.name} = {expression}")
        self.tiles.append(tile)
        return tile

    def pick(self, **wanted: Any) -> _Tile | None:
        fit = [tile for tile in self.tiles if all(getattr(tile, name) == value for name, value in wanted.items())]
        return self.rng.choice(fit[-6:]) if fit else None

    def load(self, shape: tuple[int, ...]) -> None:
        rng = self.rng
        type_ = rng.choice(("fp32",) * 4 + ("fp16", "bf16", "i32", "i32", "i32", "i64", "i8", "u8"))
        number, whole = len(self.inputs), int(np.prod(shape))
        length = rng.choice((whole * self.grid, whole * self.grid - rng.randrange(1, whole), max(1, whole // 2 - 1)))
        self.inputs.append((type_, length))
        size = f"n{number}"
        self.numbers[size] = length
        place = self.places(shape)
        other = rng.choice((", other=0", ", other=1", ", other=0"))
        masked = rng.random() < 0.9 or length < whole * self.grid
        mask = f", mask=({place}) < {size}{other}" if masked else ""
        wide = "fp32" if type_ in ("fp16", "bf16") else "i32" if type_ in ("i8", "u8") else type_
        text = f"tl.load(x{number} + {place}{mask})"
        if wide != type_ and rng.random() < 0.7:
            text, type_ = f"{text}.to(tl.{LANGUAGE[wide]})", wide
        self.say(text, type_, shape, True)

    def places(self, shape: tuple[int, ...], base: str | None = None) -> str:
        whole = int(np.prod(shape))
        start = f"pid * {whole}" if base is None else base
        if len(shape) == 1:
            line = f"tl.arange(0, {shape[0]})"
            forms = (f"{start} + {line}",) * 3 + (f"{start} + {whole - 1} - {line}",)
            return self.rng.choice(forms) if base is None else forms[0]
        rows, columns = f"tl.arange(0, {shape[0]})[:, None]", f"tl.arange(0, {shape[1]})[None, :]"
        forms = (f"{start} + {rows} * {shape[1]} + {columns}",) * 3 + (f"{start} + {columns} * {shape[0]} + {rows}",)
        return self.rng.choice(forms) if base is None else forms[0]

    def store(self, tile: _Tile) -> None:
        rng, number, whole = self.rng, len(self.outputs), int(np.prod(tile.shape, dtype=int))
        type_ = tile.type
        self.outputs.append((type_, whole * self.grid))
        if not tile.shape:
            self.lines.append(f"tl.store(o{number} + pid, {tile.name})")
            return
        place = self.places(tile.shape, f"pid * {whole}")
        mask = f", mask=({place}) % 3 != 0" if rng.random() < 0.2 else ""
        self.lines.append(f"tl.store(o{number} + {place}, {tile.name}{mask})")

    def add_up(self, tile: _Tile) -> None:
        """What all programs add to, or raise: integers, whose order does not count."""
        number = len(self.outputs)
        self.outputs.append(("i32", 64))
        how = self.rng.choice(("atomic_add", "atomic_max", "atomic_min", "atomic_xor", "atomic_or"))
        flat = f"tl.reshape({tile.name}, ({int(np.prod(tile.shape))},))" if len(tile.shape) > 1 else tile.name
        length = int(np.prod(tile.shape))
        place = f"(tl.arange(0, {length}) * {self.rng.choice((1, 3, 7))}) % 64"
        mask = f", mask=tl.arange(0, {length}) < {self.rng.randint(1, length)}" if self.rng.random() < 0.3 else ""
        self.lines.append(f"tl.{how}(o{number} + {place}, {flat}{mask})")

    def step(self) -> None:
        rng = self.rng
        kind = rng.choices(
            ("map", "float", "whole", "reduce", "spread", "cast", "dot", "scan", "loop", "move", "branch", "form"),
            (4, 5, 3, 2.5, 2, 1.5, 1, 1, 1, 1.5, 0.7, 2),
        )[0]
        getattr(self, f"_{kind}")()

    def _pair(self, test: Callable[[_Tile], bool]) -> tuple[_Tile, _Tile] | None:
        fit = [tile for tile in self.tiles if test(tile)]
        if not fit:
            return None
        first = self.rng.choice(fit[-6:])
        same = [tile for tile in fit if (tile.shape, tile.type) == (first.shape, first.type)]
        return first, self.rng.choice(same)

    def _map(self) -> None:
        pair = self._pair(lambda tile: tile.type in ("fp32", "i32", "i64", "fp64"))
        if pair is None:
            return
        a, b = pair
        self._bounded(self.rng.choice(ARITHMETIC).format(a.name, b.name), a)

    def _bounded(self, text: str, tile: _Tile) -> None:
        """What is multiplied again and again stays small."""
        if tile.is_float:
            self.say(f"tl.clamp({text}, -100.0, 100.0)", tile.type, tile.shape, False)
        else:
            self.say(text, tile.type, tile.shape, tile.exact)

    def _float(self) -> None:
        pair = self._pair(lambda tile: tile.type in ("fp32", "fp64"))
        if pair is None:
            return
        text = self.rng.choice(FLOATING).format(pair[0].name, pair[1].name)
        if " > 0" in text and not pair[0].exact:
            return
        self._bounded(text, pair[0])

    def _whole(self) -> None:
        pair = self._pair(lambda tile: tile.type in ("i32", "i64"))
        if pair is None:
            return
        text = self.rng.choice(WHOLE).format(pair[0].name, pair[1].name)
        self.say(text, "i32" if "int32" in text else pair[0].type, pair[0].shape, pair[0].exact)

    def _reduce(self) -> None:
        tile = self.rng.choice(self.tiles)
        if not tile.shape or tile.type not in ("fp32", "i32", "i64", "fp64"):
            return
        axis = self.rng.randrange(len(tile.shape))
        names = ["sum", "max", "min"] + (["xor_sum"] if not tile.is_float else [])
        names += ["argmax", "argmin"] if tile.exact and tile.is_float else []
        name = self.rng.choice(names)
        shape = tuple(size for place, size in enumerate(tile.shape) if place != axis)
        type_ = "i32" if name.startswith("arg") else tile.type
        text = f"tl.{name}({tile.name}, axis={axis})"
        self.say(text, type_, shape, tile.exact and (not tile.is_float or name != "sum"))

    def _spread(self) -> None:
        """A line or a number in the shape of another tile."""
        small = [tile for tile in self.tiles if len(tile.shape) < 2]
        large = [tile for tile in self.tiles if tile.shape]
        if not small or not large:
            return
        a, b = self.rng.choice(small), self.rng.choice(large)
        if a.type != b.type or a.type not in ("fp32", "i32", "i64"):
            return
        if not a.shape:
            self._bounded(f"{b.name} + {a.name}", b)
        elif len(b.shape) == 2 and a.shape[0] == b.shape[0]:
            self._bounded(f"{b.name} - {a.name}[:, None]", b)
        elif len(b.shape) == 2 and a.shape[0] == b.shape[1]:
            self._bounded(f"{b.name} * {a.name}[None, :]", b)
        elif len(b.shape) == 1 and len(a.shape) == 1 and a.shape[0] * b.shape[0] <= 4096:
            exact = a.exact and b.exact and not a.is_float
            self.say(f"{a.name}[:, None] + {b.name}[None, :]", a.type, (a.shape[0], b.shape[0]), exact)

    def _cast(self) -> None:
        tile = self.rng.choice(self.tiles)
        if tile.is_float:
            type_ = self.rng.choice(("fp32", "fp16", "bf16", "fp32", *(("i32",) if tile.exact else ())))
            exact = tile.exact and type_ in ("i32", tile.type)
        else:
            type_ = self.rng.choice(("fp32", "i32", "i64", "i8"))
            exact = tile.exact and type_ != "fp32"
        self.say(f"{tile.name}.to(tl.{LANGUAGE[type_]})", type_, tile.shape, exact)

    def _dot(self) -> None:
        tile = self.pick(is_float=True)
        if tile is None or len(tile.shape) != 2 or min(tile.shape) < 16 or tile.type == "fp64":
            return
        extra = ', input_precision="ieee"' if tile.type == "fp32" else ""
        if self.rng.random() < 0.5:
            text, shape = f"tl.dot({tile.name}, tl.trans({tile.name}){extra})", (tile.shape[0], tile.shape[0])
        else:
            text, shape = f"tl.dot(tl.trans({tile.name}), {tile.name}{extra})", (tile.shape[1], tile.shape[1])
        self.say(f"{text} * 0.05", "fp32", shape, False)

    def _scan(self) -> None:
        tile = self.rng.choice(self.tiles)
        if not tile.shape or tile.type not in ("fp32", "i32"):
            return
        axis = self.rng.randrange(len(tile.shape))
        back = self.rng.choice(("", ", reverse=True"))
        self.say(f"tl.cumsum({tile.name}, axis={axis}{back})", tile.type, tile.shape, tile.exact and not tile.is_float)

    def _move(self) -> None:
        tile = self.rng.choice(self.tiles)
        if not tile.shape or tile.type == "u8":
            return
        if len(tile.shape) == 2:
            flat = (int(np.prod(tile.shape)),)
            text, shape = self.rng.choice(
                ((f"tl.trans({tile.name})", tile.shape[::-1]), (f"tl.reshape({tile.name}, ({flat[0]},))", flat))
            )
        elif tile.shape[0] >= 32:
            shape = (tile.shape[0] // 16, 16)
            text = f"tl.reshape({tile.name}, {shape})"
        else:
            return
        self.say(text, tile.type, shape, tile.exact)

    def _loop(self) -> None:
        tile = self.pick(type=self.rng.choice(("fp32", "i32")))
        if tile is None or not tile.shape:
            return
        turns = self.rng.choice((0, 1, 3, 5))
        name = f"k{self.count}"
        start = self.say(f"{tile.name} * 0", tile.type, tile.shape, tile.exact)
        self.numbers[name] = turns
        header = self.rng.choice((f"range(0, {name})", f"tl.static_range({max(turns, 1)})", f"range(0, 2 * {name}, 2)"))
        self.lines.append(f"for i{self.count} in {header}:")
        body = self.rng.choice(
            (f"{start.name} + {tile.name}", f"tl.maximum({start.name}, {tile.name} + i{self.count})",
             f"{start.name} + {tile.name} * i{self.count}")
        )  # fmt: skip
        self.lines.append(f"    {start.name} = {body}")
        self.tiles.remove(start)
        self.tiles.append(_Tile(start.name, start.type, start.shape, start.exact and not start.is_float))

    def _form(self) -> None:
        fit = [tile for tile in self.tiles if tile.exact and len(tile.shape) == 1 and tile.type in ("fp32", "i32")]
        fit = [tile for tile in fit if tile.shape[0] & (tile.shape[0] - 1) == 0]
        if not fit:
            return
        tile = self.rng.choice(fit)
        form = draw_form(self.rng, f"v{self.count}", tile.name, tile.type, tile.shape[0])
        self.count += 1
        self.lines += form.lines
        self.tiles += [_Tile(name, type_, shape, True) for name, type_, shape in form.made]

    def _branch(self) -> None:
        pair = self._pair(lambda tile: tile.type in ("fp32", "i32") and bool(tile.shape))
        if pair is None:
            return
        made = self.say(f"{pair[0].name} + {pair[1].name}", pair[0].type, pair[0].shape, False)
        test = self.rng.choice(("pid == 0", "pid % 2 == 1", "n0 > 20"))
        self.lines += [f"if {test}:", f"    {made.name} = {pair[0].name} - {pair[1].name}"]
        if self.rng.random() < 0.5:
            self.lines += ["else:", f"    {made.name} = {pair[1].name} * 2"]


def draw_kernel(seed: int, device: str = "cpu") -> TritonCase:
    """The kernel of a seed."""
    rng = random.Random(seed)
    drawing = _Drawing(rng, grid=rng.choice((1, 2, 3, 5)))
    drawing.lines.append("pid = tl.program_id(0)")
    shapes = [(rng.choice((16, 32, 64, 128, 256, 1024)),), (rng.choice((4, 16, 32)), rng.choice((16, 32, 64)))]
    for _ in range(rng.choice((1, 2, 3))):
        drawing.load(rng.choice(shapes))
    for _ in range(rng.choice((1, 3, 6, 10, 15))):
        if len(drawing.tiles) < 24:
            drawing.step()
    for tile in drawing.tiles[-5:]:
        drawing.store(tile)
    sums = [tile for tile in drawing.tiles if tile.type == "i32" and tile.exact and tile.shape]
    if sums and rng.random() < 0.4:
        drawing.add_up(rng.choice(sums))
    arrays = tuple(drawing.inputs), tuple(drawing.outputs)
    return TritonCase(tuple(drawing.lines), *arrays, drawing.grid, drawing.numbers, seed, device)
