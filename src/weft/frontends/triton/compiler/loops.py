"""Loops: which names are carried from iteration to iteration, that their types stay, and the call of the builder.

    for i in range(0, n):      %acc1 = for_loop 0, %n, 1 carried(%acc) {
        acc += f(i)      ──►       ... yield %acc + f(%i)
                               }

The body is evaluated twice: once for the types of what it assigns, once for good.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.types_only import NOTHING, is_types_only, types_only
from weft.frontends.triton.compiler.calls import to_condition
from weft.frontends.triton.compiler.carried import assigned, handles_of, last_assignment, rebuild_all, settled, type_of
from weft.frontends.triton.compiler.evaluation import Evaluation, describe
from weft.frontends.triton.compiler.scopes import ABSENT, is_mutable
from weft.frontends.triton.errors import KernelTypeError, KernelUnsupportedError
from weft.frontends.triton.language import arithmetic, debugging, types
from weft.frontends.triton.language.constants import base_type, constexpr, unwrap
from weft.frontends.triton.language.known import is_known, static_condition
from weft.frontends.triton.language.promotion import constant, promote_integers, to_tensor
from weft.frontends.triton.language.values import tensor
from weft.frontends.triton.language.values import tuple as tuple_value

Execute = Callable[[Evaluation, list[ast.stmt]], Any]


def unrolled_items(run: Evaluation, node: ast.For) -> Iterable[Any] | None:
    """The values of a loop that is unrolled: over `tl.static_range`, or a tuple; None for a loop of the kernel."""
    if isinstance(node.iter, ast.Call):
        function = unwrap(run.evaluate(node.iter.func))
        if function is range or function is debugging.range:
            return None
        items = run.evaluate(node.iter)
        if isinstance(items, debugging.static_range):
            return _static_range(run, node, items)
    else:
        items = run.evaluate(node.iter)
    if isinstance(items, tensor) or not (is_known(items) or isinstance(items, tuple_value)):
        error = KernelTypeError(
            f"a loop cannot go over {describe(items)}",
            hint="Only `range`, `tl.range`, `tl.static_range` and tuples can be gone through; a tensor is computed "
            "with as a whole",
        )
        raise run.placed(error, node.iter)
    return list(unwrap(items))


def _static_range(run: Evaluation, node: ast.For, items: Any) -> range:
    bounds = [unwrap(bound) for bound in (items.start, items.end, items.step)]
    for bound in bounds:
        if not isinstance(bound, int):
            error = KernelTypeError(
                f"tl.static_range goes over numbers known at compile time, not {describe(bound)}",
                hint="use range or tl.range, or make the bound a tl.constexpr",
            )
            raise run.placed(error, node.iter)
    return range(*bounds)


def for_loop(run: Evaluation, node: ast.For, execute: Execute) -> None:
    """Evaluate `for i in range(...)`."""
    if not isinstance(node.target, ast.Name):
        raise KernelUnsupportedError("a loop over a range has one variable", hint="write `for i in range(...)`")
    name = node.target.id
    lower, upper, step, sign = _bounds(run, node)
    carried = _Carried(run, node, {name})
    with carried.entered():
        run.scope.set(name, tensor(NOTHING, lower.dtype))
        with types_only():
            execute(run, node.body)
        carried.check()
    if not is_types_only():
        start: tensor = lower if sign is None else constant(0, lower.dtype)
        end: tensor = upper if sign is None else arithmetic.sub(upper, lower) * sign

        def body(index: Any, handles: list[Any]) -> list[Any]:
            with carried.entered(handles):
                counter = tensor(index, lower.dtype)
                run.scope.set(name, counter if sign is None else lower + counter * sign)
                execute(run, node.body)
                return carried.handles()

        run.at(node)
        results = builder.current.get().for_loop(
            start.handle, end.handle, step.handle, lower.dtype.stored, carried.initial(), body
        )
        carried.leave(results)
    carried.forget()


def _bounds(run: Evaluation, node: ast.For) -> tuple[tensor, tensor, tensor, tensor | None]:
    """Lower and upper bound and step as scalars of one integer type.

    A step that is negative, or may be, comes without its sign, and the sign with it: 1, -1, or 0 for no iterations at
    all.
    """
    assert isinstance(node.iter, ast.Call)
    if unwrap(run.evaluate(node.iter.func)) is debugging.range:
        iterator = run.evaluate(node.iter)
        parts = [iterator.start, iterator.end, iterator.step]
    else:
        arguments = [run.evaluate(argument) for argument in node.iter.args]
        if not 1 <= len(arguments) <= 3 or node.iter.keywords:
            error = KernelTypeError("range takes one to three arguments", hint="hints go to tl.range(n, num_stages=2)")
            raise run.placed(error, node.iter)
        parts = [constexpr(0), *arguments, constexpr(1)] if len(arguments) == 1 else [*arguments, constexpr(1)][:3]
    step = unwrap(parts[2])
    if isinstance(step, int) and step == 0:
        raise run.placed(KernelTypeError("the step of a loop is zero"), node.iter)
    downwards = isinstance(step, int) and step < 0
    if downwards:
        parts[2] = constexpr(-step)
    bounds = [to_tensor(part) for part in parts]
    for what, bound in zip(("lower bound", "upper bound", "step"), bounds, strict=True):
        if bound.sides or not bound.dtype.is_int():
            error = KernelTypeError(
                f"the {what} of a loop is {describe(bound)}: it must be a scalar integer",
                hint="convert with .to(tl.int32); reduce a tile to a scalar first",
            )
            raise run.placed(error, node.iter)
    common = promote_integers(promote_integers(bounds[0].dtype, bounds[1].dtype), bounds[2].dtype)
    lower, upper, stride = (bound.to(common) for bound in bounds)
    if downwards:
        return lower, upper, stride, constant(-1, common)
    if isinstance(step, int) or not common.is_int_signed():
        return lower, upper, stride, None
    sign = (stride > 0).to(common) - (stride < 0).to(common)
    return lower, upper, arithmetic.maximum(stride * sign, constant(1, common)), sign


def while_loop(run: Evaluation, node: ast.While, execute: Execute) -> None:
    """Evaluate `while condition:`."""
    if node.orelse:
        raise KernelUnsupportedError("`else` after a loop is not supported", hint="put it after the loop")
    carried = _Carried(run, node, set())
    with carried.entered():
        with types_only():
            test = _test(run, node)
            if test is None:
                return
            execute(run, node.body)
        carried.check()
    if not is_types_only():

        def condition(handles: list[Any]) -> Any:
            with carried.entered(handles):
                test = _test(run, node)
                return constant(False, types.int1).handle if test is None else test.handle

        def body(handles: list[Any]) -> list[Any]:
            with carried.entered(handles):
                execute(run, node.body)
                return carried.handles()

        run.at(node)
        carried.leave(builder.current.get().while_loop(carried.initial(), condition, body))
    carried.forget()


def _test(run: Evaluation, node: ast.While) -> tensor | None:
    """The condition of a loop; None if it is known not to hold."""
    test = run.evaluate(node.test)
    test = getattr(test, "condition", test)  # of tl.condition, which adds hints
    if isinstance(test, tensor):
        return to_condition(test, "the condition of `while`")
    if not static_condition(test):
        return None
    error = KernelUnsupportedError(
        f"this loop never ends: its condition is always {unwrap(test)!r}",
        hint="let the condition depend on something that the loop changes",
    )
    raise run.placed(error, node.test)


class _Carried:
    """The names that a loop assigns and that have a value before it."""

    def __init__(self, run: Evaluation, node: ast.For | ast.While, own: set[str]) -> None:
        self.run, self.node, self.own = run, node, own
        self.outer = run.scope
        self.written = [name for name in assigned(node.body) if name not in own]
        self.names = [name for name in self.written if name in run.scope.values]
        for name in self.names:
            if name not in run.scope.constants:
                run.scope.set(name, settled(run.scope.values[name]))
        self.names += [name for name, value in run.scope.values.items() if is_mutable(value) and name not in self.names]

    @property
    def types(self) -> list[base_type]:
        return [type_of(self.outer.values[name]) for name in self.names]

    def initial(self) -> list[Any]:
        """The handles that the loop starts with."""
        return [handle for name in self.names for handle in handles_of(self.outer.values[name])]

    def handles(self) -> list[Any]:
        """The handles that an iteration carries on."""
        return [handle for name in self.names for handle in handles_of(self.run.scope.values[name])]

    def entered(self, handles: list[Any] | None = None) -> _Inside:
        """Names as at the beginning of an iteration."""
        return _Inside(self, handles)

    def check(self) -> None:
        """After an iteration: has every name the type that it had before?"""
        for name in [*self.names]:
            before = self.outer.values[name]
            after = self.run.scope.values.get(name, ABSENT)
            if name not in self.written and handles_of(before) == handles_of(after):
                self.names.remove(name)
            elif after is ABSENT:
                self._refuse(name, f"{name} has no value at the end of a turn: {self.run.scope.gone[name]}", before)
            elif name in self.outer.constants:
                self._refuse(name, f"{name} is declared tl.constexpr: a loop cannot change it", before)
            elif type_of(before) != type_of(after):
                message = (
                    f"the type of {name} changes from {describe(before)} to {describe(after)} in the loop at line "
                    f"{self.node.lineno}; the type must stay the same"
                )
                self._refuse(name, message, before)

    def _refuse(self, name: str, message: str, before: Any) -> None:
        element = repr(before.dtype).replace("triton.language", "tl") if isinstance(before, tensor) else "dtype"
        error = KernelTypeError(
            message,
            hint=f"give {name} its final type and shape before the loop (tl.zeros, .to), or convert in the loop with "
            f".to({element})",
        )
        raise self.run.placed(error, last_assignment(name, self.node.body) or self.node)

    def leave(self, handles: list[Any]) -> None:
        """After the loop, the names have the values of its last iteration."""
        for name, value in zip(self.names, rebuild_all(self.types, handles), strict=True):
            self.outer.set(name, value)

    def forget(self) -> None:
        """Names that only an iteration has are not known after the loop: it may have had none."""
        for name in [*self.written, *self.own]:
            if name not in self.names:
                self.outer.lose(name, f"it has a value only inside of the loop at line {self.node.lineno}")


class _Inside:
    def __init__(self, carried: _Carried, handles: list[Any] | None) -> None:
        self.carried, self.handles = carried, handles

    def __enter__(self) -> None:
        run, carried = self.carried.run, self.carried
        run.scope = carried.outer.copy()
        run.loops.append(carried.node)
        if self.handles is not None:
            for name, value in zip(carried.names, rebuild_all(carried.types, self.handles), strict=True):
                run.scope.set(name, value)

    def __exit__(self, *_: object) -> None:
        self.carried.run.scope = self.carried.outer
        self.carried.run.loops.pop()
