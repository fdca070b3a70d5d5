"""What a model on many ranks computes by beside its tensors: plain attributes of its modules, which tracing reads.

    spread = weft.distribute(model, mesh, plan)
    spread(x)
    model.scale = 2.0       # or spread.scale = 2.0
    spread(x)               # another program: attributes are in another state, and the traced copy has them too

Programs are traced of a copy without data, so that a change has to reach the copy as well as the key of programs. Most
calls change nothing: what was there is compared by identity, and looked at only where something is not itself.
"""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Iterable
from operator import is_
from typing import Any, ClassVar

import torch
from torch import nn

from weft.errors import UnsupportedError
from weft.frontends.torch.distributed.function_contents import LIBRARIES, Itself
from weft.frontends.torch.distributed.numbered_values import NumberedValues
from weft.frontends.torch.distributed.placing import constant_attributes

_TENSORS = frozenset({"_parameters", "_buffers", "_modules", "training"})
"""What programs are told of otherwise: tensors are arguments, and modes are in their keys."""
_ATOMS = (bool, int, float, complex, str, bytes, torch.device, torch.dtype, torch.Size, type(None))
_MOST = 1 << 12
"""Entries of a container that are looked at; a larger one, a vocabulary say, is taken to stay as it is."""


class ModelAttributes:
    """Numbers the states that the attributes of a model's modules have been in, and keeps its traced copy alike."""

    def __init__(self, model: nn.Module, traced: nn.Module) -> None:
        self.model, self.traced = model, traced
        self.pairs: dict[int, tuple[nn.Module, nn.Module]] = {}
        self._pair(model, traced)
        self.states: dict[Hashable, int] = {}
        self.look = _Look(model)
        self.number = self._numbered(self.look)

    def state(self) -> int:
        """The number of the state that they are in now, 0 at the beginning; one that was met before has its own."""
        if self.look.is_as_it_was():
            return self.number
        look = _Look(self.model)
        now = self._numbered(look)
        if now != self.number:
            self._copy()
        self.look, self.number = look, now
        return now

    def _numbered(self, look: _Look) -> int:
        return self.states.setdefault(look.content, len(self.states))

    def _pair(self, model: nn.Module, traced: nn.Module) -> None:
        for one, other in zip(model.modules(), traced.modules(), strict=True):
            self.pairs[id(one)] = one, other

    def _copy(self) -> None:
        """Give the traced copy the attributes that the model has now."""
        memo: dict[int, Any] = {place: other for place, (_, other) in self.pairs.items()}
        for one, other in list(self.pairs.values()):
            for mine, theirs in ((one._parameters, other._parameters), (one._buffers, other._buffers)):
                memo |= {id(each): theirs[name] for name, each in mine.items() if each is not None and name in theirs}
        memo |= constant_attributes(self.model, memo)
        for one in list(self.model.modules()):
            if id(one) in self.pairs:
                self._copy_modules(one, self.pairs[id(one)][1], memo)
        for one in self.model.modules():
            other = self.pairs[id(one)][1]
            for name in [name for name in vars(other) if name not in _TENSORS and name not in vars(one)]:
                del vars(other)[name]
            for name, value in vars(one).items():
                if name not in _TENSORS:
                    vars(other)[name] = copy.deepcopy(value, memo)

    def _copy_modules(self, one: nn.Module, other: nn.Module, memo: dict[int, Any]) -> None:
        for name in other._modules.keys() - one._modules.keys():
            del other._modules[name]
        for name, child in one._modules.items():
            if child is not None and id(child) not in self.pairs:
                if any(True for _ in (*child.parameters(), *child.buffers())):
                    raise UnsupportedError(
                        f"a {type(child).__name__} with tensors took the place of {name!r} in a model on many ranks",
                        hint="distribute the model anew",
                    )
                self._pair(child, copy.deepcopy(child, memo))
                memo |= {place: pair[1] for place, pair in self.pairs.items()}
            other._modules[name] = None if child is None else self.pairs[id(child)][1]


class _Look(NumberedValues):
    """What the attributes of a model's modules are: `content`, and the containers that were seen, as they were."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.containers: list[tuple[Any, list[Any], list[Any]]] = []
        self.empty: list[Any] = []
        """Containers that held nothing, as most do: a module has a dozen of hooks."""
        self.tensors: list[tuple[torch.Tensor, int]] = []
        self.told(model)
        self.content: Hashable = tuple(self._content(each) for each in self.values)  # grows

    def is_as_it_was(self) -> bool:
        """Whether all containers hold the very objects that they held."""
        if any(map(len, self.empty)) or any(tensor._version != version for tensor, version in self.tensors):
            return False
        return all(_holds(*each) for each in self.containers)

    def is_atom(self, value: object) -> bool:
        return isinstance(value, _ATOMS)

    def _content(self, value: Any) -> Hashable:
        match value:
            case nn.Module():
                held = {name: each for name, each in vars(value).items() if name not in _TENSORS}
                self._keep(vars(value), vars(value).values())
                self._keep(value._modules, value._modules.values())
                kind = value if value._parameters or value._buffers else type(value)
                return Itself(kind), self._mapping(held), self._mapping(value._modules)
            case torch.Tensor():
                return self._tensor(value)
            case dict() if len(value) <= _MOST:
                self._keep(value, value.values())
                return type(value), self._mapping(value)
            case list() | deque() | set() | frozenset() | tuple() if len(value) <= _MOST:
                if not isinstance(value, tuple | frozenset):
                    self._keep(value, ())
                return type(value), self.all_told(value)
            case _ if _has_attributes(value):
                self._keep(vars(value), vars(value).values())
                return Itself(type(value)), self._mapping(vars(value))
            case _:
                return Itself(value)

    def _mapping(self, held: dict[Any, Any]) -> Hashable:
        return self.all_told(held.keys()), self.all_told(held.values())

    def _tensor(self, value: torch.Tensor) -> Hashable:
        """Programs read it at every call, but for one of one element, which tracing may take for a number."""
        if value.numel() > 1 or value.is_inference():
            return Itself(value)
        self.tensors.append((value, value._version))
        return Itself(value), value._version

    def _keep(self, container: Any, values: Iterable[Any]) -> None:
        if container:
            self.containers.append((container, list(container), list(values)))
        else:
            self.empty.append(container)


def _has_attributes(value: Any) -> bool:
    """Whether it is an object of a class of the user's, or of a package that models are made with: a configuration."""
    root = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not isinstance(value, type) and root not in LIBRARIES


def _holds(container: Any, keys: list[Any], values: list[Any]) -> bool:
    """Whether a container has what it had, each the same object: of a dictionary keys and values."""
    if len(container) != len(keys):
        return False
    if isinstance(container, dict):
        return all(map(is_, container.values(), values)) and all(map(is_, container, keys))
    return all(map(is_, container, keys))


class AroundModel(nn.Module):
    """A module around a `model`, whose attributes are its own: those that it has not are read and set there."""

    own: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are set when the model is there, and are not the model's, whatever that has."""

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_modules", {}).get("model")
        try:
            return super().__getattr__(name)
        except AttributeError:
            if model is None:
                raise
            return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        model = self.__dict__.get("_modules", {}).get("model")
        is_own = name in self.__dict__ or name == "model" or name in self.own or hasattr(type(self), name)
        if model is None or is_own or not hasattr(model, name):
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)
