"""The methods: one file each, found by their names and composed with `+`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from fullrank.errors import InputError, checked, nearest, not_a_table
from fullrank.lazy import exports
from fullrank.plugins import Registry

if TYPE_CHECKING:
    from fullrank.methods._batch import Batch
    from fullrank.methods._compose import Composed, Composition, defines
    from fullrank.methods._method import Method

__all__ = ["METHODS", "Batch", "Composed", "Composition", "Method", "available", "build", "defines", "find"]
__getattr__ = exports(
    __name__,
    {
        "fullrank.methods._batch": ("Batch",),
        "fullrank.methods._compose": ("Composed", "Composition", "defines"),
        "fullrank.methods._method": ("Method",),
    },
)


class _Folder(Mapping[str, "type[Method]"]):
    """The methods in the files of this folder, each in the file with its name; a file is imported when it is needed."""

    def __init__(self) -> None:
        names = (module.name for module in pkgutil.iter_modules(__path__))
        self._names = sorted(name for name in names if not name.startswith("_"))

    def __getitem__(self, name: str) -> type[Method]:
        if name not in self._names:
            raise KeyError(name)
        namespace = vars(importlib.import_module(f"{__name__}.{name}"))
        found: type[Method] = next(
            value
            for value in namespace.values()
            if isinstance(value, type) and value.__module__ == namespace["__name__"] and vars(value).get("name") == name
        )
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


METHODS: Registry[type[Method]] = Registry("methods", "method.name", _Folder(), "Class")
"""The methods that `method.name` can name; those of the library are the classes in the files of this folder."""


def available() -> dict[str, type[Method]]:
    """Return the methods that need no import path: the library's own and those of installed packages.

    Returns:
        The classes of the methods by name.

    >>> "feddecorr" in available()
    True
    """
    return {name: find(name) for name in METHODS.names()}


def find(name: str) -> type[Method]:
    """Return the class of a method.

    Args:
        name: A name of `available`, or "package.module:Class".

    Returns:
        The class, a subclass of `Method`.

    Raises:
        InputError: If there is no such method, it cannot be imported, or it is no method.

    >>> find("fedprox").__name__
    'FedProx'
    """
    from fullrank.methods._method import Method

    found = METHODS.find(name)
    if name in METHODS.own:
        return found
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f'method.name: "{name}" is not a subclass of fullrank.Method')
    _reject_undeclared_fields(found, name)
    return found


def reject_no_method(method: Any) -> None:
    """Reject a value that is neither a method's name nor an instance of `Method`.

    Raises:
        InputError: If the value is rejected.
    """
    from fullrank.methods._method import Method

    if isinstance(method, type):
        raise InputError(f"method is the class {method.__name__}; give an instance, {method.__name__}()")
    if not isinstance(method, (str, Method)):
        raise InputError(f"method is a {type(method).__name__}; it must be a method's name or a fullrank.Method")


def reject_undeclared(method: Method) -> None:
    """Reject an instance whose class, or the class of one of its parts, `find` would reject.

    Raises:
        InputError: If a class sets a hyper-parameter without declaring it as a field.
    """
    for part in method.parts:
        cls = type(part)
        _reject_undeclared_fields(cls, f"{cls.__module__}:{cls.__qualname__}")


def _reject_undeclared_fields(cls: type[Method], name: str) -> None:
    if missed := _undeclared_fields(cls):
        raise InputError(
            f'method.name: "{name}" sets {", ".join(missed)} without effect: declare a hyper-parameter with its type '
            f"({missed[0]}: float = …) in a class with @dataclass(frozen=True) above it"
        )


def _undeclared_fields(cls: type[Method]) -> list[str]:
    """Return class attributes that look like hyper-parameters but that `dataclass` does not see."""
    from fullrank.methods._method import Method

    fields = {field.name for field in dataclasses.fields(cls)}
    declared: dict[str, bool] = {}  # the most derived class decides about a name
    for owner in cls.__mro__:
        if issubclass(owner, Method):
            kinds = inspect.get_annotations(owner)
            typed = {name for name, kind in kinds.items() if "ClassVar" not in str(kind)}
            seen = typed if "__dataclass_fields__" in vars(owner) else set()
            for name in sorted(typed | (fields & vars(owner).keys())):
                declared.setdefault(name, name in seen)
    return [name for name, right in declared.items() if not right]


def check_fields(cls: type[Method], table: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a method's hyper-parameters against its dataclass fields.

    Args:
        cls: The class of the method.
        table: Values by the names of the hyper-parameters; those that are left out have their defaults.

    Returns:
        All hyper-parameters of the method.

    Raises:
        InputError: If a hyper-parameter is unknown, missing, or of the wrong type.
    """
    if not isinstance(table, Mapping):
        raise InputError(not_a_table(f"method.{cls.name}", table))
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in table:
        if key not in fields:
            raise InputError(f"method.{cls.name}.{key}: there is no such hyper-parameter; {nearest(key, fields)}")
        if table[key] is None and fields[key].default is not None:
            raise InputError(
                f"method.{cls.name}.{key} = None: TOML has no such value; leave the key out for its default"
            )
    hashable: Any = cls  # mypy takes the hash of instances for that of the class
    kinds = _kinds(hashable)
    return {
        name: checked(kinds[name], table[name], f"method.{cls.name}.{name}") if name in table else _default(cls, field)
        for name, field in fields.items()
    }


@cache
def _kinds(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _default(cls: type[Method], field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise InputError(f"method.{cls.name}.{field.name} must be given: it has no default")
    return field.default


def build(name: str, **tables: Mapping[str, Any]) -> Method:
    """Build a method by name.

    Args:
        name: The name of a method, or several joined by "+", which are composed; each as for `find`.
        tables: The hyper-parameters of each method, by its name.

    Returns:
        The method.

    Raises:
        InputError: If a method or a hyper-parameter is rejected.
        Conflict: If the methods cannot be composed.

    >>> build("fedprox+feddecorr", feddecorr={"beta": 0.2}).parts[1].beta
    0.2
    """
    from fullrank.methods._compose import Composed

    parts: list[Method] = []
    pieces = [piece.strip() for piece in name.split("+")]
    if len(pieces) > 1 and "" in pieces:
        raise InputError(f'method.name = "{name}": a name is missing before or after "+", as in "fedprox+feddecorr"')
    for piece in pieces:
        cls = find(piece)
        parts.append(cls(**check_fields(cls, tables.get(cls.name, {}))))
    for table in tables:
        if table in {part.name for part in parts}:
            continue  # checked by that part's class, which may be a user's class with a name of the library
        if table not in METHODS.own and table not in METHODS.names():
            raise InputError(f"method.{table}: there is no such method; {nearest(table, METHODS.names())}")
        check_fields(find(table), tables[table])
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))
