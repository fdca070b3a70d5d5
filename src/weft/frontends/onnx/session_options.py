"""Options of sessions by ONNX Runtime's names. What does nothing here is accepted, and told once when it is set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, ClassVar

from weft.config import Config
from weft.diagnostics import nearest, warn
from weft.errors import UnsupportedError


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime rewrites a graph; here all of it is always done."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether operators run beside each other; here one follows the other, each in all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _Options:
    """Attributes that are known, with the value of each that changes nothing; others are mistakes."""

    _works: ClassVar[Mapping[str, Any]] = {}
    """Options that count here, with their defaults."""
    _idle: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Options that do not, with the values that say what is done anyway, the default first."""

    def __init__(self, **given: Any) -> None:
        for name, value in self._works.items():
            super().__setattr__(name, value)
        for name, values in self._idle.items():
            super().__setattr__(name, values[0])
        super().__setattr__("_entries", {})
        for name, value in given.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        known = (*self._works, *self._idle)
        if name not in known:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}{nearest(name, known)}")
        super().__setattr__(name, value)

    def idle(self) -> list[str]:
        """What was set and does nothing."""
        entries: dict[str, str] = vars(self)["_entries"]
        return [*(name for name, values in self._idle.items() if getattr(self, name) not in values), *entries]

    def _add_entry(self, key: str, value: str) -> None:
        vars(self)["_entries"][key] = value

    def _entry(self, key: str) -> str:
        return vars(self)["_entries"][key]


class SessionOptions(_Options):
    """What a session may be told. The number of threads is that of a call; 0 stands for as many as there are cores.

    `config` is Weft's own `Config`. Other options are those of ONNX Runtime that do nothing here.
    """

    intra_op_num_threads: int
    config: Config | None
    _works = {"intra_op_num_threads": 0, "config": None}
    _idle = {
        "inter_op_num_threads": (0, 1),
        "graph_optimization_level": (GraphOptimizationLevel.ORT_ENABLE_ALL,),
        "execution_mode": (ExecutionMode.ORT_SEQUENTIAL,),
        "execution_order": (0,),
        "enable_profiling": (False,),
        "profile_file_prefix": ("",),
        "optimized_model_filepath": ("",),
        "enable_cpu_mem_arena": (True,),
        "enable_mem_pattern": (True,),
        "enable_mem_reuse": (True,),
        "use_deterministic_compute": (False, True),  # calls always give the same bits
        "use_per_session_threads": (True,),
        "log_severity_level": (-1,),
        "log_verbosity_level": (0,),
        "logid": ("",),
    }

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Take an entry of ONNX Runtime's configuration, none of which does anything here."""
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entry(key)

    def register_custom_ops_library(self, path: str) -> None:
        raise UnsupportedError(
            f"the library {path} has operators of ONNX Runtime's own interface",
            hint="say the operator by a function in the model, which is expanded",
        )


class RunOptions(_Options):
    """What a call may be told by ONNX Runtime's names: none of it does anything here."""

    _idle = {
        "log_severity_level": (-1,),
        "log_verbosity_level": (0,),
        "logid": ("",),
        "run_tag": ("",),
        "terminate": (False,),
        "only_execute_path_to_fetches": (False, True),
        "training_mode": (False,),
    }

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entry(key)


def tell_idle(kind: str, names: Iterable[str]) -> None:
    """Warn, once for the same ones, that options do nothing."""
    listed = ", ".join(sorted(names))
    if listed:
        warn(
            "options",
            f"{kind} that do nothing here: {listed}",
            advice="what a session takes is in docs/from-onnxruntime.md",
            cause=f"{kind}: {listed}",
        )
