"""The errors that a user can cause, each in one sentence: what is wrong, where, and what to do.

The second half checks single values and describes what is wrong with them.
"""

from __future__ import annotations

import difflib
import json
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
    """Raised for invalid input and impossible requests. The command line prints the sentence without a traceback."""


class Conflict(InputError):
    """Raised if methods cannot be composed, or a method and a criterion cannot be combined."""


class ClientFailed(FullrankError, RuntimeError):
    """Raised if a client raised an exception or sent something unusable.

    The error has the client's id and, chained, the client's own exception.
    """

    def __init__(self, client: int, reason: str):
        super().__init__(f"client {client}: {reason}")
        self.client = client
        self.reason = reason

    def traceback(self) -> str:
        """Return the traceback of the client's own exception in any process; empty if it raised none."""
        cause = self.__cause__
        if isinstance(cause, RemoteError):
            return cause.traceback
        return "".join(traceback.format_exception(cause)) if cause is not None else ""


class SiteFailed(FullrankError, RuntimeError):
    """Raised if a site of a deployment does not do a job, is lost or does not answer. The message names the site."""


class WroteInPlace(InputError):
    """Raised if a method has written into a tensor that it received, which other clients and the server may share."""

    def __init__(self, method: str):
        super().__init__(
            f'the method "{method}" wrote into a tensor that it received (w0, sent, own …) in place; make '
            "a new tensor, as in w0 + 1 in place of w0.add_(1)"
        )


class RunFailed(FullrankError, RuntimeError):
    """Raised if a run fails. The message names the run and the cause; `traceback` is the traceback of the cause, if
    any.
    """

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message)
        self.traceback = traceback


class TooFewClients(RunFailed):
    """Raised if fewer clients than `run.min_clients` took part in a round, or answered a method's question."""


class CallFailed(RunFailed):
    """Raised if a user's function raised an exception.

    The message names the key of the function; `traceback` is the traceback of the exception.
    """


class CallbackFailed(CallFailed):
    """Raised if a callback raised an exception. The message names the callback and its member."""


class WriteFailed(FullrankError, OSError):
    """Raised if a file could not be written although its path is valid, for example on a full disk."""

    def __str__(self) -> str:
        return f'"{self.filename}" cannot be written: {self.strerror}'


class _RemoteTraceback(Exception):
    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RemoteError(Exception):
    """An exception of a client in another process: its class name, its message, and its traceback as text."""

    def __init__(self, kind: str, message: str, traceback: str):
        super().__init__(kind, message, traceback)
        self.kind, self.message, self.traceback = kind, message, traceback
        self.__cause__ = _RemoteTraceback(traceback)  # so that a printed traceback includes the original one

    def __str__(self) -> str:
        return self.message


def message_of(error: BaseException) -> str:
    """Return the message of an exception. It is found even if the exception's `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown, because __str__ raises"


def in_words(error: BaseException) -> tuple[str, str]:
    """Return the cause of a failed run in one sentence, and its traceback, if there is one."""
    if isinstance(error, ClientFailed):
        return str(error), error.traceback()
    if isinstance(error, RunFailed):
        return str(error), error.traceback
    if isinstance(error, (InputError, WriteFailed, KeyboardInterrupt)):
        return str(error), ""
    return f"{kind_of(error)}: {message_of(error)}", "".join(traceback.format_exception(error))


def kind_of(error: BaseException) -> str:
    """Return the class name of an exception, also of one in another process."""
    return error.kind if isinstance(error, RemoteError) else type(error).__name__


class Interrupted(KeyboardInterrupt):
    """Raised after SIGTERM or Ctrl-C was received and the state has been saved."""


class StoppedNow(Interrupted):
    """Raised if a second SIGTERM or Ctrl-C ends the run immediately, with the state that was saved before."""


@contextmanager
def writing(target: Path, kind: str = "", instead: str = "") -> Iterator[None]:
    """Convert operating-system errors in the block, which writes a file or a folder, into errors of one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f'{kind}"{target}" cannot be written: {error.strerror or error}{instead}') from None


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Add the name of a file to operating-system errors in the block, because that of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(error.errno, error.strerror or str(error), str(file)) from error


def nearest(wrong: str, right: Iterable[str], otherwise: str = "") -> str:
    """Return a clause that suggests the nearest right name; if none is near, `otherwise` or a list of all names.

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


def printable(text: str) -> str:
    """Return a text that a terminal shows as it is: a name from a file could hold the codes that control one.

    >>> printable("left\\nright")
    'left?right'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


LONGEST_SHOWN = 200
"""The largest number of characters of a value in a message."""
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
    """Return the value if it matches an annotation, else raise an `InputError` that names the key."""
    if isinstance(value, list) and tuple in (kind, get_origin(kind)):
        value = tuple(value)  # TOML has lists only
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise InputError(sentence(where, error.errors()[-1])) from None


def sentence(where: str, detail: ErrorDetails) -> str:
    """Convert one of pydantic's errors to a sentence."""
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
    if kind.startswith("list") and isinstance(value, str) and len(value) <= LONGEST_SHOWN:
        written = json.dumps([piece.strip(" \"'") for piece in value.strip("[]").split(",")], ensure_ascii=False)
        return f"{start} a list, as in {written}; on the command line, --set '{where}={written}'"
    for beginning, words in _KINDS.items():
        if kind.startswith(beginning):
            return f"{start} {words}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return not_a_table(where, value)
    return f"{where} = {shown(value)}: {detail['msg'].lower()}"


def not_a_table(where: str, value: Any) -> str:
    """Return the message for a value in place of a table."""
    return f"{where} = {shown(value)}: must be a table, as in [{where}]"


def shown(value: Any) -> str:
    """Return a value in TOML's notation, shortened if it is long."""
    if isinstance(value, int) and abs(value) >= 10**60:
        return f"{'-' * (value < 0)}1e{math.log10(abs(value)):.0f} or so"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
