"""Objects outside the library, named `package.module:object`."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import Refusal, nearest


def import_object(name: str, where: str) -> Any:
    """The object behind `package.module:object`; `where` is the key that named it."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Refusal(
                f'{where} = "{name}": there is no module "{error.name}" on the import path (the current directory is)'
            ) from None
        raise
    if not hasattr(module, attribute):
        hint = nearest(attribute, [n for n in vars(module) if not n.startswith("_")])
        raise Refusal(f'{where} = "{name}": the module "{module_name}" has no "{attribute}"; {hint}')
    return getattr(module, attribute)
