"""Kernels written by hand in PTX, and programs of them: the runtime is tested without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.nvidia.code import DeviceCode, Launch
from weft.ir.types import Tensor, f32
from weft.lower.steps import Buffer, CallStep, KernelStep, Place, Plan, Step
from weft.ops.layouts import contiguous

SIZE = 1000
THREADS = 128
BLOCKS = -(-SIZE // THREADS)

_HEAD = ".version 8.0\n.target {target}\n.address_size 64\n"

_SCALE = """
.visible .entry {name}(.param .u64 x, .param .u64 y)
{{
  .reg .pred %p, %q; .reg .u32 %r<4>; .reg .u64 %a, %b, %o, %i, %n, %s; .reg .f32 %v;
  {before}
  ld.param.u64 %a, [x]; ld.param.u64 %b, [y];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; cvt.u64.u32 %i, %r1;
  mov.u32 %r3, %nctaid.x; cvt.u64.u32 %s, %r3;
  mov.u64 %n, 1000;
again:
  setp.ge.u64 %q, %i, %n; @%q bra done;
  cvt.u32.u64 %r1, %i; mad.lo.u32 %r1, %r1, 128, %r2;
  setp.ge.u32 %p, %r1, 1000; @%p bra next;
  mul.wide.u32 %o, %r1, 4; add.u64 %o, %o, %a; ld.global.f32 %v, [%o];
  add.f32 %v, %v, %v;
  mul.wide.u32 %o, %r1, 4; add.u64 %o, %o, %b; st.global.f32 [%o], %v;
next:
  add.u64 %i, %i, %s; bra again;
done:
  ret;
}}
"""

_WILD = """
.visible .entry wild(.param .u64 x, .param .u64 y)
{
  .reg .u64 %a; .reg .u32 %v;
  mov.u64 %a, 64; mov.u32 %v, 1; st.global.u32 [%a], %v; ret;
}
"""

_RANK = """
.visible .entry rank(.param .u64 x, .param .u64 y)
{
  .reg .pred %p; .reg .u32 %r<4>; .reg .u64 %b, %o; .reg .f32 %v;
  ld.param.u64 %b, [y]; mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; @%p bra done;
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; cvt.rn.f32.u32 %v, %r2;
  mul.wide.u32 %o, %r1, 4; add.u64 %o, %o, %b; st.global.f32 [%o], %v;
done:
  ret;
}
"""


def _scale(name: str, before: str = "") -> str:
    return _SCALE.format(name=name, before=before)


PTX = _HEAD.format(target="sm_80") + _scale("scale") + _scale("looping") + _WILD
HOPPER_PTX = _HEAD.format(target="sm_90") + _scale("early", before="griddepcontrol.wait;") + _RANK

CODE = DeviceCode(
    "sm_80",
    dict.fromkeys(("scale", "looping", "wild"), PTX),
    {"scale": Launch(THREADS, 0), "looping": Launch(THREADS, 0, persistent=True), "wild": Launch(32, 0)},
)
HOPPER_CODE = DeviceCode(
    "sm_90",
    dict.fromkeys(("early", "rank"), HOPPER_PTX),
    {
        "early": Launch(THREADS, 0, programmatic=True),
        "rank": Launch(32, 60_000, cluster=4, blocks_per_program=4),
    },
)

TENSOR = Tensor(f32, (SIZE,))


def buffer(role: str) -> Buffer:
    return Buffer(role, TENSOR, contiguous(TENSOR))


def kernel(name: str, source: int, target: int, programs: int = BLOCKS) -> KernelStep:
    return KernelStep(name, (source, target), (), programs, 1, False, name)


def call(target: str, operands: Sequence[int], results: Sequence[int], arguments: str | None = None) -> CallStep:
    places = tuple(Place(number, TENSOR, contiguous(TENSOR)) for number in operands)
    text = arguments or '{"args":["#0"],"kwargs":{},"results":[0]}'
    return CallStep(target, text, places, tuple(results), target)


def chain(*steps: Step) -> Plan:
    """x → steps → y: buffer 0 is the input, 1 the output, 2 and 3 are temporaries, 4 and 5 are given by torch."""
    roles = ("input", "output", "temporary", "temporary", "external", "external")
    return Plan("chain", tuple(map(buffer, roles)), steps, (0,), (1,), ())


def in_place(*steps: Step) -> Plan:
    """The same, where the input is written over, and the result is what it was replaced by."""
    return replace(chain(*steps), outputs=(0, 1), replacing=(0,))
