"""Control flow that torch can transform: loops and branches as functions whose derivatives and batches are such again.

    scan(f)  ─ backward ─►  scan(f, keeping its states), then a scan of f's vjp from the last turn to the first
    scan(f)  ─ jvp ─────►   scan(f's jvp)            scan(f)  ─ vmap ─►  scan(f's vmap)
    cond(f, g)              ─►  cond of what is derived of both

Torch's own higher-order operators stay below, where nothing is transformed: Weft makes loops and branches of them.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.frontends.torch.capture.loop_states import with_own_states
from weft.frontends.torch.transforms.traced_bodies import own_results, traced_once

Body = Callable[..., Sequence[Any]]
_operators: Any = torch.ops.higher_order


def scan(body: Body, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
    """What is carried after the last turn, and what the turns give, stacked.

    A turn takes what is carried, slices of `xs` and what is captured; it gives what is carried on, and slices.
    """
    return _Scan.apply(body, len(init), len(xs), *init, *xs, *captured)


def cond(predicate: Any, then: Body, otherwise: Body, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of one of two functions."""
    if isinstance(predicate, bool):
        return tuple((then if predicate else otherwise)(*operands))
    return _Cond.apply(predicate, then, otherwise, *operands)


def map_rows(body: Body, xs: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
    """The results for each row, which do not depend on each other: a batch."""
    dims = (*(0 for _ in xs), *(None for _ in captured))
    return tuple(torch.func.vmap(body, dims, randomness="different")(*xs, *captured))


def associative_scan(body: Body, xs: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
    """The rows combined from the first on, one after the other."""

    def turn(*values: Any) -> tuple[Any, ...]:
        found = tuple(body(*values))
        return (*found, *(each.clone() for each in found))

    results = scan(turn, [x[0].clone() for x in xs], [x[1:] for x in xs], captured)
    return tuple(torch.cat([x[:1], rest]) for x, rest in zip(xs, results[len(xs) :], strict=True))


def while_loop(
    going: Callable[..., Any], body: Body, carried: Sequence[Any], captured: Sequence[Any]
) -> tuple[Any, ...]:
    """What is carried when the condition holds no longer."""
    return _While.apply(going, body, len(carried), *carried, *captured)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(body: Body, carried: int, cut: int, *values: Any) -> tuple[Any, ...]:
        init, xs, captured = _parts(values, carried, cut)
        rows = [x.select(0, 0) for x in xs] if all(x.shape[0] for x in xs) else None
        turn = _own(body) if rows is None else traced_once(_own(body), [*init, *rows, *captured])
        with own_results():
            return tuple(_operators.scan(*with_own_states(_operators.scan, (turn, init, xs, tuple(captured)))))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.body, ctx.carried, ctx.cut, *values = inputs
        _keep(ctx, values, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        values = _kept(ctx)
        init, xs, captured = _parts(values, ctx.carried, ctx.cut)
        states, slices, whole = _floats(init), _floats(xs), _floats(captured)
        stacks = [n for n in ctx.floats if n >= ctx.carried]
        body, count = ctx.body, len(init) + len(xs)

        def noting(*given: Any) -> tuple[Any, ...]:
            return (*body(*given)[: len(init)], *(state.clone() for state in given[: len(init)]))

        def back(*given: Any) -> tuple[Any, ...]:
            to_states, sums, rest = _parts(given, len(states), len(whole))
            before, rest = rest[: len(init)], rest[len(init) :]
            row, rest = rest[: len(xs)], rest[len(xs) :]
            seeds, taken = rest[: len(stacks)], [*before, *row, *rest[len(stacks) :]]
            places = [*states, *(len(init) + n for n in slices), *(count + n for n in whole)]
            pull = _pulled(body, taken, places, [*states, *stacks])
            found = pull((*to_states, *seeds))
            new = found[len(states) + len(slices) :]
            added = [total + each for total, each in zip(sums, new, strict=True)]
            return (*found[: len(states)], *added, *found[len(states) : len(states) + len(slices)])

        history = scan(noting, init, xs, captured)[len(init) :]
        seeds = [*history, *xs, *(grads[n] for n in stacks)]
        first = [*(grads[n].clone() for n in states), *(torch.zeros_like(captured[n]) for n in whole)]
        found = scan(back, first, [each.flip(0) for each in seeds], captured)
        gradients: list[Any] = [None] * (3 + len(values))
        for place, gradient in zip(states, found, strict=False):
            gradients[3 + place] = gradient
        for place, gradient in zip(whole, found[len(states) :], strict=False):
            gradients[3 + count + place] = gradient
        for place, gradient in zip(slices, found[len(states) + len(whole) :], strict=True):
            gradients[3 + len(init) + place] = gradient.flip(0)
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        values, tangents = _kept(ctx), tangents[3:]
        init, xs, captured = _parts(values, ctx.carried, ctx.cut)
        groups = [_floats(part) for part in (init, xs, captured)]
        starts = [0, len(init), len(init) + len(xs)]
        places = [start + n for start, group in zip(starts, groups, strict=True) for n in group]
        sizes = [len(init), len(groups[0]), len(xs), len(groups[1]), len(captured)]
        made = [n for n in ctx.floats if n >= ctx.carried]

        def turn(*given: Any) -> tuple[Any, ...]:
            state, dstate, row, drow, rest, drest = _split(given, sizes)
            results, pushed = _pushed(ctx.body, [*state, *row, *rest], places, (*dstate, *drow, *drest))
            steps = [pushed[n] for n in groups[0]]
            return (*results[: len(init)], *steps, *results[len(init) :], *(pushed[n] for n in made))

        given = [_tangent(values[n], tangents[n]) for n in places]
        dinit, dxs, dcaptured = _parts(given, len(groups[0]), len(groups[1]))
        found = scan(turn, [*init, *dinit], [*xs, *dxs], [*captured, *dcaptured])
        carried = len(init) + len(dinit)
        result: list[Any] = [None] * ctx.count
        for place, tangent in zip(groups[0], found[len(init) : carried], strict=True):
            result[place] = tangent
        for place, tangent in zip(made, found[len(found) - len(made) :] if made else (), strict=True):
            result[place] = tangent
        return tuple(result)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], body: Body, carried: int, cut: int, *values: Any) -> tuple[Any, Any]:
        dims = in_dims[3:]
        init, xs, captured = _parts(values, carried, cut)
        begun = [_batched(x, dim, info.batch_size) for x, dim in zip(init, dims, strict=False)]
        rows = [x if dim is None else x.movedim(dim, 1) for x, dim in zip(xs, dims[carried:], strict=False)]
        whole = [x if d is None else x.movedim(d, 0) for x, d in zip(captured, dims[carried + cut :], strict=True)]
        inside = (*(0 for _ in init), *(None if dim is None else 0 for dim in dims[carried:]))
        turn = torch.func.vmap(lambda *given: tuple(body(*given)), inside, randomness=info.randomness)
        results = scan(turn, begun, rows, whole)
        return results, (*(0 for _ in init), *(1 for _ in results[carried:]))


class _Cond(torch.autograd.Function):
    @staticmethod
    def forward(predicate: Tensor, then: Body, otherwise: Body, *operands: Any) -> tuple[Any, ...]:
        branches = [traced_once(_own(branch), operands) for branch in (then, otherwise)]
        with own_results():
            return tuple(_operators.cond(predicate, *branches, tuple(operands)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        predicate, ctx.then, ctx.otherwise, *operands = inputs
        _keep(ctx, [predicate, *operands], output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        predicate, *operands = _kept(ctx)
        places = _floats(operands)

        def branch(body: Body) -> Body:
            def pulled(*given: Any) -> tuple[Any, ...]:
                taken, seeds = given[: len(operands)], given[len(operands) :]
                return _pulled(body, taken, places, ctx.floats)(tuple(seeds))

            return pulled

        seeds = [grads[n].clone() for n in ctx.floats]
        found = cond(predicate, branch(ctx.then), branch(ctx.otherwise), [*operands, *seeds])
        gradients: list[Any] = [None] * (3 + len(operands))
        for place, gradient in zip(places, found, strict=True):
            gradients[3 + place] = gradient
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        predicate, *operands = _kept(ctx)
        places = _floats(operands)

        def branch(body: Body) -> Body:
            def pushed(*given: Any) -> tuple[Any, ...]:
                taken, steps = given[: len(operands)], given[len(operands) :]
                found = _pushed(body, taken, places, tuple(steps))[1]
                return tuple(found[n] for n in ctx.floats)

            return pushed

        steps = [_tangent(operands[n], tangents[3 + n]) for n in places]
        found = cond(predicate, branch(ctx.then), branch(ctx.otherwise), [*operands, *steps])
        result: list[Any] = [None] * ctx.count
        for place, tangent in zip(ctx.floats, found, strict=True):
            result[place] = tangent
        return tuple(result)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], predicate: Tensor, then: Body, otherwise: Body, *operands: Any
    ) -> tuple[Any, Any]:
        options: Any = {"in_dims": in_dims[3:], "randomness": info.randomness}
        if all(dim is None for dim in in_dims[3:]):  # only the predicate has a batch
            one, other = (tuple(body(*operands)) for body in (then, otherwise))
            one, other = ([_batched(x, None, info.batch_size) for x in each] for each in (one, other))
        else:
            branches = [torch.func.vmap(lambda *x, body=body: tuple(body(*x)), **options) for body in (then, otherwise)]
            if in_dims[0] is None:
                results = cond(predicate, branches[0], branches[1], operands)
                return results, (0,) * len(results)
            one, other = (branch(*operands) for branch in branches)
        chosen = predicate.movedim(in_dims[0], 0).reshape(-1)
        results = tuple(
            torch.where(chosen.reshape(-1, *(1 for _ in x.shape[1:])), x, y) for x, y in zip(one, other, strict=True)
        )
        return results, (0,) * len(results)


class _While(torch.autograd.Function):
    @staticmethod
    def forward(going: Callable[..., Any], body: Body, carried: int, *values: Any) -> tuple[Any, ...]:
        operands = tuple(values[:carried]), tuple(values[carried:])
        ask, turn = (traced_once(each, values) for each in (lambda *x: going(*x), _own(body)))
        with own_results():
            return tuple(_operators.while_loop(*with_own_states(_operators.while_loop, (ask, turn, *operands))))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.going, ctx.body, ctx.carried, *values = inputs
        _keep(ctx, values, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """From the last turn to the first, each of which computes again what came before it: how many there are is
        not known before they ran, so that nothing is kept of them."""
        values = _kept(ctx)
        carried, captured = values[: ctx.carried], values[ctx.carried :]
        states, whole = _floats(carried), _floats(captured)
        places, body, count = [*states, *(ctx.carried + n for n in whole)], ctx.body, ctx.carried

        def counted(number: Any, *given: Any) -> tuple[Any, ...]:
            return (number + 1, *body(*given))

        def again(number: Any, *given: Any) -> tuple[Any, ...]:
            return counted(number, *given[:count], *given[count + 1 :])

        def back(left: Any, *given: Any) -> tuple[Any, ...]:
            seeds, sums, begun, fixed = _split(given, [len(states), len(whole), count])
            last = left - 1
            start = [torch.zeros_like(last), *(value.clone() for value in begun)]
            before = while_loop(lambda number, *given: number < given[count], again, start, [last, *fixed])[1:]
            found = _pulled(body, [*before, *fixed], places, states)(tuple(seeds))
            added = [total + each for total, each in zip(sums, found[len(states) :], strict=True)]
            return (last, *found[: len(states)], *added)

        zero = torch.zeros((), dtype=torch.int64, device=carried[0].device)
        start = [zero, *(value.clone() for value in carried)]
        turns = while_loop(lambda number, *given: ctx.going(*given), counted, start, captured)[0]
        first = [*(grads[n].clone() for n in states), *(torch.zeros_like(captured[n]) for n in whole)]
        found = while_loop(lambda left, *given: left > 0, back, [turns, *first], [*carried, *captured])
        gradients: list[Any] = [None] * (3 + len(values))
        for place, gradient in zip(places, found[1:], strict=True):
            gradients[3 + place] = gradient
        return tuple(gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        values, tangents = _kept(ctx), tangents[3:]
        carried, captured = values[: ctx.carried], values[ctx.carried :]
        states, whole = _floats(carried), _floats(captured)
        places = [*states, *(ctx.carried + n for n in whole)]
        sizes = [len(carried), len(states), len(captured)]

        def turn(*given: Any) -> tuple[Any, ...]:
            state, dstate, rest, drest = _split(given, sizes)
            results, pushed = _pushed(ctx.body, [*state, *rest], places, (*dstate, *drest))
            return (*results, *(pushed[n] for n in states))

        def going(*given: Any) -> Any:
            state, _, rest, _ = _split(given, sizes)
            return ctx.going(*state, *rest)

        given = [_tangent(values[n], tangents[n]) for n in places]
        begun, fixed = [*carried, *given[: len(states)]], [*captured, *given[len(states) :]]
        found = while_loop(going, turn, begun, fixed)
        result: list[Any] = [None] * ctx.count
        for place, tangent in zip(states, found[len(carried) :], strict=True):
            result[place] = tangent
        return tuple(result)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], going: Callable[..., Any], body: Body, carried: int, *values: Any
    ) -> tuple[Any, Any]:
        """Turns as long as one sample goes on; the others keep what they have."""
        dims = in_dims[3:]
        begun = [_batched(x, dim, info.batch_size) for x, dim in zip(values[:carried], dims, strict=False)]
        fixed = [x if d is None else x.movedim(d, 0) for x, d in zip(values[carried:], dims[carried:], strict=True)]
        inside = (*(0 for _ in begun), *(None if dim is None else 0 for dim in dims[carried:]))
        asks = torch.func.vmap(lambda *x: going(*x).reshape(()), inside, randomness=info.randomness)
        turns = torch.func.vmap(lambda *x: tuple(body(*x)), inside, randomness=info.randomness)

        def turn(*given: Any) -> tuple[Any, ...]:
            on, new = asks(*given), turns(*given)
            pairs = zip(new, given, strict=False)
            return tuple(torch.where(on.reshape(-1, *(1 for _ in x.shape[1:])), x, old) for x, old in pairs)

        results = while_loop(lambda *given: asks(*given).any(), turn, begun, fixed)
        return results, (0,) * len(results)


# -- what the rules share ----------------------------------------------------------------------------------------------


def _own(body: Body) -> Body:
    """A body whose results are no memory of its arguments', nor of each other's."""
    return lambda *given: tuple(value.clone() for value in body(*given))


def _parts(values: Sequence[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    return list(values[:first]), list(values[first : first + second]), list(values[first + second :])


def _split(values: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Parts of these sizes, and the rest."""
    found, start = [], 0
    for size in sizes:
        found.append(list(values[start : start + size]))
        start += size
    return [*found, list(values[start:])]


def _floats(values: Sequence[Any]) -> list[int]:
    return [n for n, x in enumerate(values) if isinstance(x, Tensor) and x.dtype.is_floating_point]


def _tangent(value: Tensor, tangent: Tensor | None) -> Tensor:
    """A tangent of its own memory, which torch asks of what a loop is given."""
    return torch.zeros_like(value) if tangent is None else tangent.clone()


def _batched(value: Tensor, dim: int | None, size: int) -> Tensor:
    if dim is not None:
        return value.movedim(dim, 0)
    return value.expand(size, *value.shape).clone(memory_format=torch.contiguous_format)


def _keep(ctx: Any, values: Sequence[Any], output: Sequence[Any]) -> None:
    ctx.others = [None if isinstance(value, Tensor) else (value,) for value in values]
    tensors = [value for value in values if isinstance(value, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.floats, ctx.count = _floats(output), len(output)
    ctx.mark_non_differentiable(*(value for n, value in enumerate(output) if n not in ctx.floats))


def _kept(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if other is None else other[0] for other in ctx.others]


def _at(body: Body, values: Sequence[Any], places: Sequence[int], given: Sequence[int] | None = None) -> Body:
    """A body as a function of the values at some places; results that are floats, or those `given`."""

    def function(*primals: Any) -> tuple[Any, ...]:
        whole = list(values)
        for place, primal in zip(places, primals, strict=True):
            whole[place] = primal
        results = tuple(body(*whole))
        return results if given is None else tuple(results[n] for n in given)

    return function


def _pulled(body: Body, values: Sequence[Any], places: Sequence[int], given: Sequence[int]) -> Callable[..., Any]:
    pulled: Any = torch.func.vjp(_at(body, values, places, given), *(values[n] for n in places))
    return pulled[1]


def _pushed(
    body: Body, values: Sequence[Any], places: Sequence[int], tangents: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    found: Any = torch.func.jvp(_at(body, values, places), tuple(values[n] for n in places), tangents)
    return found
