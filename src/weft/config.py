"""The one configuration: a frozen value, printed in every report and part of every cache key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from weft.errors import WeftError

TARGETS = ("cpu", "reference")
CODES = ("int4", "int4_64", "int4_32", "int8", "fp8", "mxfp4", "nvfp4")
"""How a GPU's weights can be held."""
QUANTIZATIONS = ("", "int8_weights", "int8_dynamic", *CODES)


@dataclass(frozen=True)
class Config:
    """How to compile. Fields can be given as options, or as environment variables `WEFT_<FIELD>`."""

    target: str = "cpu"
    """`cpu`: machine code, for a GPU where the tensors lie on one; `reference`: NumPy, the meaning of every op."""
    strict: bool = False
    """Neither libraries nor the framework's own kernels: an op that Weft cannot compile is an error."""
    freeze: bool = False
    """Weights are constants: they may be folded and packed at compile time."""
    quantize: str = ""
    """`int8_weights` holds the frozen weights of products in 8 bits, with a factor for each column; `int8_dynamic`
    rounds what they are multiplied with to 16 bits, with a factor for each row. Both need `freeze`. On a GPU, `int4`,
    `int4_64`, `int4_32`, `int8`, `fp8`, `mxfp4` and `nvfp4` hold weights of 16 bits so, and freeze them."""
    cache: bool = True
    """Keep compiled programs on disk."""
    verify: bool = False
    """Verify the IR before and after each pass."""
    tune: bool = False
    """Measure schedules of the kernels that take most of the time, and keep the fastest on disk."""
    cuda_graphs: bool = True
    """Capture calls on a GPU as CUDA graphs, where sizes do not change and that is quicker."""
    emulate_precision_casts: bool = False
    """Round what each op of the program gives to its type, as eager does; else narrow floats stay wide inside a kernel,
    but for results that leave it."""
    cpu: str = "native"
    """The processor to compile for: `native`, or a name LLVM knows."""

    def __post_init__(self) -> None:
        if self.quantize not in QUANTIZATIONS:
            known = ", ".join(map(repr, QUANTIZATIONS))
            raise WeftError(f"quantize is {self.quantize!r}, which is none of {known}")
        if self.quantize and not self.freeze:
            raise WeftError(f"quantize={self.quantize!r} needs constant weights", hint="set freeze=True, too")

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None = None) -> Self:
        """The defaults, overridden by the environment, overridden by `options`."""
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, field in known.items():
            text = os.environ.get(f"WEFT_{name.upper()}")
            if text is not None:
                values[name] = _truth(f"WEFT_{name.upper()}", text) if field.type == "bool" else text
        unknown = sorted(set(options or {}) - known.keys())
        if unknown:
            raise WeftError(f"unknown option {', '.join(unknown)}", hint=f"options are {', '.join(known)}")
        for name, value in (options or {}).items():
            wanted = bool if known[name].type == "bool" else str
            if not isinstance(value, wanted):
                raise WeftError(f"the option {name} is {value!r}", hint=f"it takes a {wanted.__name__}")
        values |= dict(options or {})
        if values.get("quantize") in CODES:
            values.setdefault("freeze", True)
        config = cls(**values)
        if config.target not in TARGETS:
            raise WeftError(f"no target is called {config.target!r}", hint=f"there are {', '.join(TARGETS)}")
        return config

    def key(self) -> str:
        """The part of the configuration that changes the code, as text."""
        return repr(sorted((k, v) for k, v in asdict(self).items() if k not in ("cache", "verify")))


def _truth(name: str, text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise WeftError(f"the environment variable {name} is {text!r}", hint="it takes 1 or 0")
    return known[text.lower()]
