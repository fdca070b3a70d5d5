"""The `Target` protocol: all that the compiler and its front ends know of what they compile for.

A target is a package of its own, or a module of `weft.targets`, and is found by entry point (`weft.discovery`). It ties
together a list of passes, a backend and a way to run what that makes; nothing above asks for it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

from xdsl.passes import ModulePass

from weft.capabilities import Capabilities
from weft.config import Config
from weft.diagnostics import warn
from weft.discovery import OWN, load, load_all
from weft.errors import TargetError, UnsupportedError
from weft.ir.expr import symbols_of
from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp, OpaqueOp
from weft.tile.text import place_of

if TYPE_CHECKING:
    from weft.lower.steps import Plan

Opaque: TypeAlias = Callable[[OpaqueOp, Sequence[Any], Mapping[str, int]], Sequence[Any]]
"""Takes a call, the arrays of its operands and the values of symbols; gives arrays."""


@dataclass(frozen=True)
class CostFacts:
    """What the hardware does at most, from its data sheet; 0 where nobody says."""

    bandwidth: float = 0.0
    """Bytes a second between the memory and what computes."""
    matmul_flops: float = 0.0
    """Operations a second in products of 16-bit floats."""
    vector_flops: float = 0.0
    """Operations a second in f32 besides."""
    units: int = 1
    """How many programs run at once."""
    host_bandwidth: float = 0.0
    """Bytes a second from the memory to the host's, and as many back, where these are two."""


@dataclass(frozen=True)
class Host:
    """What a front end lends to compilations and to programs; all of it can be missing."""

    libraries: bool = False
    """It carries out products by its own library, where that is quicker."""
    opaque: Opaque | None = None
    """Carries out calls that Weft does not look into."""
    threads: int | None = None
    """In how many threads programs run on a processor, where that is not the number of its cores."""
    timer: Any = None
    """Measures programs on the device (`runtime.tune_device.DeviceTimer`), where schedules are measured."""
    loads: Any = None
    """Takes each kernel as soon as it is made (`backends.nvidia.compile.Loads`)."""


class Compiled(Protocol):
    """A compiled function, as its target's `load` takes it. What `code` is, is the target's own concern."""

    @property
    def code(self) -> Any: ...


class Executable(Protocol):
    """A loaded program: arrays in, in the order of the function's arguments, its results as arrays out.

    Arrays are NumPy's, or whatever else lies where the target computes and says so by DLPack. `symbols` are values of
    sizes that no argument's shape tells.
    """

    @property
    def inputs(self) -> Sequence[str]: ...

    @property
    def outputs(self) -> Sequence[str]: ...

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> Sequence[Any]: ...


ALONE = Host()


class Target(Protocol):
    """What code is made for: a kind of machine, or one that is there (`here`)."""

    name: ClassVar[str]
    """As users choose it: `Config.target`."""
    device: ClassVar[str]
    """Where its arrays lie, as DLPack and torch name devices: `cpu`, `cuda`."""

    @classmethod
    def here(cls, config: Config, index: int = 0) -> Self:
        """The target for what this machine has; `index` is one of several devices."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def costs(self) -> CostFacts: ...

    def passes(self, config: Config) -> list[ModulePass]:
        """From an imported function to what `compile` lowers."""
        ...

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> Compiled:
        """Run the passes on a function, which is changed, and make code of it."""
        ...

    def load(self, compiled: Any, config: Config, host: Host = ALONE) -> Executable:
        """What `compile` made, ready to be called in this process."""
        ...

    def cache_key(self) -> str:
        """All that changes the code beside the function and the configuration.

        It is empty where programs are not kept on disk; those that are, are `weft.pipelines.Compiled`.
        """
        ...


@runtime_checkable
class PlansMemory(Protocol):
    """A target that also knows what memory a function will take before there is code of it."""

    def plan(self, function: FuncOp, config: Config, host: Host = ALONE) -> Plan:
        """The buffers and steps that `compile` would make of a function, which is changed, without measuring."""
        ...


_ATTRIBUTES = ("name", "device", "capabilities", "costs")
_METHODS = ("here", "passes", "compile", "load", "cache_key")


def find_target(name: str) -> type[Target]:
    """The target of this name, wherever it comes from."""
    return _checked(name, load(name))


def targets() -> dict[str, type[Target]]:
    """Every target that is found and can be loaded, by name."""
    found: dict[str, type[Target]] = {}
    for name, loaded in load_all().items():
        try:
            found[name] = _checked(name, loaded)
        except TargetError as error:  # one that is none takes no other with it
            warn("targets", error.message, advice=error.hint or "", cause=f"target {name}")
    return found


def target_for_device(device: str) -> type[Target]:
    """The target that makes code for where tensors lie, by the kind of device: one of Weft's own, if there is such."""
    for name in OWN:
        if (own := find_target(name)).device == device:
            return own
    for found in targets().values():
        if found.device == device:
            return found
    raise TargetError(f"no target takes tensors on {device}", hint="move them, or install a target that does")


def target_at(device: str, config: Config, index: int = 0) -> Target:
    """The target that is asked for; where none is, that of the kind of device that tensors lie on."""
    found = find_target(config.target)
    if found.device != device and config.target == Config.target:
        found = target_for_device(device)
    if found.device != device:
        raise TargetError(
            f"the target {config.target!r} takes tensors on {found.device}, and these lie on {device}",
            hint=f"move them to {found.device}, or leave the target out: it follows where tensors lie",
        )
    return found.here(config, index)


def require_capabilities(function: FuncOp, target: Target) -> None:
    """Refuse a function that needs what the target says it cannot do."""
    if target.capabilities.dynamic_sizes:
        return
    inner = ((result, op) for op in function.block.ops for result in op.results)
    for value, op in (*((argument, None) for argument in function.block.args), *inner):
        tensor = tensor_of(value.type)
        symbols = sorted({name for size in tensor.shape for name in symbols_of(size)})
        if symbols:
            raise UnsupportedError(
                f"{tensor} has the dynamic size {', '.join(symbols)}, and the target {target.name!r} takes none",
                location=place_of(op or next((use.operation for use in value.uses), None)),
                hint="compile it for each size apart (torch.compile has dynamic=False), or for the target cpu",
            )


def argument_names(function: FuncOp) -> tuple[str, ...]:
    """The names of a function's arguments, made up where it has none."""
    given = () if function.arg_names is None else tuple(name.data for name in function.arg_names)
    return given or tuple(f"arg{number}" for number in range(len(function.block.args)))


def result_names(count: int) -> tuple[str, ...]:
    """Names for results, which a function gives none."""
    return tuple(f"result{number}" for number in range(count))


def _checked(name: str, found: Any) -> type[Target]:
    """What an entry point gave, if it is a target."""
    missing = [each for each in (*_ATTRIBUTES, *_METHODS) if not hasattr(found, each)]
    if missing:
        raise TargetError(
            f"{found!r}, which is found as the target {name!r}, has no {', '.join(missing)}",
            hint="`weft.backends.target.Target` is what it has to be",
        )
    return found
