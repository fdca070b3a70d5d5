"""Keeps what a model was imported to: a later process finds its program by the model alone, and imports nothing.

A model whose nodes become one program is found again by its digest, the shapes of its inputs, and the elements of those
that its import looked at. The digest leaves the elements of weights out, as programs do not depend on them; where an
import has looked at some, nothing is kept. What is kept says which weights the program takes, and which arrays beside.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.config import Config
from weft.errors import WeftError
from weft.frontends.onnx.call import Mistake
from weft.frontends.onnx.checks import Verdict
from weft.frontends.onnx.dtypes import STRINGS
from weft.frontends.onnx.file_identity import stamps_of
from weft.frontends.onnx.import_nodes import FOLDED
from weft.frontends.onnx.model import Graph, Model, Node
from weft.frontends.onnx.stored_weights import DEFERRED
from weft.frontends.text import load_stored, program_key
from weft.lower.steps import Plan
from weft.runtime.array_function import ArrayFunction
from weft.runtime.cache import cache_key
from weft.runtime.kept_constants import find_constants, keep_constants
from weft.runtime.numpy_arrays import HostExecutor
from weft.runtime.stored_programs import BAD_ENTRY, disk_cache

_LARGEST_TABLE = 1 << 24
"""The bytes of an array made of attributes up to which it is kept beside its program."""


@dataclass(frozen=True)
class Imported:
    """The function of a stage, the slots that it takes, and what it was compiled of."""

    function: Any
    arguments: tuple[int, ...]
    text: str = ""
    constants: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class StoredStep:
    """The program of a whole model, with the places that its arguments and results are at."""

    function: Any
    arguments: tuple[int, ...]
    results: tuple[tuple[str, int], ...]
    verdict: Verdict | None = None


@dataclass
class StoredSteps:
    """The programs of one model that are in the disk cache."""

    model: Model
    config: Config
    device: str
    threads: int | None

    def __post_init__(self) -> None:
        self._constants_sought = self.device != "cpu"
        """Whether constants were looked for, or kept, already: those of one program of a model are, not of each."""

    @cached_property
    def _digested(self) -> tuple[str, list[np.ndarray]]:
        if any(array.size <= FOLDED and array.nbytes >= DEFERRED for array in self.model.graph.initializers.values()):
            self.model.read_weights()
        return digest_of(self.model)

    @property
    def _weights(self) -> list[np.ndarray]:
        """The arrays whose elements are not in the digest."""
        return self._digested[1]

    def find(
        self, slots: Sequence[np.ndarray], structure: object, by_value: Iterable[int]
    ) -> StoredStep | set[int] | None:
        """The program for arrays like these, or the places whose elements have to be known as well."""
        entry = disk_cache().get(self._key(slots, structure, by_value))
        if entry is None:
            return None
        try:
            meta = entry.meta
            if "needs" in meta:
                needed = {int(place) for place in meta["needs"]}
                return needed if needed <= set(range(len(slots))) - set(by_value) else None
            weights = self._weights
            constants = {name: weights[int(place)] for name, place in meta["weights"].items()}
            for name, (dtype, shape) in meta["arrays"].items():
                constants[name] = np.frombuffer(entry.blobs[name], np.dtype(dtype)).reshape(shape)
            function = self._loaded(meta, constants, entry.blobs)
            if function is None:
                return None
            results = tuple((str(kind), int(place)) for kind, place in meta["results"])
            verdict = _verdict(*meta["verdict"]) if meta["verdict"] else None
            return StoredStep(function, tuple(int(place) for place in meta["arguments"]), results, verdict)
        except (*BAD_ENTRY, WeftError):  # as good as not stored
            return None

    def _loaded(
        self, meta: Mapping[str, Any], constants: Mapping[str, np.ndarray], blobs: Mapping[str, bytes]
    ) -> ArrayFunction[Any] | None:
        """A stored program with its constants: as they were kept, or made of the weights, and kept now."""
        kept = False

        def prepared(plan: Plan | None) -> Mapping[int, np.ndarray] | None:
            nonlocal kept
            key = None if plan is None else self._constants_key(meta, blobs, plan)
            # Constants that are arguments still would be read in every call.
            if key is not None and plan is not None and len(plan.fixed) == len(constants):
                found = find_constants(disk_cache(), key)
                if found is not None and set(found) == {each.buffer for each in plan.constants}:
                    kept = True
                    return found
            self.model.read_weights()
            return None

        function = load_stored(
            meta["program"],
            constants=constants,
            config=self.config,
            device=self.device,
            threads=self.threads,
            prepared=prepared,
        )
        if function is not None and not kept:
            self._keep_constants(meta, blobs, function)
        self._constants_sought = True
        return function

    def _keep_constants(
        self, meta: Mapping[str, Any], blobs: Mapping[str, bytes], function: ArrayFunction[Any]
    ) -> None:
        executor = function.executor
        if not isinstance(executor, HostExecutor) or executor.frozen is None:
            return
        key = self._constants_key(meta, blobs, executor.executable.plan)
        if key is not None:
            keep_constants(disk_cache(), key, executor.frozen)

    def _constants_key(self, meta: Mapping[str, Any], blobs: Mapping[str, bytes], plan: Plan) -> str | None:
        """What the constants of a program are kept under.

        That is the program and what it makes of its arrays, the weights by their places, and the files. Arrays beside
        the weights count by their elements: they may have been computed of inputs that were looked at.
        """
        stamps = None if self._constants_sought else stamps_of(self.model.files)
        if stamps is None:
            return None
        arrays = tuple(
            (name, dtype, tuple(map(int, shape)), blobs[name]) for name, (dtype, shape) in meta["arrays"].items()
        )
        made = repr(plan.constants), plan.prepare
        return cache_key(
            "onnx constants", self._digested[0], meta["program"], repr(meta["weights"]), arrays, made, stamps
        )

    def keep_need(self, slots: Sequence[np.ndarray], structure: object, by_value: Iterable[int], place: int) -> None:
        """Note that the import looks at the elements of one array more."""
        disk_cache().put(self._key(slots, structure, by_value), {"needs": [place]}, {})

    def keep_step(
        self,
        slots: Sequence[np.ndarray],
        structure: object,
        by_value: Iterable[int],
        results: Sequence[Any],
        made: Imported,
        verdict: Verdict | None = None,
        tables: Sequence[np.ndarray] = (),
    ) -> None:
        """Keep what the model was imported to, if later processes can find all of it again.

        `tables` are arrays of any size that are decided by what is in the digest.
        """
        if made.function is None or any(
            not isinstance(each, tuple) or each[0] not in ("slot", "made") for each in results
        ):
            return
        known = {id(array): place for place, array in enumerate(self._weights)}
        decided = {id(array) for array in tables if array.nbytes <= _LARGEST_TABLE}
        weights: dict[str, int] = {}
        arrays: dict[str, tuple[str, list[int]]] = {}
        blobs: dict[str, bytes] = {}
        for name, array in (made.constants or {}).items():
            if id(array) in known:
                weights[name] = known[id(array)]
            elif (
                (array.size <= FOLDED or id(array) in decided)
                and array.dtype.kind in "biuf"
                and np.dtype(array.dtype.str) == array.dtype
            ):
                arrays[name], blobs[name] = (array.dtype.str, list(array.shape)), array.tobytes()
            else:
                return
        meta: dict[str, Any] = {
            "program": program_key(made.text, made.constants or (), self.config, self.device),
            "arguments": list(made.arguments),
            "results": [list(each) for each in results],
            "weights": weights,
            "arrays": arrays,
            "verdict": None if verdict is None else [verdict.place, list(map(astuple, verdict.mistakes))],
        }
        disk_cache().put(self._key(slots, structure, by_value), meta, blobs)
        if isinstance(made.function, ArrayFunction):
            self._keep_constants(meta, blobs, made.function)
            self._constants_sought = True

    def _key(self, slots: Sequence[np.ndarray], structure: object, by_value: Iterable[int]) -> str:
        shapes = repr([(array.dtype.str, array.shape) for array in slots])
        looked = tuple((place, _content(slots[place])) for place in sorted(by_value))
        # Versions, sources, processor and configuration are in the key of an empty program.
        made_by = program_key("", (), self.config, self.device)
        return cache_key("onnx model", self._digested[0], shapes, repr(structure), looked, made_by)


def digest_of(model: Model) -> tuple[str, list[np.ndarray]]:
    """A digest of a model but the elements of its weights, and these: arrays too large for an import to fold."""
    digest = hashlib.sha256()
    weights: list[np.ndarray] = []

    def add(value: Any, *, weight: bool = False) -> None:
        """Feed a value to the digest, so that different values never give the same bytes."""
        match value:
            case np.ndarray():
                digest.update(f"a{value.dtype!r}{value.shape}".encode())
                if weight and value.size > FOLDED and value.dtype != STRINGS:
                    weights.append(value)
                else:
                    digest.update(_content(value))
            case Graph():
                add((value.name, value.nodes, value.inputs, value.outputs, tuple(value.initializers)))
                for array in value.initializers.values():
                    add(array, weight=True)
            case Node():
                add((value.op, value.domain, value.inputs, value.outputs, value.name, value.overload, value.opsets))
                for name, attribute in value.attributes.items():
                    add(name)
                    add(attribute, weight=value.key == ("", "Constant"))
            case dict():
                digest.update(f"d{len(value)}".encode())
                for key, each in value.items():
                    add(key)
                    add(each)
            case tuple() | list():
                digest.update(f"t{len(value)}".encode())
                if all(type(each) in (int, float) for each in value):
                    digest.update(repr(value).encode())  # the attributes of trees have a million numbers
                    return
                for each in value:
                    add(each)
            case bytes() | str():
                text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
                digest.update(f"{type(value).__name__}{len(text)} ".encode() + text)
            case _ if is_dataclass(value):
                digest.update(type(value).__name__.encode())
                for each in fields(value):
                    add(getattr(value, each.name))
            case _:
                digest.update(f"r{value!r};".encode())

    add((model.opsets, model.functions, model.graph))
    return digest.hexdigest(), weights


def _verdict(place: Any, mistakes: Any) -> Verdict:
    return Verdict(int(place), tuple(Mistake(str(message), bool(is_place)) for message, is_place in mistakes))


def _content(array: np.ndarray) -> bytes:
    return repr(array.tolist()).encode("utf-8", "surrogatepass") if array.dtype == object else array.tobytes()
