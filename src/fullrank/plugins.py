"""Registries of the objects that an experiment names, import paths, and the files that imported functions read."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import pkgutil
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

import safetensors

from fullrank.errors import CallFailed, ClientFailed, InputError, message_of, nearest

GIVEN = "given"
"""The module name in the names of data, partitions and models that a program passed as objects."""
SITES = "sites"
"""The name of the data of a deployment whose sites read their samples from their machines."""
LIBRARY = {
    "data.name": "data",
    "data.partition": "",
    "data.augment": "",
    "model.name": "models",
    "method.name": "methods",
    "train.criterion": "objectives",
    "train.aggregator": "federated",
    "engine.name": "engine",
    "evaluate.metrics": "metrics",
    "run.track": "runs",
}
"""The keys of an experiment that may name an import path, and the package of fullrank's own objects of that kind.

Where the package is empty, every import path counts as foreign: the objects get options from the experiment, with which
a function of fullrank that was never meant for that key could import anything.
"""
FILES: dict[str, tuple[str, ...]] = {
    "data.name": (".npz", ".csv", ".parquet"),
    "data.partition": (".safetensors", ".csv"),
}
"""The file suffixes of each key: a name with one is a path, even with a colon in it, and nothing is imported."""
HUB = "hub"
"""The word before the colon in the name of a data set that the library `datasets` reads."""

T = TypeVar("T")


class Registry(Generic[T]):
    """The objects of one kind that an experiment can name, for example all metrics.

    A name is one of the library's own, `package.module:attribute`, or an entry point that an installed package declares
    in the group `fullrank.<kind>`. Listings and checks of names of this kind read the registry.

    Args:
        kind: The kind of the objects in the plural, such as "metrics", which is also part of the entry points' group.
        key: The key of an experiment that names such an object, such as "evaluate.metrics".
        own: The library's own objects by name.
        attribute: What an import path must name: "function" or "Class".
        or_else: What else the key accepts, as a clause of the error message.
    """

    def __init__(self, kind: str, key: str, own: Mapping[str, T], attribute: str = "function", or_else: str = ""):
        self.kind, self.key, self.own = kind, key, own
        self.attribute, self._or_else = attribute, or_else

    def names(self) -> tuple[str, ...]:
        """Return the names that need no import path: the library's own, then those of entry points."""
        return (*self.own, *sorted(self._entry_points().keys() - self.own.keys()))

    def find(self, name: str, key: str = "") -> T:
        """Return the object with a name.

        Args:
            name: A name of the registry, or an import path.
            key: The key that errors mention, by default the key of the registry.

        Raises:
            InputError: If the name is unknown or cannot be imported.
        """
        key = key or self.key
        if name in self.own:
            return self.own[name]
        if ":" in name:
            return cast(T, import_object(name, key, self.attribute))
        point = self._entry_points().get(name)
        if point is None:
            raise InputError(f'{key} = "{name}" is not known; {self._advice(name)}')
        return cast(T, import_object(point.value, key, self.attribute))

    def _advice(self, wrong: str) -> str:
        """Return what to give in place of an unknown name."""
        other = [self._or_else] * bool(self._or_else)
        form = f'"package.module:{self.attribute}"'
        if not self.names():
            return f"give {' or '.join([*other, form])}"
        hint = nearest(wrong, self.names())
        if hint.endswith("?"):
            return f"{hint} Otherwise give {' or '.join([*other, form])}"
        return f"{', '.join([hint, *other])}, or {form}"

    def _entry_points(self) -> dict[str, metadata.EntryPoint]:
        return {point.name: point for point in metadata.entry_points(group=f"fullrank.{self.kind}")}


def is_foreign(key: str, name: str) -> bool:
    """Return whether the name under a key, or one of names joined by "+", is an import path of code outside fullrank.

    Args:
        key: The key of an experiment.
        name: The value of the key.

    >>> is_foreign("model.name", "mine:network"), is_foreign("model.name", "fullrank.models.reparam.repvgg:repvgg")
    (True, False)
    >>> is_foreign("method.name", "fedprox+mine:Method"), is_foreign("method.name", "fedprox")
    (True, False)
    >>> is_foreign("data.name", "D:scans.npz"), is_foreign("model.name", "mine:scans.npz")
    (False, True)
    >>> is_foreign("data.name", "hub:cifar10"), is_foreign("model.name", "hub:network")
    (False, True)
    """
    return any(_is_foreign(key, piece.strip()) for piece in name.split("+"))


def _is_foreign(key: str, name: str) -> bool:
    module, colon, _ = name.partition(":")
    if not colon or module == GIVEN or (key in FILES and name.endswith(FILES[key])):
        return False
    if key == "data.name" and module == HUB:
        return False
    return not LIBRARY[key] or not f"{module}.".startswith(f"{__package__}.{LIBRARY[key]}.")


def reject_untrusted(source: object, names: Mapping[str, str]) -> None:
    """Reject names in a file that are import paths of code outside fullrank, because importing them runs code.

    Args:
        source: The file, which the error names.
        names: The names in the file by the keys that have them.

    Raises:
        InputError: If a name is such an import path.
    """
    foreign = [f'{key} = "{name}"' for key, name in names.items() if is_foreign(key, name)]
    if foreign:
        raise InputError(
            f'"{source}" names code that is not part of fullrank ({", ".join(foreign)}), which would be imported and '
            "run; if you trust its authors, use --trust (trust=True)"
        )


def import_object(name: str, where: str, kind: str) -> Any:
    """Import the callable with an import path.

    Args:
        name: The path, `package.module:object`.
        where: The key that has the path, which errors mention.
        kind: What the path must name, which errors mention, such as "function" or "Class".

    Raises:
        InputError: If there is no such module or attribute, or the attribute cannot be called.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute:
        raise InputError(f'{where} = "{name}" is not of the form "package.module:{kind}"')
    if module_name == GIVEN:
        raise InputError(
            f'{where} = "{name}" names an object that a program passed to fullrank.fit, which cannot be imported'
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module_name}.".startswith(f"{missing}."):
            raise  # the module exists, and one that it imports does not
        raise InputError(f'{where} = "{name}": there is no module "{missing}"{_nearest_module(missing)}') from None
    found = getattr(module, attribute, None)
    if not callable(found):
        own = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        hint = nearest(attribute, own)
        raise InputError(f'{where} = "{name}": the module "{module_name}" has no {kind} "{attribute}"; {hint}')
    return found


def called(function: Callable[..., Any], name: str, where: str, /, **arguments: Any) -> Any:
    """Call a user's function, and note the files that it reads (`collecting_files`).

    Args:
        function: The function.
        name: The name by which an experiment has the function.
        where: The key of the experiment, such as "data.name".
        **arguments: The arguments of the function.

    Raises:
        CallFailed: If the function raises anything but an `InputError`; it names the function and has the traceback.
    """
    try:
        with noting_files():
            return function(**arguments)
    except InputError:
        raise
    except Exception as error:
        raise _failed(f'{where} = "{name}": it raised', error) from error


def hooked(part: Any, hook: str, /, *arguments: Any) -> Any:
    """Call a hook of a method.

    Args:
        part: The method.
        hook: The name of the hook.
        *arguments: The arguments of the hook.

    Raises:
        CallFailed: If the hook raises any other exception; it names the method and the hook, and has the traceback.
    """
    try:
        return getattr(part, hook)(*arguments)
    except (InputError, CallFailed, ClientFailed):
        raise
    except Exception as error:
        raise _failed(f'the method "{part.name}": its hook {hook} raised', error) from error


def _failed(start: str, error: Exception) -> CallFailed:
    return CallFailed(f"{start} {type(error).__name__}: {message_of(error)}", traceback.format_exc())


def _nearest_module(missing: str) -> str:
    """Return a clause that suggests a module with a similar name in the same package, or one in the current directory.

    Modules of Python's standard library are not suggested.
    """
    package, _, name = missing.rpartition(".")
    places = getattr(importlib.import_module(package), "__path__", []) if package else [os.getcwd()]
    clause = nearest(name, [module.name for module in pkgutil.iter_modules(places)])
    return f"; {clause}" if clause.startswith("did") else " on the import path (the current directory is on it)"


CODE = {".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib"}
"""Suffixes of modules, bytecode and shared libraries, which are not data."""
NOT_ON_DISK = ("/proc/", "/sys/", "/dev/")

_thread = threading.local()


@contextlib.contextmanager
def collecting_files() -> Iterator[dict[str, str]]:
    """Collect the files that users' functions read in this thread; at the end of the block, their SHA-256 by path.

    >>> with collecting_files() as found, noting_files():
    ...     _ = Path(os.devnull).read_text()
    >>> found
    {}
    """
    found: dict[str, str] = {}
    before = getattr(_thread, "collected", None)
    _thread.collected = paths = set[str]()
    try:
        yield found
    finally:
        _thread.collected = before
    for path in sorted(paths):
        if _is_data(path):
            found[_shown(path)] = hashlib.sha256(Path(path).read_bytes()).hexdigest()


@contextlib.contextmanager
def noting_files() -> Iterator[None]:
    """Note the files that a user's function opens for reading in this block, if `collecting_files` is active."""
    if getattr(_thread, "collected", None) is None or getattr(_thread, "noting", False):
        yield
        return
    _install_hook()
    _thread.noting = True
    try:
        with _watched_safetensors():
            yield
    finally:
        _thread.noting = False


@cache
def _install_hook() -> None:
    sys.addaudithook(_on_event)  # it can never be removed, so it must cost next to nothing


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and getattr(_thread, "noting", False):
        path, mode, flags = arguments
        reading = "r" in mode and "+" not in mode if mode else not flags & (os.O_WRONLY | os.O_RDWR)
        if reading and isinstance(path, (str, bytes, os.PathLike)):
            _note(path)


def _note(path: str | bytes | os.PathLike[Any]) -> None:
    _thread.collected.add(os.path.abspath(os.fsdecode(path)))


@contextlib.contextmanager
def _watched_safetensors() -> Iterator[None]:
    """Note the files that safetensors opens: its reader raises no audit event, and modules import it by any name."""
    reader = safetensors.safe_open

    def safe_open(filename: str | os.PathLike[str], *arguments: Any, **options: Any) -> Any:
        if getattr(_thread, "noting", False):
            _note(filename)
        return reader(filename, *arguments, **options)

    places = [
        (vars(module), name)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
        if value is reader
    ]
    for names, name in places:
        names[name] = safe_open
    try:
        yield
    finally:
        for names, name in places:
            names[name] = reader


def _is_data(path: str) -> bool:
    inside = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return (
        Path(path).suffix.lower() not in CODE
        and ".so." not in Path(path).name
        and not path.startswith((*NOT_ON_DISK, *inside))
        and os.path.isfile(path)
    )


def _shown(path: str) -> str:
    """Return a path relative to the working directory if it is below it, otherwise unchanged."""
    here = os.getcwd()
    return os.path.relpath(path, here) if path.startswith(f"{here}{os.sep}") else path
