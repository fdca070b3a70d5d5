"""While Weft is Triton, graphs that Inductor would make Triton code of are compiled by Weft itself.

Inductor builds on parts of Triton that are not its language (its compiler's stages, its driver), which Weft does not
have. Libraries decorate functions with `@torch.compile`: on a GPU, or where such a function launches a kernel of
theirs, Inductor would fail, and the `weft` backend takes its place. Graphs of a processor alone stay Inductor's.
"""

# torch leaves what its own compilers use without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from weft.diagnostics import warn

_LAUNCHES = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
"""The operators that a launch of a kernel is in a graph of Dynamo's."""
_MODES = {"max_autotune": "max-autotune", "triton.cudagraphs": "reduce-overhead"}
"""Which mode of `torch.compile` a setting of Inductor's comes from."""

_BEFORE = "without_weft"
"""The name under which a stand-in has what it stands in for."""

Compile = Callable[..., Any]


class StandIn:
    """Takes Inductor's place until `end()`; of several that do, the last to end gives it back."""

    _there: ClassVar[int] = 0
    """How many stand in."""

    def __init__(self) -> None:
        self._ended = False
        StandIn._there += 1
        wrapper = _wrapper()
        if wrapper is not None and not hasattr(wrapper.__call__, _BEFORE):
            wrapper.__call__ = _standing_in(wrapper, wrapper.__call__)

    def end(self) -> None:
        """Give graphs to Inductor again."""
        if self._ended:
            return
        self._ended = True
        StandIn._there -= 1
        wrapper = _wrapper()
        if not StandIn._there and wrapper is not None and hasattr(wrapper.__call__, _BEFORE):
            wrapper.__call__ = getattr(wrapper.__call__, _BEFORE)


def _wrapper() -> Any:
    """What torch makes of `backend="inductor"`; None where torch is not loaded."""
    return getattr(sys.modules.get("torch"), "_TorchCompileInductorWrapper", None)


def _standing_in(wrapper: Any, inductor: Compile) -> Compile:
    def compile_graph(self: Any, module: Any, inputs: Sequence[Any], **more: Any) -> Any:
        reason = _why_not_inductor(module, inputs)
        if type(self) is not wrapper or reason is None:  # what is compiled ahead of time is Inductor's own format
            return inductor(self, module, inputs, **more)
        warn(
            "fallback",
            "a function under torch.compile is compiled by Weft in place of Inductor",
            f"{reason}, and `triton` is Weft in this process",
            'torch.compile(backend="weft") asks for that, disable() of what weft.triton.enable() gave ends it',
            cause="inductor",
        )
        backend: Compile = importlib.import_module("weft.frontends.torch.backend").weft_backend
        return backend(module, inputs, mode=_mode(self.config))

    vars(compile_graph)[_BEFORE] = inductor
    return compile_graph


def _mode(config: Mapping[str, Any]) -> str | None:
    return next((mode for setting, mode in _MODES.items() if config.get(setting)), None)


def _why_not_inductor(module: Any, inputs: Sequence[Any]) -> str | None:
    """Why a graph needs Triton's inner parts; None where it does not."""
    if any(getattr(each, "is_cuda", False) for each in _tensors(module, inputs)):
        return "it runs on a GPU, for which Inductor needs Triton's own compiler"
    for each in module.modules():
        graph = getattr(each, "graph", None)
        nodes = graph.nodes if graph is not None else ()
        if any(_launches(node.target) for node in nodes):
            return "it launches a Triton kernel, which Inductor would hand to Triton's own compiler"
    return None


def _launches(target: Any) -> bool:
    """Whether an operator of a graph launches a kernel: by itself, or as an operator made by `triton_op`."""
    made = getattr(sys.modules.get("torch._library.triton"), "triton_ops_to_kernels", ())
    return str(getattr(target, "_name", target)).partition(".")[0] in {*_LAUNCHES, *made}


def _tensors(module: Any, inputs: Sequence[Any]) -> Iterator[Any]:
    """The arguments of a graph, its parameters, and what its ops give."""
    yield from inputs
    yield from module.parameters()
    yield from module.buffers()
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        yield from value if isinstance(value, tuple | list) else (value,)
