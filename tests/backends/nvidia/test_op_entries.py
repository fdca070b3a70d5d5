"""Each op that a kernel for a GPU can hold has its layout rule, shared bytes, emitter and cost, or says why not."""

from __future__ import annotations

import pytest
from xdsl.irdl import IRDLOperation, irdl_op_definition

from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.backends.nvidia.op_entries import INTERFACES, kernel_ops, missing_entries
from weft.errors import LoweringError


@irdl_op_definition
class OneOp(IRDLOperation):
    name = "test.one"


@irdl_op_definition
class OtherOp(IRDLOperation):
    name = "test.other"


def test_every_op_of_a_kernel_has_its_entries() -> None:
    names = {op.name for op in kernel_ops()}
    assert {"tile.load", "tile.while", "nvidia.wgmma", "nvidia.bulk_copy"} <= names
    assert missing_entries() == [], "docs/nvidia.md says what to write for an op, and where"


@pytest.mark.parametrize("name", INTERFACES)
def test_reasons_are_said_of_ops_that_kernels_hold(name: str) -> None:
    interface, known = INTERFACES[name], set(kernel_ops())
    named = {op.name for op in (*interface.rules, *interface.without, *interface.refused) if op not in known}
    assert named <= {"tile.kernel"}
    assert all(interface.without.values()) and all(interface.refused.values())


def test_an_op_without_an_entry_is_refused_by_its_name() -> None:
    interface: OpInterface[str] = OpInterface("code")
    with pytest.raises(LoweringError, match=r"test\.one has no code on a GPU: nothing is registered for it"):
        interface.rule_of(OneOp.create())


def test_an_entry_is_a_rule_or_a_reason() -> None:
    interface: OpInterface[str] = OpInterface("layout")
    interface.put("in order", OneOp)
    interface.never_for("it comes later", OtherOp)
    assert interface.rule_of(OneOp.create()) == "in order"
    assert interface.refuses(OneOp.create()) is None
    with pytest.raises(LoweringError, match=r"test\.other has no layout on a GPU: it comes later"):
        interface.rule_of(OtherOp.create())
    with pytest.raises(ValueError, match=r"test\.one has an entry for its layout already"):
        interface.nothing_for("twice", OneOp)


def test_where_nothing_is_to_be_done_there_is_no_rule() -> None:
    interface: OpInterface[str] = OpInterface("layout")
    interface.nothing_for("it makes no tile", OneOp)
    assert interface.rule_of(OneOp.create()) is None
    assert interface.refuses(OneOp.create()) is None
