"""Writes LLVM IR as text: values are names with a type, instructions are lines.

Text is several times faster to make than llvmlite's object builder, and it is what LLVM parses anyway. Vectors are
ordinary values of type `<16 x float>`; every method works on scalars and vectors alike. No optimisation happens here
beyond folding of integer constants, which keeps address arithmetic readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.dialects.builtin import LocationAttr

from weft.backends.llvm.debug_lines import DebugLines, Origins
from weft.backends.llvm.value_numbering import ENTRY, ValueNumbering
from weft.backends.llvm.values import V, const, float_literal, i64, vector
from weft.ir.expr import Size

_ADDENDS, _ADDEND_LANES = "weft.addends", 16
_LONG_LOOP = 120
"""Lines of an innermost loop from which on LLVM's choice of pointers for it takes longer than it gains."""


@dataclass
class Module:
    """One LLVM module: functions, and the declarations that their calls need."""

    triple: str
    lacks: frozenset[str] = frozenset()
    """What the target has no instructions for and LLVM would call a library for: `CpuTarget.lacks`."""
    functions: list[str] = field(default_factory=list[str])
    declarations: dict[str, str] = field(default_factory=dict[str, str])
    globals: dict[str, str] = field(default_factory=dict[str, str])
    shared: set[str] = field(default_factory=set[str])
    addends: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Where the constants stand that are read from memory: the literal and which of a function's uses of it."""
    debug: DebugLines | None = None
    """The line of the user's program that each instruction comes from, where that is asked for."""

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    def add_shared(self, name: str) -> bool:
        """Note a function that several kernels call; False if the module has it already."""
        known = name in self.shared
        self.shared.add(name)
        return not known

    def made_for(self, location: LocationAttr) -> None:
        """Say where in the user's program functions that are begun now come from."""
        if self.debug is not None:
            self.debug.current = location

    def __str__(self) -> str:
        head = f'target triple = "{self.triple}"\n'
        parts = [*self.constants(), *self.functions, *self.declarations.values()]
        if self.debug is not None:
            parts.append(str(self.debug))
        return head + "\n".join(parts) + "\n"

    def constants(self, mentioned: Container[str] | None = None) -> list[str]:
        """What functions read, or those that mention certain names."""
        found = [text for name, text in self.globals.items() if mentioned is None or name in mentioned]
        return [*(self._addends() if mentioned is None or _ADDENDS in mentioned else []), *found]

    def _addends(self) -> list[str]:
        if not self.addends:
            return []
        rows = ", ".join(f"float {literal}" for literal, _ in self.addends for _ in range(_ADDEND_LANES))
        count = len(self.addends) * _ADDEND_LANES
        # Not `constant`: LLVM would put the values into registers and copy them for every use.
        return [f"@{_ADDENDS} = private global [{count} x float] [{rows}], align 64"]


class Function:
    """The body of one function under construction."""

    def __init__(
        self,
        module: Module,
        name: str,
        params: Sequence[tuple[str, str]],
        result: str = "void",
        attributes: str = "nounwind",
        linkage: str = "",
        *,
        numbers_values: bool = False,
        hides_counters: bool = False,
    ) -> None:
        """With `numbers_values`, what was computed before is not written again.

        With `hides_counters`, LLVM does not see how the variable of a long loop goes on. It would try, for each address
        in the loop, which others a pointer could be shared with: a quarter of the time that it takes over windows.
        """
        self.module = module
        self.name = name
        self.result = f"{linkage} {result}" if linkage else result
        self.attributes = attributes
        self.args = [V(type_.split(" ", 1)[0], f"%{arg}") for type_, arg in params]
        self._params = ", ".join(f"{type_} %{arg}" for type_, arg in params)
        self._counter = 0
        self._addends: Counter[str] = Counter()
        self._entry: list[str] = []
        self.lines: list[str] = []
        self.block = ENTRY
        self._numbering = ValueNumbering() if numbers_values else None
        self._hides_counters = hides_counters
        self._loops = 0
        self.halves: dict[str, tuple[V, int, str]] = {}
        """Of floats that are narrow ones of memory: the word, which part of it they are, and their element type."""
        self._origins = None if module.debug is None else Origins(module.debug)

    def made_for(self, location: LocationAttr | None) -> LocationAttr | None:
        """Say where in the user's program the following instructions come from; gives what was said before."""
        return None if self._origins is None else self._origins.mark(len(self.lines), location)

    # -- values ----------------------------------------------------------------------------------------------------

    def fresh(self, hint: str = "") -> str:
        self._counter += 1
        return f"%{hint or 'v'}{self._counter}"

    def emit(self, type_: str, text: str) -> V:
        numbering = self._numbering
        if numbering is not None and (known := numbering.find(text)) is not None:
            return V(type_, known)
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        if numbering is not None:
            numbering.note(text, name)
        return V(type_, name)

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def binary(self, opcode: str, a: V, b: V, flags: str = "") -> V:
        return self.emit(a.type, f"{opcode}{' ' + flags if flags else ''} {a}, {b.name}")

    def add(self, a: V, b: V) -> V:
        if a.name.lstrip("-").isdigit() and b.name.lstrip("-").isdigit():
            return V(a.type, str(int(a.name) + int(b.name)))
        if b.name == "0":
            return a
        if a.name == "0":
            return b
        return self.binary("add", a, b)

    def sub(self, a: V, b: V) -> V:
        if b.name == "0":
            return a
        if a.name.lstrip("-").isdigit() and b.name.lstrip("-").isdigit():
            return V(a.type, str(int(a.name) - int(b.name)))
        return self.binary("sub", a, b)

    def mul(self, a: V, b: V) -> V:
        if a.name.lstrip("-").isdigit() and b.name.lstrip("-").isdigit():
            return V(a.type, str(int(a.name) * int(b.name)))
        if a.name == "1":
            return b
        if b.name == "1":
            return a
        if "0" in (a.name, b.name) and not a.type.startswith("<"):
            return V(a.type, "0")
        return self.binary("mul", a, b)

    def icmp(self, predicate: str, a: V, b: V) -> V:
        return self.emit(vector("i1", a.lanes), f"icmp {predicate} {a}, {b.name}")

    def fcmp(self, predicate: str, a: V, b: V) -> V:
        return self.emit(vector("i1", a.lanes), f"fcmp {predicate} {a}, {b.name}")

    def select(self, condition: V, yes: V, no: V) -> V:
        return self.emit(yes.type, f"select {condition}, {yes}, {no}")

    def convert(self, opcode: str, value: V, element: str) -> V:
        type_ = vector(element, value.lanes)
        return value if type_ == value.type else self.emit(type_, f"{opcode} {value} to {type_}")

    def bitcast(self, value: V, type_: str) -> V:
        return value if type_ == value.type else self.emit(type_, f"bitcast {value} to {type_}")

    def call(self, name: str, result: str, *args: V, attributes: str = "") -> V:
        """Call a function or intrinsic, declaring it on the way."""
        types = ", ".join(arg.type for arg in args)
        tail = f" {attributes}" if attributes else ""
        self.module.declarations.setdefault(name, f"declare {result} @{name}({types}){tail}")
        text = f"call {result} @{name}({', '.join(map(str, args))})"
        if result == "void":
            self.do(text)
            return V("void", "")
        return self.emit(result, text)

    def intrinsic(self, name: str, *args: V) -> V:
        """An LLVM intrinsic overloaded on its first argument's type: `intrinsic("fma", a, b, c)`."""
        return self.call(f"llvm.{name}.{mangle(args[0].type)}", args[0].type, *args)

    # -- vectors ---------------------------------------------------------------------------------------------------

    def splat(self, value: V, lanes: int) -> V:
        if lanes == 1 or value.lanes == lanes:
            return value
        type_ = vector(value.type, lanes)
        if not value.name.startswith("%"):
            return V(type_, "<" + ", ".join([str(value)] * lanes) + ">")
        first = self.emit(type_, f"insertelement {type_} poison, {value}, i64 0")
        zero = f"<{lanes} x i32> zeroinitializer"
        return self.emit(type_, f"shufflevector {first}, {type_} poison, {zero}")

    def shuffle(self, a: V, b: V, lanes: Sequence[int]) -> V:
        """Lanes of two vectors, numbered through both."""
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.emit(vector(a.element, len(lanes)), f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{chosen}>")

    def insert(self, into: V, value: V, lane: int) -> V:
        return self.emit(into.type, f"insertelement {into}, {value}, i64 {lane}")

    def extract(self, value: V, lane: int) -> V:
        return value if value.lanes == 1 else self.emit(value.element, f"extractelement {value}, i64 {lane}")

    def iota(self, lanes: int, element: str = "i64") -> V:
        """<0, 1, 2, ...>"""
        if lanes == 1:
            return V(element, "0")
        return V(vector(element, lanes), "<" + ", ".join(f"{element} {lane}" for lane in range(lanes)) + ">")

    # -- memory ----------------------------------------------------------------------------------------------------

    def gep(self, pointer: V, index: V, element: str) -> V:
        """The address of element `index`."""
        return pointer if index.name == "0" else self.emit("ptr", f"getelementptr {element}, {pointer}, {index}")

    def load(self, type_: str, pointer: V, align: int, suffix: str = "") -> V:
        return self.emit(type_, f"load {type_}, {pointer}, align {align}{suffix}")

    def store(self, value: V, pointer: V, align: int, suffix: str = "") -> None:
        self.do(f"store {value}, {pointer}, align {align}{suffix}")

    def addend(self, value: float, type_: str) -> V:
        """A constant for a multiply-add to be added to.

        AArch64's writes its result over the addend, so a constant in a register is copied each time, which takes as
        long as the multiply-add. Loads are made by units that have nothing else to do.
        """
        lanes = V(type_, "").lanes
        if self.module.is_x86 or V(type_, "").element != "float" or not 4 <= lanes <= _ADDEND_LANES:
            return const(value, type_)
        literal = float_literal(value, "float")
        # Each use reads another place: LLVM would keep what is read twice in a register, and copy it.
        use = self._addends[literal]
        self._addends[literal] += 1
        place = self.module.addends.setdefault((literal, use), len(self.module.addends))
        return self.load(type_, self.gep(V("ptr", f"@{_ADDENDS}"), i64(place * _ADDEND_LANES), "float"), 16)

    def prefetch(self, pointer: V) -> None:
        """Bring a cache line near that will be read soon; the address need not exist."""
        self.call("llvm.prefetch.p0", "void", pointer, V("i32", "0"), V("i32", "3"), V("i32", "1"))

    def alloca(self, type_: str, count: int = 1, align: int = 64) -> V:
        """Stack memory, taken in the entry block so that loops do not grow the stack."""
        name = self.fresh("slot")
        self._entry.append(f"  {name} = alloca {type_}, i64 {count}, align {align}")
        return V("ptr", name)

    # -- control flow ----------------------------------------------------------------------------------------------

    def label(self, hint: str) -> str:
        self._counter += 1
        return f"{hint}{self._counter}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        if self._numbering is not None:
            self._numbering.start(self.block, label)
        self.block = label

    def branch(self, label: str) -> None:
        self._leads_to(label)
        self.do(f"br label %{label}")

    def branch_if(self, condition: V, yes: str, no: str) -> None:
        self._leads_to(yes, no)
        self.do(f"br {condition}, label %{yes}, label %{no}")

    def _leads_to(self, *labels: str) -> None:
        if self._numbering is not None:
            for label in labels:
                self._numbering.branch(self.block, label)

    @contextmanager
    def loop(self, start: V, stop: V, step: V) -> Generator[V, None, None]:
        """`for (i = start; i < stop; i += step)`; yields i. State across iterations lives in allocas."""
        before, head, body, after = self.block, self.label("head"), self.label("body"), self.label("after")
        self.branch(head)
        self.start(head)
        variable, next_ = self.fresh("i"), self.fresh("n")
        position = len(self.lines)
        self.lines.append("")
        test = self.icmp("slt", V(start.type, variable), stop)
        self.branch_if(test, body, after)
        self.start(body)
        self._loops += 1
        loops = self._loops
        yield V(start.type, variable)
        self.do(f"{next_} = add nsw {V(start.type, variable)}, {step.name}")
        latch = self.block
        self.branch(head)
        arrival = f"phi {start.type} [ {start.name}, %{before} ], [ {next_}, %{latch} ]"
        is_long = self._loops == loops and len(self.lines) - position > _LONG_LOOP
        if self._hides_counters and is_long:
            seen = self.fresh("p")
            hidden = f'  {variable} = call {start.type} asm "", "=r,0"({start.type} {seen})'
            self.lines[position] = f"  {seen} = {arrival}\n{hidden}"
        else:
            self.lines[position] = f"  {variable} = {arrival}"
        self.start(after)

    @contextmanager
    def when(self, condition: V) -> Generator[None, None, None]:
        """`if (condition) { ... }`"""
        yes, after = self.label("then"), self.label("after")
        self.branch_if(condition, yes, after)
        self.start(yes)
        yield
        self.branch(after)
        self.start(after)

    def finish(self, result: V | None = None, order: Callable[[list[str]], list[str]] | None = None) -> None:
        """End the function and hand it to the module, its lines in another order if one is given."""
        self.do(f"ret {result}" if result else "ret void")
        lines = [*self._entry, *self.lines]
        origin = "" if self._origins is None else self._origins.annotate(self.name, lines, len(self._entry))
        if order is not None:
            lines = order("\n".join(lines).split("\n"))
        head = f"define {self.result} @{self.name}({self._params}) {self.attributes}{origin} {{"
        self.module.functions.append("\n".join([head, f"{ENTRY}:", *lines, "}"]))

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, size: Size, symbols: dict[str, V]) -> V:
        """Evaluate an index expression to an i64 (or a vector of them, where a symbol is bound to a vector)."""
        if isinstance(size, int):
            return i64(size)
        total: V | None = None
        for monomial, coefficient in size.terms:
            term: V | None = None
            for atom in monomial:
                factor = symbols[atom.name] if atom.kind == "symbol" else self._atom(atom.kind, atom.args, symbols)
                term = factor if term is None else self._match(self.mul, term, factor)
            if term is None:
                term = i64(coefficient)
            elif coefficient != 1:
                term = self._match(self.mul, term, i64(coefficient))
            total = term if total is None else self._match(self.add, total, term)
        assert total is not None
        return total

    def _match(self, operation: Callable[[V, V], V], a: V, b: V) -> V:
        lanes = max(a.lanes, b.lanes)
        return operation(self.splat(a, lanes), self.splat(b, lanes))

    def _atom(self, kind: str, args: Sequence[Size], symbols: dict[str, V]) -> V:
        a, b = (self.size(arg, symbols) for arg in args)
        lanes = max(a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        if kind in ("max", "min"):
            return self.intrinsic(f"s{kind}", a, b)
        # Sizes and in-range indices are not negative; expressions that may be (padding) go through floor division.
        quotient = self.binary("sdiv", a, b)
        remainder = self.sub(a, self.mul(quotient, b))
        negative = self.icmp("slt", remainder, const(0, remainder.type))
        if kind == "//":
            return self.select(negative, self.sub(quotient, const(1, quotient.type)), quotient)
        return self.select(negative, self.add(remainder, b), remainder)


def mangle(type_: str) -> str:
    """The suffix of an overloaded intrinsic: `v16f32`."""
    value = V(type_, "")
    element = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(
        value.element, value.element
    )
    return element if value.lanes == 1 else f"v{value.lanes}{element}"
