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
    """The base class of every error that fullrank raises on purpose; its message is one sentence.

    >>> from fullrank import Experiment
    >>> try:
    ...     Experiment.of({"train.rounds": 0})
    ... except FullrankError as error:
    ...     print(error)
    train.rounds = 0: must be at least 1
    """


class InputError(FullrankError, ValueError):
    """Raised for invalid input and impossible requests. The command line prints the sentence without a traceback."""


class Conflict(InputError):
    """Raised if methods cannot be composed, or a method and a criterion cannot be combined.

    >>> from fullrank import methods
    >>> try:
    ...     methods.build("fedprox+fedprox")
    ... except Conflict as error:
    ...     print(error)
    the method "fedprox" occurs twice in "fedprox+fedprox"
    """


class ClientFailed(FullrankError, RuntimeError):
    """Raised if a client raised an exception or sent something unusable.

    The client's own exception, if there is one, is chained as the cause.

    Args:
        client: The id of the client.
        reason: What happened, as a clause of the message.
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
    """Raised if a method has written into a tensor that it received, which other clients and the server may share.

    Args:
        method: The name of the method.
    """

    def __init__(self, method: str):
        super().__init__(
            f'the method "{method}" wrote into a tensor that it received (w0, sent, own …) in place; make '
            "a new tensor, as in w0 + 1 in place of w0.add_(1)"
        )


class RunFailed(FullrankError, RuntimeError):
    """Raised if a run fails.

    Args:
        message: A sentence that names the run and the cause.
        traceback: The traceback of the cause, if there is one.
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
    """An exception of a client in another process, of which only text was transferred.

    Args:
        kind: The name of the exception's class.
        message: The exception's message.
        traceback: The exception's traceback as text, which is printed with this exception.
    """

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
    """Describe the error that ended a run.

    Args:
        error: The exception.

    Returns:
        The cause in one sentence, and the traceback; it is empty for errors that a user can correct from the sentence.
    """
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
    """Convert errors of the operating system in a block that writes a file or a folder.

    Args:
        target: The file or folder, which the message names.
        kind: What the target is, as the beginning of the message.
        instead: What to do instead, as the end of the message.

    Raises:
        InputError: If the block raises an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f'{kind}"{target}" cannot be written: {error.strerror or error}{instead}') from None


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """Add the name of a file to errors of the operating system in the block, because that of a full disk has none.

    Raises:
        WriteFailed: If the block raises an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise WriteFailed(error.errno, error.strerror or str(error), str(file)) from error


def nearest(wrong: str, right: Iterable[str], otherwise: str = "") -> str:
    """Return a clause that suggests the most similar right name.

    Args:
        wrong: The name that was given.
        right: The names that exist.
        otherwise: The clause if no name is similar; by default a list of all names.

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
    r"""Replace what a terminal would not print, such as the control codes in a name from a file, by question marks.

    >>> printable("left\nright")
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
    """Return a value if it matches an annotation.

    Args:
        kind: The type that the value must have, with constraints as pydantic annotates them.
        value: The value. A list stands for a tuple, because TOML has lists only.
        where: The key that has the value, which the error names.

    Raises:
        InputError: If the value does not match.
    """
    if isinstance(value, list) and tuple in (kind, get_origin(kind)):
        value = tuple(value)  # TOML has lists only
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise InputError(sentence(where, error.errors()[-1])) from None


def sentence(where: str, detail: ErrorDetails) -> str:
    """Convert one of pydantic's errors to a sentence.

    Args:
        where: The key that has the invalid value.
        detail: The error as pydantic reports it.
    """
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
        return f"about {'-' * (value < 0)}1e{math.log10(abs(value)):.0f}"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
