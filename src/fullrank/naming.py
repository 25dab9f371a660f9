"""Objects outside the library, named `package.module:object`."""

from __future__ import annotations

import importlib
import os
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from .errors import CallFailed, ClientFailed, Refusal, nearest, said_by
from .filesread import noting_files

LIBRARY = tuple(f"{__package__}.{part}." for part in ("data", "methods", "models"))


def is_foreign(name: str) -> bool:
    """Whether a name is an import path of code outside the library.

    >>> is_foreign("mine:network"), is_foreign("fullrank.models.repvgg:repvgg"), is_foreign("cnn")
    (True, False, False)
    """
    module, colon, _ = name.partition(":")
    return bool(colon) and not name.endswith(".npz") and not f"{module}.".startswith(LIBRARY)


def refuse_untrusted(source: object, names: Mapping[str, str]) -> None:
    """Reject import paths, by key, that a file names and the user does not: importing them runs somebody's code."""
    foreign = [f'{key} = "{name}"' for key, name in names.items() if any(map(is_foreign, name.split("+")))]
    if foreign:
        raise Refusal(
            f'"{source}" names code that is not part of fullrank ({", ".join(foreign)}), which would be imported and '
            "run; if you trust those who wrote it, say so with --trust (trust=True)"
        )


def import_object(name: str, where: str, kind: str) -> Any:
    """The callable behind `package.module:object`; `where` is the key that named it, `kind` what it should be."""
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute:
        raise Refusal(f'{where} = "{name}" is not of the form "package.module:{kind}"')
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module_name}.".startswith(f"{missing}."):
            raise  # the module is there, and what it imports is not
        raise Refusal(f'{where} = "{name}": there is no module "{missing}"{_nearest_module(missing)}') from None
    found = getattr(module, attribute, None)
    if not callable(found):
        own = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        hint = nearest(attribute, own)
        raise Refusal(f'{where} = "{name}": the module "{module_name}" has no {kind} "{attribute}"; {hint}')
    return found


def called(function: Callable[..., Any], name: str, where: str, /, **arguments: Any) -> Any:
    """What a function returns that `where` named; what it raises comes with that name and its own traceback."""
    try:
        with noting_files():
            return function(**arguments)
    except Refusal:
        raise
    except Exception as error:
        raise _failed(f'{where} = "{name}": it raised', error) from error


def hooked(part: Any, hook: str, /, *arguments: Any) -> Any:
    """What a method's hook returns; what it raises names the method and the hook, and has its own traceback."""
    try:
        return getattr(part, hook)(*arguments)
    except (Refusal, CallFailed, ClientFailed):
        raise
    except Exception as error:
        raise _failed(f'the method "{part.name}": its hook {hook} raised', error) from error


def _failed(start: str, error: Exception) -> CallFailed:
    return CallFailed(f"{start} {type(error).__name__}: {said_by(error)}", traceback.format_exc())


def _nearest_module(missing: str) -> str:
    """A suggestion among the modules beside the missing one, if one is near: they are too many to list.

    Of the modules that stand alone only those in the current directory can be meant, not Python's own.
    """
    package, _, name = missing.rpartition(".")
    places = getattr(importlib.import_module(package), "__path__", []) if package else [os.getcwd()]
    clause = nearest(name, [module.name for module in pkgutil.iter_modules(places)])
    return f"; {clause}" if clause.startswith("did") else " on the import path (the current directory is on it)"
