"""Fingerprints of the user's source code in a run, because a changed model or method gives other results."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

OURS = ("fullrank", "torch")
"""Packages whose versions are recorded, so that their sources need not be."""


def fingerprints(names: Iterable[str], objects: Iterable[object]) -> dict[str, str]:
    """Return the SHA-256 of the sources of import paths and of the classes of objects, by module or class.

    Args:
        names: Names in an experiment. For each import path (`package.module:attribute`), the module is included, and
            so are the imported modules in the same folder or below it.
        objects: Objects such as models and methods, whose classes are included.

    Returns:
        The fingerprints. A source that cannot be read, as in an interactive session, is left out.
    """
    found: dict[str, str] = {}
    for name in sorted({name.partition(":")[0] for name in names if ":" in name}):
        if (module := sys.modules.get(name)) is not None:
            found |= _of_neighbours(module.__name__, getattr(module, "__file__", None))
    for kind in sorted({type(each) for each in objects}, key=_full_name):
        if kind.__module__.partition(".")[0] not in (*OURS, "builtins") and kind.__module__ not in found:
            try:
                found[_full_name(kind)] = _sha256(inspect.getsource(kind).encode())
            except (OSError, TypeError):
                continue
    return found


def _of_neighbours(name: str, file: str | None) -> dict[str, str]:
    if file is None:
        return {}
    folder = Path(file).resolve().parent
    for _ in range(name.count(".") - (Path(file).name == "__init__.py")):
        folder = folder.parent
    found = {}
    for other, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not path or not path.endswith(".py") or other.partition(".")[0] in (*OURS, "__main__"):
            continue
        if "site-packages" not in path and folder in Path(path).resolve().parents:
            found[other] = _sha256(Path(path).read_bytes())
    return found


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
