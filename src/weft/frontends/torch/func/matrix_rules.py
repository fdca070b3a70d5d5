"""Derivatives and batches of matrix calls (`capture.matrix_calls`): rules in torch code, traced where one is needed.

A rule calls such operators itself, so that its own derivatives, of any order, have rules as well.
"""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.capture import matrix_calls as calls
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.func.capture_function import capture, fake_tensor
from weft.frontends.torch.func.program import Slot
from weft.frontends.torch.importer.encoding import Decoder
from weft.ir.expr import Size
from weft.ir.locations import line_of
from weft.ir.types import Tensor as TensorType
from weft.ir.types import tensor_of
from weft.ops.call_rules import CALL_RULES
from weft.ops.graph import GraphBuilder, OpaqueOp, ReturnOp
from weft.ops.rules import with_batch

Gradients = Callable[[Sequence[Any], Sequence[Any], Sequence[Tensor]], Sequence[Tensor | None]]
"""Of grads of the results (None for 0), arguments and results: the gradients of the tensors among the arguments."""


@dataclass(frozen=True)
class MatrixRules:
    """The rules of an operator that takes matrices in any number of batch dimensions."""

    gradients: Gradients

    def vjp(
        self,
        b: GraphBuilder,
        op: OpaqueOp,
        grads: Sequence[SSAValue | None],
        operands: Sequence[SSAValue],
        results: Sequence[SSAValue],
    ) -> list[SSAValue | None]:
        given = [grad for grad in grads if grad is not None]
        taken = [*operands, *results, *given]
        encoded = json.loads(op.arguments.data)["args"]

        def rule(*tensors: Tensor) -> Any:
            own, values = tensors[: len(operands)], tensors[len(operands) : len(operands) + len(results)]
            seeds = iter(tensors[len(operands) + len(results) :])
            args = [Decoder(own, {}, {})(each) for each in encoded]
            return tuple(self.gradients([None if g is None else next(seeds) for g in grads], args, values))

        return _traced(b, op, rule, taken)

    def batch(
        self, b: GraphBuilder, op: OpaqueOp, operands: Sequence[SSAValue], flags: Sequence[bool], size: Size
    ) -> list[SSAValue]:
        given = [with_batch(b, value, flag, size) for value, flag in zip(operands, flags, strict=True)]
        text = {key: value for key, value in json.loads(op.arguments.data).items() if key != "strides"}
        types = [tensor_of(value.type) for value in op.results]
        stacked = [TensorType(each.dtype, (size, *each.shape)) for each in types]
        made = OpaqueOp.make(op.target.data, given, json.dumps(text), stacked, op.location)
        if "weft.claim" in op.attributes:
            made.attributes["weft.claim"] = op.attributes["weft.claim"]
        return list(b.insert(made).results)


def _traced(b: GraphBuilder, op: OpaqueOp, rule: Callable[..., Any], taken: Sequence[SSAValue]) -> list[Any]:
    """What a rule gives for these values, as ops at the builder's place."""
    types = [tensor_of(value.type) for value in taken]
    if not all(isinstance(size, int) for each in types for size in each.shape):
        raise UnsupportedError(
            f"{op.target.data} of symbolic sizes has no derivatives", location=line_of(op.location), hint="give sizes"
        )
    cpu = torch.device("cpu")
    fakes = [fake_tensor([int(size) for size in each.shape], to_torch(each.dtype), cpu) for each in types]  # pyright: ignore[reportArgumentType]
    program = capture(rule, fakes, {})
    given: dict[SSAValue, SSAValue] = dict(zip(program.function.block.args, taken, strict=False))
    for each in program.function.block.ops:
        if isinstance(each, ReturnOp):
            found = iter([given[value] for value in each.operands])
            return [next(found) if isinstance(leaf, Slot) else None for leaf in program.leaves]
        b.insert(each.clone(value_mapper=given))
    raise AssertionError("verified")


def _inverse(a: Tensor) -> Tensor:
    return torch.linalg.inv_ex(a)[0]


def _columns(x: Tensor) -> Tensor:
    """A number for each matrix, to multiply it with."""
    return x.unsqueeze(-1).unsqueeze(-1)


def _halved_diagonal(x: Tensor) -> Tensor:
    return x - 0.5 * torch.diag_embed(x.diagonal(dim1=-2, dim2=-1))


def _solve(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    back = calls.solve(args[0].mT, grads[0])[0]
    return -back @ results[0].mT, back


def _solve_triangular(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    a, _, upper, unitriangular = args
    back = calls.solve_triangular(a.mT, grads[0], not upper, unitriangular)
    whole, off = -back @ results[0].mT, int(unitriangular)
    return whole.triu(off) if upper else whole.tril(-off), back


def _cholesky(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    factor = results[0]
    inner = _halved_diagonal((factor.mT @ grads[0]).tril())
    half = calls.solve_triangular(factor.mT, inner + inner.mT, True, False)  # L⁻ᵀ S, then times L⁻¹
    return (0.5 * calls.solve_triangular(factor.mT, half.mT, True, False).mT,)


def _lu_factor(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if grads[0] is None:  # only the exchanges are read, which do not change
        return (None,)
    factors, _, _, order = results
    upper = factors.triu()
    lower = factors.tril(-1) + torch.eye(upper.shape[-1], dtype=upper.dtype, device=upper.device)
    inner = (lower.mT @ grads[0].tril(-1)).tril(-1) + (grads[0].triu() @ upper.mT).triu()
    half = calls.solve_triangular(lower.mT, inner, True, True)
    return (order @ calls.solve_triangular(upper, half.mT, True, False).mT,)


def _det(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return (_columns(grads[0]) * calls.cofactors(args[0]),)


def _cofactors(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return (calls.cofactors_along(args[0], grads[0]),)  # a second derivative: symmetric


def _cofactors_along(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The derivative of det(a) (<P, E> P - P E' P), where P is the inverse transposed, and E' transposes."""
    (grad,), (a, along) = grads, args
    a = calls.regular(a, "a third derivative of the determinant")
    inverse = _inverse(a).mT
    both = inverse @ along.mT @ inverse, inverse @ grad.mT @ inverse
    traces = (along * inverse).sum((-2, -1)), (grad * inverse).sum((-2, -1))
    mixed = (both[0] * grad).sum((-2, -1))
    pairs = both[0] @ grad.mT @ inverse + both[1] @ along.mT @ inverse
    outer = _columns(traces[0] * traces[1] - mixed) * inverse
    whole = outer - _columns(traces[1]) * both[0] - _columns(traces[0]) * both[1] + pairs
    return _columns(calls.det(a)) * whole, calls.cofactors_along(args[0], grad)


def _slogdet(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if grads[1] is None:
        return (None,)
    return (_columns(grads[1]) * _inverse(calls.regular(args[0], "the gradient of slogdet")).mT,)


def _regular(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return (grads[0],)


def _upper_of_qr(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    raise UnsupportedError(
        "linalg.qr has no derivative with mode='r': it depends on Q, which is not computed",
        hint="take `torch.linalg.qr(a, mode='reduced')[1]`",
    )


def _eigh(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    (values, vectors), (of_values, of_vectors) = results, grads
    inner = None if of_values is None else torch.diag_embed(of_values)
    if of_vectors is not None:
        turned = (vectors.mT @ of_vectors) * _quotients(values)
        inner = turned if inner is None else inner + turned
    if inner is None:
        return (None,)
    return (vectors @ (0.5 * (inner + inner.mT)) @ vectors.mT,)  # of a symmetric matrix: a symmetric gradient


def _quotients(values: Tensor) -> Tensor:
    """1 / (v_k - v_j), and 0 on the diagonal."""
    eye = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    return (1 - eye) / (values.unsqueeze(-2) - values.unsqueeze(-1) + eye)


def _svd(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    (u, s, vh), (of_u, of_s, of_vh) = results, grads
    inner = None if of_s is None else torch.diag_embed(of_s)
    outer = None

    def added(known: Tensor | None, more: Tensor) -> Tensor:
        return more if known is None else known + more

    if of_u is not None:
        turned = u.mT @ of_u
        inner = added(inner, (turned - turned.mT) * _quotients(s * s) * s.unsqueeze(-2))
        if u.shape[-2] > s.shape[-1]:
            outer = ((of_u - u @ turned) / s.unsqueeze(-2)) @ vh
    if of_vh is not None:
        turned = vh @ of_vh.mT
        inner = added(inner, s.unsqueeze(-1) * ((turned - turned.mT) * _quotients(s * s)))
        if vh.shape[-1] > s.shape[-1]:
            outer = added(outer, (u / s.unsqueeze(-2)) @ (of_vh - turned.mT @ vh))
    if inner is None:
        return (None,)
    found = u @ inner @ vh
    return (found if outer is None else found + outer,)


def _qr(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    (q, r), (of_q, of_r) = results, grads
    inner = torch.zeros_like(r)
    if of_r is not None:
        inner = inner + of_r @ r.mT
    if of_q is not None:
        inner = inner - q.mT @ of_q
    upper = _halved_diagonal(inner.triu())
    whole = q @ (upper + upper.mT)
    whole = whole if of_q is None else of_q + whole
    return (calls.solve_triangular(r, whole.mT, True, False).mT,)


def _matrix_exp(grads: Sequence[Any], args: Sequence[Any], results: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The corner of the exponential of a matrix twice as large."""
    turned, size = args[0].mT, args[0].shape[-1]
    above = torch.cat([turned, grads[0]], -1)
    below = torch.cat([torch.zeros_like(turned), turned], -1)
    return (calls.matrix_exp(torch.cat([above, below], -2))[..., :size, size:],)


_GRADIENTS: dict[str, Gradients] = {
    "solve": _solve,
    "solve_triangular": _solve_triangular,
    "cholesky": _cholesky,
    "lu_factor": _lu_factor,
    "cofactors": _cofactors,
    "cofactors_along": _cofactors_along,
    "det": _det,
    "regular": _regular,
    "slogdet": _slogdet,
    "eigh": _eigh,
    "svd": _svd,
    "qr": _qr,
    "upper_of_qr": _upper_of_qr,
    "matrix_exp": _matrix_exp,
}
CALL_RULES.update((f"weft::{name}", MatrixRules(rule)) for name, rule in _GRADIENTS.items())
