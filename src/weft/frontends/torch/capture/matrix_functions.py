"""Functions of matrices, by solves with triangles, products of reflections and powers.

`decompositions` traces them where a graph has one; solves with triangles are a library's where one may be called. What
goes on row by row (substitution, pivots, row exchanges, reflections) is written out where it is short; factorisations
other than Cholesky's are LAPACK's.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from weft.frontends.torch.capture.data_checks import check_data
from weft.frontends.torch.capture.data_loops import by_batches, is_long_batch, repeat_while

_LONGEST = 16
"""Exchanges and reflections that are written out: of more, the call of LAPACK is faster."""
_LARGEST = 64
"""Rows of a matrix up to which its exponential is taken: for larger ones, torch's products are fewer."""
_TERMS = 25
"""Of the series of a matrix's exponential, up to a length of 2: the next is below 1e-17."""


def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """The solution for a triangle of `a`, and a copy of all of it."""
    turned = a.mT if transpose else a
    found = torch.linalg.solve_triangular(turned, b, upper=upper != transpose, unitriangular=unitriangular)
    batch = found.shape[:-2]
    return found, a.expand(*batch, *a.shape[-2:]).clone()


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The solution for a triangle of `a`, row by row: what is known of it is taken from the rows that are left."""
    size = a.shape[-1]
    if size > _LONGEST or a.is_complex():
        raise NotImplementedError(f"a solution of {size} rows of {a.dtype}")
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rest, rows = b.expand(*batch, *b.shape[-2:]), [b] * size
    for n in reversed(range(size)) if upper else range(size):
        row = rest[..., n : n + 1, :]
        rows[n] = row if unitriangular else row / a[..., n : n + 1, n : n + 1]
        rest = rest - a[..., :, n : n + 1] * rows[n]
    return torch.cat(rows, -2) if rows else rest.clone()


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """The solution for a matrix with this Cholesky factor."""
    if factor.is_complex():
        return NotImplemented
    first = torch.linalg.solve_triangular(factor.mT if upper else factor, b, upper=False)
    return torch.linalg.solve_triangular(factor if upper else factor.mT, first, upper=True)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a matrix with this Cholesky factor."""
    if factor.is_complex():
        return NotImplemented
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand(factor.shape)
    lower = torch.linalg.solve_triangular(factor.mT if upper else factor, eye, upper=False)
    return lower.mT @ lower


def cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The Cholesky factor, column by column, and the number of the first pivot that is not positive, or 0."""
    size = a.shape[-1]
    if size > _LONGEST or not a.is_floating_point() or check_errors:
        raise NotImplementedError(f"a Cholesky factor of {size} rows of {a.dtype}")
    places = torch.arange(size, device=a.device)
    rest, columns = a.mT if upper else a, [a[..., :0]] if size == 0 else []
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    for n in range(size):
        pivot = rest[..., n, n]
        info = torch.where((info == 0) & ~(pivot > 0), n + 1, info)
        ends = info.unsqueeze(-1) != 0  # what is left from there on is left as it is
        column = torch.where(places >= n, rest[..., :, n], 0.0)
        scaled = column / torch.sqrt(pivot).unsqueeze(-1)
        rest = torch.where(ends.unsqueeze(-1), rest, rest - scaled.unsqueeze(-1) * scaled.unsqueeze(-2))
        columns.append(torch.where(ends, column, scaled).unsqueeze(-1))
    factor = torch.cat(columns, -1)
    return factor.mT if upper else factor, info.to(torch.int32)


def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor of a matrix that must be positive definite."""
    factor, info = cholesky_ex(a, upper=upper)
    check_data(info != 0, "factor", "the matrix is not positive-definite")
    return factor


def matrix_exp(a: Tensor) -> Tensor:
    """By its series for a matrix that is halved until it is small, and squared as often."""
    size = a.shape[-1]
    if size > _LARGEST or not a.is_floating_point():
        raise NotImplementedError(f"an exponential of {size} rows of {a.dtype}")
    if a.numel() == 0:
        return a.clone()
    length = a.abs().sum(-2).amax(-1)[..., None, None]
    known = torch.isfinite(length)
    halvings = torch.ceil(torch.log2(torch.where(known & (length > 2), length / 2, 1.0)))
    small = a * torch.exp2(-halvings)
    eye = torch.eye(size, dtype=a.dtype, device=a.device)
    found = eye.expand(a.shape)
    for n in reversed(range(1, _TERMS)):
        found = eye + small @ found / n
    start = torch.zeros((), dtype=a.dtype, device=a.device)

    def turn(done: Tensor, found: Tensor, halvings: Tensor) -> tuple[Tensor, ...]:
        return done + 1, torch.where(done < halvings, found @ found, found)

    def going(done: Tensor, found: Tensor, halvings: Tensor) -> Tensor:
        return (done < halvings).any()

    return repeat_while(going, turn, (start, found), (halvings,))[1]


def lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The permutation, the lower and the upper factor that are packed in one matrix."""
    rows, columns = lu.shape[-2:]
    least = min(rows, columns)
    none = lu.new_empty((0,))
    permutation = lower = upper = none
    if unpack_data:
        eye = torch.eye(rows, least, dtype=lu.dtype, device=lu.device)
        lower, upper = lu[..., :, :least].tril(-1) + eye, lu[..., :least, :].triu()
    if unpack_pivots:
        if pivots.shape != (*lu.shape[:-2], least):
            raise NotImplementedError(f"pivots of {pivots.shape} for matrices of {lu.shape}")
        order = _order(pivots, rows)
        places = torch.arange(rows, device=lu.device)
        permutation = (places[:, None] == order[..., None, :]).to(lu.dtype)
    return permutation, lower, upper


def lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """The solution for a matrix that is given by its factors."""
    if lu.is_complex() or lu.shape[-1] > _LONGEST:
        return NotImplemented
    if not left:
        return lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    if 0 in (*batch, *b.shape[-2:]):  # without elements, eager does not look at the pivots either
        return b.new_zeros((*batch, *b.shape[-2:]))
    count = math.prod(batch)
    if batch and lu.shape[:-2] == b.shape[:-2] and is_long_batch((count, *lu.shape[-2:]), (count, *b.shape[-2:])):
        operands = (each.reshape(-1, *each.shape[len(batch) :]) for each in (lu, pivots, b))
        return by_batches(partial(_solved_columns, adjoint), *operands).reshape(b.mT.shape).mT
    if not batch and is_long_batch(b.mT.shape):
        return by_batches(partial(_solved_rows, adjoint), b.mT, captured=(lu, pivots)).mT
    order = _order(pivots, lu.shape[-1])
    b, order = b.expand(*batch, *b.shape[-2:]), order.expand(*batch, order.shape[-1])
    if adjoint:
        first = torch.linalg.solve_triangular(lu.mT, b, upper=False)
        found = torch.linalg.solve_triangular(lu.mT, first, upper=True, unitriangular=True)
        places = torch.arange(order.shape[-1], device=lu.device)
        back = ((places[:, None] == order[..., None, :]) * places).sum(-1)
        return _rows(found, back)
    first = torch.linalg.solve_triangular(lu, _rows(b, order), upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(lu, first, upper=True)


def _solved_columns(adjoint: bool, lu: Tensor, pivots: Tensor, b: Tensor) -> Tensor:
    """Solutions as rows: torch's lie in memory so."""
    return lu_solve(lu, pivots, b, adjoint=adjoint).mT


def _solved_rows(adjoint: bool, rows: Tensor, lu: Tensor, pivots: Tensor) -> Tensor:
    return _solved_columns(adjoint, lu, pivots, rows.mT)


def householder_product(a: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of reflections."""
    rows, columns = a.shape[-2:]
    if a.dim() > 2 and is_long_batch((math.prod(a.shape[:-2]), rows, columns)):
        found = by_batches(householder_product, a.reshape(-1, rows, columns), tau.reshape(-1, tau.shape[-1]))
        return found.reshape(a.shape)
    eye = torch.eye(rows, columns, dtype=a.dtype, device=a.device).expand(a.shape)
    return _reflected(a, tau, eye, forwards=False)


def ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """A matrix times a product of reflections, from the left or from the right."""
    if left:
        return _reflected(a, tau, other, forwards=transpose)
    return _reflected(a, tau, other.mT, forwards=not transpose).mT


def _reflected(a: Tensor, tau: Tensor, x: Tensor, forwards: bool) -> Tensor:
    """Reflections applied from the left, the first one first or last."""
    rows, count = a.shape[-2], tau.shape[-1]
    if count > _LONGEST or a.is_complex():
        raise NotImplementedError(f"{count} reflections of {a.dtype}")
    places = torch.arange(rows, device=a.device)
    for n in range(count) if forwards else reversed(range(count)):
        v = torch.where(places > n, a[..., :, n], (places == n).to(a.dtype)).unsqueeze(-1)
        x = x - v * (tau[..., n, None, None] * (v * x).sum(-2, keepdim=True))
    return x


def _order(pivots: Tensor, rows: int) -> Tensor:
    """Which row stands where after all exchanges."""
    if rows > _LONGEST:
        raise NotImplementedError(f"exchanges of {rows} rows")
    places = torch.arange(rows, device=pivots.device)
    order = places.expand(*pivots.shape[:-1], rows)
    for n in range(pivots.shape[-1]):
        other = pivots[..., n : n + 1].to(torch.int64) - 1
        theirs = torch.gather(order, -1, other)
        order = torch.where(places == n, theirs, torch.where(places == other, order[..., n : n + 1], order))
    return order


def _rows(x: Tensor, order: Tensor) -> Tensor:
    return torch.gather(x, -2, order.unsqueeze(-1).expand(x.shape))
