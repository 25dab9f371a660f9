"""The errors that a user can cause, each one sentence: what is wrong, where, and what would be right.

The second half checks single values and says what is wrong with one.
"""

from __future__ import annotations

import difflib
import math
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails


class FullrankError(Exception):
    """The base class of every error that fullrank raises on purpose; its message is one sentence."""


class InputError(FullrankError, ValueError):
    """Bad input or an impossible request. The command line prints the sentence without a traceback."""


class Conflict(InputError):
    """Methods that cannot be composed, or a method and a criterion that cannot be combined."""


class ClientFailed(FullrankError, RuntimeError):
    """A client raised or sent something unusable; carries the client's id and, chained, its own exception."""

    def __init__(self, client: int, reason: str):
        super().__init__(f"client {client}: {reason}")
        self.client = client
        self.reason = reason

    def traceback(self) -> str:
        """The traceback of the client's own exception, wherever it was raised; empty where it raised none."""
        cause = self.__cause__
        if isinstance(cause, RemoteError):
            return cause.traceback
        return "".join(traceback.format_exception(cause)) if cause is not None else ""


class WroteInPlace(InputError):
    """A method that wrote into a tensor that it received, which other clients and the server may hold too."""

    def __init__(self, method: str):
        super().__init__(
            f'the method "{method}" wrote into a tensor that it received (w0, sent, own …) in place; make '
            "a new tensor, as in w0 + 1 in place of w0.add_(1)"
        )


class RunFailed(FullrankError, RuntimeError):
    """A run cannot go on, or one of several; the message says which and why, `traceback` is what it left, if any."""

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message)
        self.traceback = traceback


class CallFailed(RunFailed):
    """A function of the user's raised; the message names the key that named it, and `traceback` is its own."""


class CallbackFailed(CallFailed):
    """A callback raised an exception; the message names the callback and its member."""


class WriteFailed(FullrankError, OSError):
    """A file could not be written although its place is right, as on a disk that is full."""

    def __str__(self) -> str:
        return f'"{self.filename}" cannot be written: {self.strerror}'


class _RemoteTraceback(Exception):
    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RemoteError(Exception):
    """A client's exception in another process: what it was called, what it said, and its traceback as text."""

    def __init__(self, kind: str, message: str, traceback: str):
        super().__init__(kind, message, traceback)
        self.kind, self.message, self.traceback = kind, message, traceback
        self.__cause__ = _RemoteTraceback(traceback)  # so that whoever prints this error prints where it came from

    def __str__(self) -> str:
        return self.message


def said_by(error: BaseException) -> str:
    """What an exception says, also where its own `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown, because __str__ raises"


def in_words(error: BaseException) -> tuple[str, str]:
    """Why a run failed, in one sentence, and the traceback that tells more, if there is one."""
    if isinstance(error, ClientFailed):
        return str(error), error.traceback()
    if isinstance(error, RunFailed):
        return str(error), error.traceback
    if isinstance(error, (InputError, WriteFailed, KeyboardInterrupt)):
        return str(error), ""
    return f"{kind_of(error)}: {said_by(error)}", "".join(traceback.format_exception(error))


def kind_of(error: BaseException) -> str:
    """What an exception is called, wherever it was raised."""
    return error.kind if isinstance(error, RemoteError) else type(error).__name__


class Interrupted(KeyboardInterrupt):
    """SIGTERM or Ctrl-C was received and everything worth keeping has been saved."""


class StoppedNow(Interrupted):
    """A second SIGTERM or Ctrl-C was received: the run ended at once, with what had been saved before."""


@contextmanager
def writing(target: Path, kind: str = "", instead: str = "") -> Iterator[None]:
    """What the system says against writing a file or a folder, as one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f'{kind}"{target}" cannot be written: {error.strerror or error}{instead}') from None


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """What the system says against writing a file, with the file's name, which it does not say of a full disk."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(error.errno, error.strerror or str(error), str(file)) from error


def nearest(wrong: str, right: Iterable[str], otherwise: str = "") -> str:
    """A clause that suggests the nearest right name, or lists them all (or says otherwise) when none is near.

    >>> nearest("feddecor", ["fedavg", "feddecorr"])
    'did you mean "feddecorr"?'
    """
    names = sorted(set(right))
    close = difflib.get_close_matches(wrong.lower(), names, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{close[0]}"?'
    if otherwise:
        return otherwise
    return "known: " + ", ".join(names) if names else "none is known"


LONGEST_SHOWN = 200
"""Characters of a value that a sentence repeats."""
_COMPARISONS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
}


def checked(kind: Any, value: Any, where: str) -> Any:
    """The value if it is of the kind that an annotation describes, else a `InputError` that names the key."""
    if isinstance(value, list) and tuple in (kind, get_origin(kind)):
        value = tuple(value)  # TOML knows lists only
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise InputError(sentence(where, error.errors()[-1])) from None


def sentence(where: str, detail: ErrorDetails) -> str:
    """One sentence for one of pydantic's findings."""
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    start = f"{where} = {shown(value)}: must be"
    if kind in _COMPARISONS:
        name, words = _COMPARISONS[kind]
        return f"{start} {words} {context[name]:g}"
    if kind == "literal_error":
        return f"{start} {str(context['expected']).replace(chr(39), chr(34))}"
    if kind == "missing":
        return f"{where}: must be given"
    if kind == "finite_number":
        return f"{start} a finite number"
    for beginning, words in _KINDS.items():
        if kind.startswith(beginning):
            return f"{start} {words}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return not_a_table(where, value)
    return f"{where} = {shown(value)}: {detail['msg'].lower()}"


def not_a_table(where: str, value: Any) -> str:
    """The sentence for a value where a table belongs."""
    return f"{where} = {shown(value)}: must be a table, as in [{where}]"


def shown(value: Any) -> str:
    """A value as a TOML file would have it, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**60:
        return f"{'-' * (value < 0)}1e{math.log10(abs(value)):.0f} or so"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
