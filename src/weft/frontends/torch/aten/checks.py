"""What functions that Weft traces in a form of its own say about their data."""

from __future__ import annotations

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_that


@aten("weft.check_data")
def check_data(b: ImportBuilder, wrong: SSAValue, kind: str, message: str) -> SSAValue:
    """Raise, when the program has run, where a condition holds that must not."""
    check_that(b, kind, message, wrong)
    return wrong
