"""Dialects as IRDL, MLIR's language for dialect definitions: what upstream MLIR needs to read and verify our text.

IRDL says how many operands, results and regions an op has and of which kinds, and which attributes it must have. Two
things it cannot say as upstream loads it. It has no traits: `terminators` lists the ops that end a block, for whoever
loads the definitions. And all operands of a variadic run must have one type; so for a given program `spelled_out` gives
definitions in which every run has the lengths that occur, under names that carry them, and the program in those names.

The ops of the graph dialect declare one run of operands and one of results; the signature of their NumPy reference says
what they are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects import builtin
from xdsl.ir import Attribute, Data, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import (
    AttrConstraint,
    BaseAttr,
    IRDLOperation,
    OperandDef,
    OptAttributeDef,
    OptionalDef,
    RangeConstraint,
    RangeLengthConstraint,
    RangeOf,
    ResultDef,
    VariadicDef,
)
from xdsl.traits import IsTerminator

_BUILTIN: dict[type[Attribute], str] = {
    builtin.TensorType: '"!builtin.tensor"',
    builtin.IndexType: '"!builtin.index"',
    builtin.StringAttr: '"#builtin.string"',
    builtin.IntegerAttr: '"#builtin.integer"',
    builtin.ArrayAttr: '"#builtin.array"',
    builtin.DictionaryAttr: '"#builtin.dictionary"',
    builtin.UnitAttr: '"#builtin.unit"',
}


@dataclass(frozen=True)
class Part:
    """An operand or a result: its name, what it must be, and whether it is `single`, `optional` or `variadic`."""

    name: str
    constraint: str = "any"
    variadicity: str = "single"


@dataclass(frozen=True)
class OpShape:
    """What IRDL says of an op; `required` are the attributes that it cannot be without."""

    name: str
    operands: tuple[Part, ...]
    results: tuple[Part, ...]
    required: dict[str, str]
    regions: tuple[str, ...]

    @property
    def has_runs(self) -> bool:
        return any(part.variadicity == "variadic" for part in (*self.operands, *self.results))

    def spelled_for(self, operation: Operation) -> OpShape:
        """The shape with every run as long as it is in that op; the name says how long."""
        operands = list(_spelled(self.operands, operation, len(operation.operands)))
        results = list(_spelled(self.results, operation, len(operation.results)))
        runs = [part.name for part in (*self.operands, *self.results) if part.variadicity == "variadic"]
        lengths = [sum(part.name.startswith(f"{run}_") for part in (*operands, *results)) for run in runs]
        name = "_".join([self.name, *map(str, lengths)])
        return replace(self, name=name, operands=tuple(operands), results=tuple(results))


def export_dialects(*dialects: Dialect) -> str:
    """The definitions of dialects, as the text of one module of IRDL."""
    return _module([(dialect, [shape_of(operation) for operation in dialect.operations]) for dialect in dialects])


def spelled_out(program: builtin.ModuleOp, *dialects: Dialect) -> tuple[str, str]:
    """Definitions for one program, and the program in the names that these define."""
    known = {operation.name: shape_of(operation) for dialect in dialects for operation in dialect.operations}
    met: dict[str, OpShape] = {}
    names: list[str] = []
    for operation in program.walk():
        shape = known.get(operation.name)
        if shape is not None:
            shape = shape.spelled_for(operation) if shape.has_runs else shape
            met[shape.name] = shape
            names.append(shape.name)
    following = iter(names)
    quoted = "|".join(re.escape(f'"{name}"') for name in sorted(known, key=len, reverse=True))
    # In the generic form an op's name stands before its regions: in the order of a walk.
    text = re.sub(rf"(?<!\\)(?:{quoted})(?=\()", lambda _: f'"{next(following)}"', str(program))
    return _module([(each, [s for s in met.values() if s.name.startswith(f"{each.name}.")]) for each in dialects]), text


def terminators(*dialects: Dialect) -> list[str]:
    """The names of the ops that end a block."""
    return [op.name for dialect in dialects for op in dialect.operations if op.has_trait(IsTerminator)]


def shape_of(operation: type[Operation]) -> OpShape:
    """What IRDL can say of an op."""
    if not issubclass(operation, IRDLOperation):
        raise TypeError(f"{operation.name} has no definition")
    definition = operation.get_irdl_definition()
    operands = tuple(_part(name, part) for name, part in definition.operands)
    results = tuple(_part(name, part) for name, part in definition.results)
    required = {
        name: _constraint(each.constr)
        for name, each in definition.attributes.items()
        if not isinstance(each, OptAttributeDef) and not name.endswith("SegmentSizes")
    }
    if (reference := getattr(operation, "reference", None)) is not None:
        signature = inspect.signature(reference)
        operands, results = _read_operands(signature, operands[0]), _read_results(signature, results[0])
        required |= _read_parameters(signature)
    return OpShape(definition.name, operands, results, required, tuple(name for name, _ in definition.regions))


def _part(name: str, part: OperandDef | ResultDef) -> Part:
    variadicity = {OptionalDef: "optional", VariadicDef: "variadic"}
    kind = next((text for kind, text in variadicity.items() if isinstance(part, kind)), "single")
    return Part(name, _constraint(part.constr), kind)


def _constraint(constraint: RangeConstraint | AttrConstraint) -> str:
    match constraint:
        case RangeLengthConstraint(constraint=inner) | RangeOf(constr=inner):
            return _constraint(inner)
        case BaseAttr(attr=base):
            dialect, name = base.name.split(".", 1) if "." in base.name else ("builtin", base.name)
            return f"base {_BUILTIN.get(base, f'@{dialect}::@{name}')}"
        case _:
            return "any"


def _read_operands(signature: inspect.Signature, declared: Part) -> tuple[Part, ...]:
    parts: list[Part] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            parts.append(replace(declared, name=name))
        elif str(parameter.annotation).startswith("np.ndarray"):
            optional = parameter.default is not inspect.Parameter.empty
            parts.append(Part(name, declared.constraint, "optional" if optional else "single"))
    single = [part for part in parts if part.variadicity == "single"]
    if len(parts) > len(single) + 1:  # of several that may lack an op would have to say which it has: they are one run
        return (*single, replace(declared, name=parts[len(single)].name))
    return tuple(parts)


def _read_results(signature: inspect.Signature, declared: Part) -> tuple[Part, ...]:
    annotation = str(signature.return_annotation)
    count = annotation.count("np.ndarray")
    if count == 0 or "..." in annotation:
        return (declared,)
    return tuple(Part(f"out{number}", declared.constraint) for number in range(count))


def _read_parameters(signature: inspect.Signature) -> dict[str, str]:
    """The parameters that have no default, of any kind."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: "any"
        for name, parameter in signature.parameters.items()
        if parameter.kind in named
        and parameter.default is inspect.Parameter.empty
        and not str(parameter.annotation).startswith("np.ndarray")
    }


def _spelled(parts: Sequence[Part], operation: Operation, total: int) -> Iterator[Part]:
    """The parts with runs spelled out; where there are several, the op itself tells their lengths."""
    others = sum(part.variadicity != "variadic" for part in parts)
    several = len(parts) - others > 1
    for part in parts:
        if part.variadicity == "variadic":
            length = len(getattr(operation, part.name)) if several else total - others
            yield from (Part(f"{part.name}_{number}", part.constraint) for number in range(length))
        else:
            yield part


@dataclass
class _Body:
    """The lines of one definition. A constraint is stated for each use: a shared one would mean equality."""

    lines: list[str] = field(default_factory=list[str])
    count: int = 0

    def constraint(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"%{self.count} = irdl.{text}")
        return f"%{self.count}"

    def parts(self, kind: str, parts: Iterable[Part]) -> None:
        texts: list[str] = []
        for part in parts:
            prefix = "" if part.variadicity == "single" else f"{part.variadicity} "
            texts.append(f"{part.name}: {prefix}{self.constraint(part.constraint)}")
        if texts:
            self.lines.append(f"irdl.{kind}({', '.join(texts)})")


def _module(shapes: Iterable[tuple[Dialect, Sequence[OpShape]]]) -> str:
    text = "module {\n"
    for dialect, operations in shapes:
        definitions = [_attribute(attribute) for attribute in dialect.attributes] + list(map(_operation, operations))
        text += f"  irdl.dialect @{dialect.name} {{\n{''.join(definitions)}  }}\n"
    return text + "}\n"


def _definition(kind: str, name: str, body: _Body) -> str:
    lines = "".join(f"      {line}\n" for line in body.lines)
    return f"    irdl.{kind} @{name.split('.', 1)[1]} {{\n{lines}    }}\n"


def _attribute(attribute: type[Attribute]) -> str:
    if issubclass(attribute, ParametrizedAttribute):
        names = [name for name, _ in attribute.get_irdl_definition().parameters]
    elif issubclass(attribute, Data):
        names = ["value"]
    else:
        raise TypeError(f"{attribute.name} is neither parametrized nor data")
    body = _Body()
    body.parts("parameters", map(Part, names))
    return _definition("type" if issubclass(attribute, TypeAttribute) else "attribute", attribute.name, body)


def _operation(shape: OpShape) -> str:
    body = _Body()
    body.parts("operands", shape.operands)
    body.parts("results", shape.results)
    if shape.required:
        texts = [f'"{name}" = {body.constraint(constraint)}' for name, constraint in shape.required.items()]
        body.lines.append(f"irdl.attributes {{ {', '.join(texts)} }}")
    if shape.regions:
        body.lines += [f"%{name} = irdl.region with size 1" for name in shape.regions]
        body.lines.append(f"irdl.regions({', '.join(f'{name}: %{name}' for name in shape.regions)})")
    return _definition("operation", shape.name, body)
