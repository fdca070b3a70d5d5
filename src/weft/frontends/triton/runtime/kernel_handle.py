"""What a launch gives back: the compiled kernel, and what Triton's users ask of it.

handle = kernel[grid](...)      handle.asm["ptx"]   handle.metadata.shared   handle.n_regs   handle[grid](...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from weft.forks import cached_property
from weft.frontends.triton.errors import LaunchError

if TYPE_CHECKING:
    from weft.frontends.triton.listings.listing import Listing
    from weft.frontends.triton.runtime.jit import JITFunction
    from weft.frontends.triton.runtime.specialise import Described

ALIASES = {"ttir": "tile", "ttgir": "nvidia", "llir": "llvm"}
"""Triton's names for levels, and the levels of ours that are nearest."""


@dataclass(frozen=True)
class Origin:
    """What a kernel was compiled of."""

    function: JITFunction
    described: Sequence[Described]
    groups: tuple[int, ...] | None
    options: Mapping[str, Any]


class KernelHandle:
    """A compiled kernel, as Triton's users see it."""

    origin: Origin | None = None
    """Set by whoever compiled it of a function."""
    n_regs: int = 0
    """Registers of a thread; a CPU has no count of them."""
    n_spills: int = 0
    """Words of 4 bytes of a thread that did not fit into registers."""
    n_max_threads: int = 1

    @property
    def name(self) -> str:
        return self._origin().function.__name__

    @property
    def src(self) -> Any:
        """The function that it was compiled of."""
        return self._origin().function

    @property
    def hash(self) -> str:
        """A digest of the function."""
        return self._origin().function.cache_key

    @cached_property
    def asm(self) -> dict[str, Any]:
        """The text at each level, by its name."""
        levels: dict[str, Any] = dict(self._listing().levels())
        return levels | {name: levels[level] for name, level in ALIASES.items() if level in levels} | self._binary()

    @cached_property
    def metadata(self) -> SimpleNamespace:
        """What the kernel takes of its device."""
        origin = self._origin()
        given = {name: origin.options.get(name) for name in ("num_stages", "num_ctas", "maxnreg")}
        given = {"num_stages": 3, "num_ctas": 1} | {name: value for name, value in given.items() if value is not None}
        return SimpleNamespace(name=self.name, debug=bool(origin.options.get("debug")), **given, **self._taken())

    def _taken(self) -> dict[str, Any]:
        from weft.frontends.triton.target import Processor

        return {"shared": 0, "num_warps": 1, "target": Processor().get_current_target()}

    def _binary(self) -> dict[str, Any]:
        return {}

    def _listing(self) -> Listing:
        from weft.frontends.triton.listings.listing import listing_for

        origin = self._origin()
        return listing_for(origin.function, origin.described, origin.groups)

    def _origin(self) -> Origin:
        if self.origin is None:
            raise LaunchError("this kernel was compiled of no function that is known")
        return self.origin

    def _init_handles(self) -> None:
        """Load the kernel: that is done already."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """`handle[grid](...)`: launch with the options it was compiled with."""
        origin = self._origin()

        def launch(*args: Any, **keywords: Any) -> Any:
            return origin.function[grid](*args, **{**origin.options, **keywords})

        return launch
