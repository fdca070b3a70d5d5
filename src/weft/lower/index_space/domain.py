"""The iteration space of a kernel: variables, how they split and fuse, and addresses in terms of them.

A kernel walks the index space of its outputs (`rows`) and, inside, that of what it reduces over (`columns`). A first,
dry evaluation of the group records every address; from these `Domain` learns which variables to split (a reshape
divides one) and which neighbours to fuse into one run (all addresses step through them as through one dimension).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft.ir.expr import Expr, Size, coefficient_of, floordiv, mod, product, simplify, substitute, symbol, symbols_of


@dataclass(frozen=True)
class Variable:
    """An iteration variable in [0, size)."""

    name: str
    size: Size

    @property
    def expr(self) -> Expr:
        return symbol(self.name)


@dataclass(frozen=True)
class Run:
    """Neighbouring variables, outermost first, that are walked as one."""

    variables: tuple[Variable, ...]

    @property
    def name(self) -> str:
        return "_".join(variable.name for variable in self.variables)

    @property
    def size(self) -> Size:
        return product(variable.size for variable in self.variables)


@dataclass
class Domain:
    """The rows and columns of a kernel, as variables, and each dimension's index in terms of them."""

    row_sizes: Sequence[Size]
    column_sizes: Sequence[Size]
    rows: list[Variable] = field(init=False)
    columns: list[Variable] = field(init=False)
    row_index: list[Size] = field(init=False)
    column_index: list[Size] = field(init=False)
    row_runs: list[Run] = field(default_factory=list[Run])
    column_runs: list[Run] = field(default_factory=list[Run])

    def __post_init__(self) -> None:
        self.rows = [Variable(f"r{i}", size) for i, size in enumerate(self.row_sizes)]
        self.columns = [Variable(f"c{i}", size) for i, size in enumerate(self.column_sizes)]
        self.row_index = [0 if v.size == 1 else v.expr for v in self.rows]
        self.column_index = [0 if v.size == 1 else v.expr for v in self.columns]
        self.rows = [v for v in self.rows if v.size != 1]
        self.columns = [v for v in self.columns if v.size != 1]
        self.reset_runs()

    def reset_runs(self) -> None:
        self.row_runs = [Run((v,)) for v in self.rows]
        self.column_runs = [Run((v,)) for v in self.columns]

    @property
    def bounds(self) -> dict[str, Size]:
        return {v.name: v.size for v in (*self.rows, *self.columns)}

    def split(self, addresses: Iterable[Size]) -> bool:
        """Split one variable that some address divides; returns whether there was one.

        v in [0, 768) with an address holding v // 64  →  v = 64*v_h + v_l
        """
        bounds = self.bounds
        for address in addresses:
            found = _divided_variable(address, bounds)
            if found is None:
                continue
            name, divisor = found
            size = bounds[name]
            high, low = Variable(f"{name}h", floordiv(size, divisor)), Variable(f"{name}l", divisor)
            value = {name: high.expr * divisor + low.expr}
            for variables in (self.rows, self.columns):
                for position, variable in enumerate(variables):
                    if variable.name == name:
                        variables[position : position + 1] = [high, low]
            bounds = self.bounds
            self.row_index = [substitute(index, value, bounds) for index in self.row_index]
            self.column_index = [substitute(index, value, bounds) for index in self.column_index]
            self.reset_runs()
            return True
        return False

    def fuse(self, addresses: Sequence[Size]) -> None:
        """Join neighbouring variables wherever every address allows it."""
        self.row_runs = fused(self.rows, addresses)
        self.column_runs = fused(self.columns, addresses)

    def in_runs(self, address: Size) -> Size:
        """An address over variables, rewritten over runs."""
        for run in (*self.row_runs, *self.column_runs):
            if len(run.variables) == 1:
                continue
            if not symbols_of(address) & {v.name for v in run.variables}:
                continue
            step = _common_step(run.variables, address)
            if step is not None:
                rest = substitute(address, {v.name: 0 for v in run.variables})
                address = rest + symbol(run.name) * step
            else:
                address = substitute(address, _digits(run), {run.name: run.size})
        return address

    @property
    def run_bounds(self) -> dict[str, Size]:
        return {run.name: run.size for run in (*self.row_runs, *self.column_runs)}


def _digits(run: Run) -> dict[str, Size]:
    """Each variable of a run in terms of the run's own."""
    values: dict[str, Size] = {}
    whole: Size = symbol(run.name)
    for position, variable in enumerate(run.variables):
        inner = product(v.size for v in run.variables[position + 1 :])
        digit = floordiv(whole, inner)
        values[variable.name] = digit if position == 0 else mod(digit, variable.size)
    return values


def _divided_variable(address: Size, bounds: dict[str, Size]) -> tuple[str, Size] | None:
    if isinstance(address, int):
        return None
    for monomial, _ in address.terms:
        for atom in monomial:
            if atom.kind not in ("//", "%"):
                continue
            numerator, divisor = atom.args
            name = str(numerator)
            whole = name in bounds and divisor != 0 and simplify(mod(bounds[name], divisor), {}) == 0
            if whole and not symbols_of(divisor) & bounds.keys() and divisor != bounds[name]:
                return name, divisor
            inner = _divided_variable(numerator, bounds)
            if inner is not None:
                return inner
    return None


def fused(variables: Sequence[Variable], addresses: Sequence[Size]) -> list[Run]:
    """Neighbouring variables joined wherever every address steps through them as through one."""
    runs: list[Run] = []
    for variable in variables:
        candidate = Run((*runs[-1].variables, variable)) if runs else None
        if candidate and all(_common_step(candidate.variables, address) is not None for address in addresses):
            runs[-1] = candidate
        else:
            runs.append(Run((variable,)))
    return runs


def _common_step(variables: Sequence[Variable], address: Size) -> Size | None:
    """The step s such that the address moves through the variables as through one: s * (the run's position)."""
    step: Size | None = None
    inner: Size = 1
    for variable in reversed(variables):
        split = coefficient_of(address, variable.name)
        if split is None:
            return None
        coefficient, _ = split
        if step is None:
            step = coefficient
        elif coefficient != step * inner:
            return None
        inner = inner * variable.size
    return step
