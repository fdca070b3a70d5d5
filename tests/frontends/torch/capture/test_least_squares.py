"""`torch.linalg.lstsq`, which LAPACK carries out: the function around it is one graph, and so are its derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from weft.frontends.torch.capture import least_squares as least_squares


def _doubled(a: Tensor, b: Tensor) -> Tensor:
    return 2 * torch.linalg.lstsq(a, b).solution


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelss", "gelsd"])
@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (4, 3)])
def test_shapes_and_strides_are_those_of_lapack(driver: str, shape: tuple[int, int]) -> None:
    for batch, sides in (((), [2]), ((2,), [2]), ((2,), [])):
        a, b = torch.randn(*batch, *shape), torch.randn(*batch, shape[0], *sides)
        expected, mode = torch.linalg.lstsq(a, b, driver=driver), FakeTensorMode()
        try:
            found = torch.linalg.lstsq(mode.from_tensor(a), mode.from_tensor(b), driver=driver)
        except DataDependentOutputException:
            assert shape == (4, 3) and driver in ("gelss", "gelsd")
            continue
        told = [(x.shape, x.stride(), x.dtype) for x in found]
        assert told == [(x.shape, x.stride(), x.dtype) for x in expected]


def test_derivatives_and_batches_are_compiled() -> None:
    compiled = torch.compile(_doubled, backend="weft", fullgraph=True, options={"fallback": "quiet"})
    a, b = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 2, dtype=torch.float64)
    found, expected = ([y := f(a, b), torch.autograd.grad(y.sin().sum(), a)[0]] for f in (compiled, _doubled))
    torch.testing.assert_close(found, expected)
    a = a.detach()
    tangents = torch.randn_like(a), torch.randn_like(b)
    mine, eager = (torch.func.jvp(f, (a, b), tangents) for f in (compiled, _doubled))
    torch.testing.assert_close(mine, eager)
    batch = torch.randn(3, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        torch.func.vmap(compiled, (0, None))(batch, b), torch.stack([_doubled(each, b) for each in batch])
    )
    hessian = torch.func.hessian(lambda a: compiled(a, b).sin().sum())(a)
    torch.testing.assert_close(hessian, torch.func.hessian(lambda a: _doubled(a, b).sin().sum())(a))
