"""Factorisations and solutions of matrices as operators of captured graphs, which LAPACK carries out: `weft::solve`.

torch's own operators have more arguments than mathematics has, give factors that nobody asked for, and look at their
data. Here each takes matrices, in any number of batch dimensions that all of them have, and gives what it is named for.
`func.matrix_rules` has the derivatives; where nothing is transformed, graphs have torch's operators as they are.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import has_side_effect

from weft.diagnostics import calling_line
from weft.errors import DataError, DTypeError, ShapeError

_library = torch.library.Library("weft", "FRAGMENT")
_ops: Any = torch.ops.aten
_defined: list[str] = []


def _define(schema: str, call: Callable[..., Any], shaped: Callable[..., Any] | None = None) -> Any:
    """An operator whose results lie row by row, as those of a graph do; `shaped` where it looks at its data."""
    name = schema.partition("(")[0]

    def rows(call: Callable[..., Any], *args: Any) -> Any:
        found = call(*args)
        return found.contiguous() if isinstance(found, Tensor) else tuple(each.contiguous() for each in found)

    _defined.append(f"weft::{name}")
    _library.define(schema)
    _library.impl(name, partial(rows, call), "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{name}", partial(rows, shaped or call))
    return getattr(torch.ops.weft, name)


def _lu_and_order(a: Tensor) -> tuple[Tensor, ...]:
    factors, pivots, info = torch.linalg.lu_factor_ex(a)
    return factors, pivots, info, torch.lu_unpack(factors, pivots, unpack_data=False)[0].to(a.dtype)


def _cofactors(a: Tensor) -> Tensor:
    """The determinant times the inverse, by the same factors: of nearly singular matrices, errors of both cancel."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    size = torch.linalg.vector_norm(a, dim=(-2, -1), keepdim=True).squeeze(-1)
    least = torch.finfo(a.dtype).eps * torch.where(size == 0, 1, size)
    least = torch.diag_embed(torch.where(diagonal == 0, least, 0).to(a.dtype))
    exchanges = (pivots != torch.arange(1, a.shape[-1] + 1, device=a.device)).sum(-1)
    volume = (factors + least).diagonal(dim1=-2, dim2=-1).prod(-1) * (1 - 2 * (exchanges % 2))
    scaled = _identity(a) * volume.unsqueeze(-1).unsqueeze(-1)
    return torch.linalg.lu_solve(factors + least, pivots, scaled).mT


def _cofactors_along(a: Tensor, direction: Tensor) -> Tensor:
    """By singular values, of which products of all but two are needed: nothing is divided by."""
    u, s, vh = torch.linalg.svd(a)
    turned = u.mT @ direction @ vh.mT
    others = _products_of_others(s)
    on_diagonal = (others @ turned.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).squeeze(-1)
    inner = torch.diag_embed(on_diagonal) - others * turned.mT
    sign = torch.linalg.det(u) * torch.linalg.det(vh)
    return sign.unsqueeze(-1).unsqueeze(-1) * (u @ inner @ vh)


def _products_of_others(s: Tensor) -> Tensor:
    """For each pair of numbers the product of all others, and 0 on the diagonal."""
    one, size = torch.ones_like(s[..., :1]), s.shape[-1]
    before = torch.cat([one, s.cumprod(-1)], -1)[..., :size]
    after = torch.cat([one, s.flip(-1).cumprod(-1)], -1)[..., :size].flip(-1)
    above = torch.ones(size, size, dtype=torch.bool, device=s.device).triu(1)
    up_to = torch.where(above, s.unsqueeze(-2), 1).cumprod(-1)  # from behind the row's number to the column's
    between = torch.cat([torch.ones_like(up_to[..., :1]), up_to], -1)[..., :size]
    upper = (before.unsqueeze(-1) * between * after.unsqueeze(-2)).triu(1)
    return upper + upper.mT


def _regular(a: Tensor, what: str) -> Tensor:
    s = torch.linalg.svdvals(a)
    if s.numel() and bool((s[..., -1] <= s[..., 0] * a.shape[-1] * torch.finfo(a.dtype).eps).any()):
        raise DataError(f"{what} of a singular matrix")
    return a.clone()


solve = _define("solve(Tensor a, Tensor b) -> (Tensor, Tensor)", torch.linalg.solve_ex)
solve_triangular = _define(
    "solve_triangular(Tensor a, Tensor b, bool upper, bool unitriangular) -> Tensor",
    lambda a, b, upper, unitriangular: torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unitriangular),
)
cholesky = _define("cholesky(Tensor a) -> (Tensor, Tensor)", torch.linalg.cholesky_ex)
lu_factor = _define("lu_factor(Tensor a) -> (Tensor, Tensor, Tensor, Tensor)", _lu_and_order)
"""The factors, the exchanges of rows, whether it failed, and the exchanges as a matrix."""
cofactors = _define("cofactors(Tensor a) -> Tensor", _cofactors)
"""The derivative of the determinant; a pivot of 0 counts as the least that makes a difference to the matrix."""
cofactors_along = _define("cofactors_along(Tensor a, Tensor direction) -> Tensor", _cofactors_along)
"""The derivative of the cofactors in a direction: of matrices of any rank."""
regular = _define("regular(Tensor a, str what) -> Tensor", _regular, lambda a, what: a.clone())
"""A matrix as it is, which must not be singular: where only a derivative asks for it, no verdict on the data does."""
det = _define("det(Tensor a) -> Tensor", torch.linalg.det)
slogdet = _define("slogdet(Tensor a) -> (Tensor, Tensor)", torch.linalg.slogdet)
eigh = _define("eigh(Tensor a) -> (Tensor, Tensor)", lambda a: _ops._linalg_eigh(a))
svd = _define("svd(Tensor a) -> (Tensor, Tensor, Tensor)", lambda a: _ops._linalg_svd(a))
qr = _define("qr(Tensor a) -> (Tensor, Tensor)", torch.linalg.qr)
upper_of_qr = _define("upper_of_qr(Tensor a) -> Tensor", lambda a: torch.linalg.qr(a, mode="r")[1])
matrix_exp = _define("matrix_exp(Tensor a) -> Tensor", lambda a: _ops.linalg_matrix_exp(a))
CALLS = frozenset(_defined)
"""The targets of these operators, which have rules; what follows has none."""

check_matrices = _define("check_matrices(Tensor info, str name) -> Tensor", lambda info, name: info.clone())
has_side_effect(check_matrices.default)


def is_matrix_call(node: fx.Node) -> bool:
    """Whether a node calls one of the operators that have rules."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.name() in CALLS  # pyright: ignore[reportPrivateUsage]


def _is_usual(name: str, *matrices: Tensor) -> bool:
    """Whether matrices are of real numbers: others are left to torch. Those that LAPACK does not know are refused."""
    for each in matrices:
        if each.is_floating_point() and each.dtype not in (torch.float32, torch.float64):
            raise DTypeError(
                f"linalg.{name} of a matrix of {each.dtype}",
                location=calling_line(),
                hint="LAPACK knows float32 and float64: `.float()` before it",
            )
    return all(each.is_floating_point() for each in matrices)


def _is_square(name: str, a: Tensor, *others: Tensor) -> bool:
    """Whether matrices are of real numbers; the first must be square."""
    if a.dim() < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"linalg.{name} of a matrix that is not square: {list(a.shape)}", location=calling_line())
    return _is_usual(name, a, *others)


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices with the same batch dimensions."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    if not _is_square("solve", a, b):
        return NotImplemented
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    rows = b.unsqueeze(-1) if is_vector else b
    given = _together(a, rows) if left else _together(a.mT, rows.mT)
    found, info = solve(*given)
    found = found if left else found.mT
    info = _of_batch(info, a.shape[:-2]) if info.numel() else lu_factor(a)[2]
    if check_errors:
        check_matrices(info, "linalg.solve_ex")
    # Nobody sees the factors: they are torch's own, for its derivatives.
    return found.squeeze(-1) if is_vector else found, a.clone(), info, info


def _of_batch(info: Tensor, batch: torch.Size) -> Tensor:
    """What is known of each matrix of a batch, which other operands have made a larger one."""
    for _ in range(info.dim() - len(batch)):
        info = info.select(0, 0)
    for dim, size in enumerate(batch):
        info = info.narrow(dim, 0, size)
    return info


def _inv_ex(a: Tensor, *, check_errors: bool = False) -> Any:
    if not _is_square("inv", a):
        return NotImplemented
    found, info = solve(a, _identity(a))
    if check_errors:
        check_matrices(info, "linalg.inv_ex")
    return found, info


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if not _is_square("solve_triangular", a, b):
        return NotImplemented
    if left:
        return solve_triangular(*_together(a, b), upper, unitriangular)
    return solve_triangular(*_together(a.mT, b.mT), not upper, unitriangular).mT


def _cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    if not _is_square("cholesky", a):
        return NotImplemented
    factor, info = cholesky(a.mT if upper else a)
    if check_errors:
        check_matrices(info, "linalg.cholesky_ex")
    return factor.mT if upper else factor, info


def _cholesky(a: Tensor, upper: bool = False) -> Any:
    found = _cholesky_ex(a, upper=upper)
    if found is NotImplemented:
        return found
    check_matrices(found[1], "cholesky")
    return found[0]


def _lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    if not _is_usual("lu_factor", a) or not pivot or a.shape[-1] != a.shape[-2]:
        return NotImplemented
    factors, pivots, info, _ = lu_factor(a)
    if check_errors:
        check_matrices(info, "linalg.lu_factor_ex")
    return factors, pivots, info


def _lu(a: Tensor, *, pivot: bool = True) -> Any:
    if not _is_usual("lu", a) or not pivot or a.shape[-1] != a.shape[-2]:
        return NotImplemented
    factors, _, _, order = lu_factor(a)
    return order, factors.tril(-1) + _identity(a), factors.triu()


def _det(a: Tensor) -> Any:
    return (det(a), *_unseen_factors(a)) if _is_square("det", a) else NotImplemented


def _slogdet(a: Tensor) -> Any:
    return (*slogdet(a), *_unseen_factors(a)) if _is_square("slogdet", a) else NotImplemented


def _unseen_factors(a: Tensor) -> tuple[Tensor, Tensor]:
    """Factors and pivots, which are torch's own, for its derivatives."""
    return a.clone(), torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device)


def _eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> Any:
    return eigh(a if uplo.upper() == "L" else a.mT) if _is_square("eigh", a) else NotImplemented


def _svd(a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    if not _is_usual("svd", a) or driver is not None or (compute_uv and full_matrices and a.shape[-1] != a.shape[-2]):
        return NotImplemented
    return svd(a)


def _qr(a: Tensor, mode: str = "reduced") -> Any:
    rows, columns = a.shape[-2:]
    if mode == "r" and _is_usual("qr", a):
        return a.new_empty(0), upper_of_qr(a)
    if not _is_usual("qr", a) or rows < columns or (mode == "complete" and rows != columns):
        return NotImplemented
    return qr(a)


def _matrix_exp(a: Tensor) -> Any:
    return matrix_exp(a) if _is_square("matrix_exp", a) else NotImplemented


FORMS: dict[Any, Callable[..., Any]] = {
    _ops._linalg_solve_ex.default: _solve_ex,
    _ops.linalg_inv_ex.default: _inv_ex,
    _ops.linalg_solve_triangular.default: _solve_triangular,
    _ops.linalg_cholesky_ex.default: _cholesky_ex,
    _ops.cholesky.default: _cholesky,
    _ops.linalg_lu_factor_ex.default: _lu_factor_ex,
    _ops.linalg_lu.default: _lu,
    _ops._linalg_det.default: _det,
    _ops._linalg_slogdet.default: _slogdet,
    _ops._linalg_eigh.default: _eigh,
    _ops._linalg_svd.default: _svd,
    _ops.linalg_qr.default: _qr,
    _ops.linalg_matrix_exp.default: _matrix_exp,
}
"""torch's operators by these, for functions that are going to be transformed."""
