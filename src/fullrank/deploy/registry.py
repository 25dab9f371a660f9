"""The file formats of exported models, by the names that a user gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fullrank.lazy import OnFirstUse

if TYPE_CHECKING:
    from fullrank.deploy.formats import Format

FORMATS: OnFirstUse[Format] = OnFirstUse(
    {
        "safetensors": "fullrank.deploy.formats:WEIGHTS",
        "onnx": "fullrank.deploy.formats:ONNX",
        "torch": "fullrank.deploy.formats:PROGRAM",
    }
)
