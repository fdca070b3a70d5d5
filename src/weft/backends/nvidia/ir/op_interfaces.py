"""Op interfaces: what a stage of this backend does with each kind of op, registered beside the code that does it.

An op that a kernel for a GPU can hold, of the `tile` or of the `nvidia` dialect, has an entry in four of them:

    LAYOUT_RULES    layout/assignment.py    which layouts it takes its operands in, and gives its results
    SHARED_BYTES    ir/shared_bytes.py      the shared memory that it needs while it runs
    EMITTERS        emit/emitters.py        its code
    COSTS           ir/op_costs.py          who works on it together, and whether it is made again rather than moved

An entry is a rule, or says why there is none: that there is nothing to do, or that such an op never gets there.

    @EMITTERS.register(tile.ReduceOp)
    def emit_reduce(codegen: KernelCodegen, op: tile.ReduceOp) -> None: …

    LAYOUT_RULES.nothing_for("it makes no tile", tile.ProgramOp, tile.NumberOp)
    LAYOUT_RULES.never_for("sorting is left to libraries", tile.SortOp)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from xdsl.ir import Operation

from weft.errors import LoweringError

Rule = TypeVar("Rule")
Function = TypeVar("Function", bound=Callable[..., Any])


class OpInterface(Generic[Rule]):
    """One rule, or the reason why there is none, for each class of ops."""

    def __init__(self, what: str) -> None:
        self.what = what
        """What the rules give of an op, as errors call it."""
        self.rules: dict[type[Operation], Rule] = {}
        self.without: dict[type[Operation], str] = {}
        """The ops with which nothing is to be done, and why."""
        self.refused: dict[type[Operation], str] = {}
        """The ops that must not be met, and why."""

    def register(self, *ops: type[Operation]) -> Callable[[Function], Function]:
        """A decorator: the function is the rule of these ops. Its second argument, or its only one, is the op."""

        def add(rule: Function) -> Function:
            for op in ops:
                self._add(self.rules, op, rule)
            return rule

        return add

    def put(self, rule: Rule, *ops: type[Operation]) -> None:
        """Let ops have a rule that is no function of its own."""
        for op in ops:
            self._add(self.rules, op, rule)

    def nothing_for(self, reason: str, *ops: type[Operation]) -> None:
        """With these ops there is nothing to do."""
        for op in ops:
            self._add(self.without, op, reason)

    def never_for(self, reason: str, *ops: type[Operation]) -> None:
        """These ops do not come here; one that does is refused."""
        for op in ops:
            self._add(self.refused, op, reason)

    def _add(self, entries: dict[type[Operation], Any], op: type[Operation], entry: object) -> None:
        if op in self:
            raise ValueError(f"{op.name} has an entry for its {self.what} already")
        entries[op] = entry

    def __contains__(self, op: type[Operation]) -> bool:
        return op in self.rules or op in self.without or op in self.refused

    def refuses(self, op: Operation) -> str | None:
        """Why an op must not be met here."""
        kind = type(op)
        if kind in self.rules or kind in self.without:
            return None
        return f"{op.name} has no {self.what} on a GPU: {self.refused.get(kind, 'nothing is registered for it')}"

    def rule_of(self, op: Operation) -> Rule | None:
        """The rule of an op; None where there is nothing to do."""
        rule = self.rules.get(type(op))
        if rule is None and (refused := self.refuses(op)) is not None:
            raise LoweringError(refused)
        return rule
