"""What a model file says of itself: who made it, which version it is, and what else its maker noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NO_VERSION = (1 << 63) - 1
"""What ONNX Runtime gives where a file states no version."""


@dataclass(frozen=True)
class ModelMetadata:
    """The notes of a file, by the names that ONNX Runtime has for them."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = _NO_VERSION
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, proto: Any) -> ModelMetadata:
        """Those of a `ModelProto`."""
        return cls(
            _text(proto.producer_name),
            _text(proto.graph.name),
            _text(proto.domain),
            _text(proto.doc_string),
            _text(proto.graph.doc_string),
            int(proto.model_version) if proto.HasField("model_version") else _NO_VERSION,
            {_text(each.key): _text(each.value) for each in proto.metadata_props},
        )


def _text(given: str | bytes) -> str:
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else given
