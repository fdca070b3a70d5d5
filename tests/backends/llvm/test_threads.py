"""What LLVM refuses is an error, and nothing more: its module goes before the context that it is in."""

from __future__ import annotations

import gc

import llvmlite.binding as llvm
import pytest

from weft.backends.llvm import threads
from weft.errors import CompilationError

UNORDERED = """
define i64 @f(i1 %c, i64 %a) {
entry:
  br i1 %c, label %then, label %after
then:
  %b = add i64 %a, 1
  br label %after
after:
  ret i64 %b
}
"""


@pytest.mark.parametrize(
    ("text", "said"), [(UNORDERED, "does not dominate"), ("define i64 @f() { ret i32 0 }", "doesn't match")]
)
def test_a_refused_module_leaves_nothing_behind(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()
    close = llvm.ModuleRef.close
    monkeypatch.setattr(llvm.ModuleRef, "close", lambda self: closed.append("module") or close(self))
    context = llvm.create_context()
    with pytest.raises(CompilationError, match=said) as refusal:
        threads.parse(text, context)
    assert closed, f"{refusal} still holds it"
    context.close()
    gc.collect()
