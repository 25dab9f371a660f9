"""Checks of single values, and the sentences that say what is wrong with one."""

from __future__ import annotations

import math
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from .errors import Refusal

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
    """The value if it is of the kind that an annotation describes, else a `Refusal` that names the key."""
    if isinstance(value, list) and tuple in (kind, get_origin(kind)):
        value = tuple(value)  # TOML knows lists only
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise Refusal(sentence(where, error.errors()[-1])) from None


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
