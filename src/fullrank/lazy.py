"""Imports on first use: importing torch takes over a second, which help pages and lists of keys need not wait for."""

from __future__ import annotations

import importlib
import sys
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")


def exports(
    package: str, names: Mapping[str, Sequence[str]], name_there: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a public name or a submodule when it is first used.

    Args:
        package: The name of the package.
        names: The public names by the modules that define them.
        name_there: The names that objects have in their modules, where the public names differ.

    Returns:
        The function. It raises `AttributeError` for any other name.

    >>> exports("fullrank", {"fullrank.errors": ["Conflict"]})("Conflict").__module__
    'fullrank.errors'
    """
    module_of = {name: module for module, several in names.items() for name in several}

    def get(name: str) -> Any:
        if name in module_of:
            found = getattr(importlib.import_module(module_of[name]), (name_there or {}).get(name, name))
        elif name.startswith("_"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            try:
                found = importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
                raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        setattr(sys.modules[package], name, found)
        return found

    return get


class OnFirstUse(UserDict[str, T]):
    """Objects by name, given by their import paths. The module of an object is imported when the object is first used.

    Args:
        paths: The import path, `package.module:attribute`, of each name.

    >>> squares = OnFirstUse({"root": "math:sqrt"})
    >>> list(squares), squares["root"](4.0)
    (['root'], 2.0)
    """

    def __init__(self, paths: Mapping[str, str]):
        super().__init__(cast(Mapping[str, T], paths))

    def __getitem__(self, name: str) -> T:
        found = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self.data[name] = getattr(importlib.import_module(module), attribute)
        return found
