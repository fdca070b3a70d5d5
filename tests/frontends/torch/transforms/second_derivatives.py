"""The mark of tests that need second derivatives of compiled functions."""

from __future__ import annotations

import pytest

from weft.frontends.torch.transforms.double_backward import has_second_derivatives

needs_second_derivatives = pytest.mark.skipif(
    not has_second_derivatives(),
    reason="AOTAutograd lets compiled functions have second derivatives from torch 2.13 on",
)
