"""torch.fft: claimed by a library where there is one, and Weft's own where nothing may be left to torch."""

import pytest
import torch

from weft.runtime.record import recording


def transforms(x):
    half = torch.fft.rfft2(x, norm="ortho")
    whole = torch.fft.fft(half, dim=0)
    return torch.view_as_real(half), torch.view_as_real(whole), torch.fft.irfft(torch.fft.ifft(whole, dim=0), n=9)


@pytest.mark.parametrize("strict", [False, True])
def test_transforms_and_their_gradients(strict):
    torch._dynamo.reset()
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(1), requires_grad=True)
    wide = x.detach().double().requires_grad_()
    with recording() as records:
        found = torch.compile(transforms, backend="weft", options={"cache": False, "strict": strict})(x)
        (gradient,) = torch.autograd.grad(sum(each.sin().sum() for each in found), x)
    wanted = transforms(wide)
    (expected,) = torch.autograd.grad(sum(each.sin().sum() for each in wanted), wide)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)
    claims = [claim.op for record in records for claim in record.claims if "fft" in claim.op]
    assert bool(claims) is not strict
    assert not [each.target for record in records for each in record.fallbacks]
