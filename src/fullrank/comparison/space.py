"""The space of a sweep: which values each key of the experiment can take."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fullrank import methods
from fullrank.comparison.variants import parse_grid, with_settings
from fullrank.config.experiment import Experiment, same
from fullrank.errors import InputError

FREE_OF_DATA = ("data.augment", "data.normalise")
"""Keys of [data] that do not change which samples each client has."""
NO_MATTER = ("run.", "engine.", "probe.", "evaluate.")
"""Keys that do not change what is learned."""


@dataclass(frozen=True)
class Choice:
    """A key that takes one of several values."""

    values: tuple[Any, ...]

    def distribution(self, optuna: Any) -> Any:
        """Return the distribution in Optuna, which stores values other than numbers and text as JSON."""
        return optuna.distributions.CategoricalDistribution([self.stored(value) for value in self.values])

    def stored(self, value: Any) -> Any:
        """Return a value as Optuna stores it."""
        return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)

    def restored(self, stored: Any) -> Any:
        """Return the value that Optuna has stored."""
        return next(value for value in self.values if same(self.stored(value), stored))

    def facts(self) -> Any:
        """Return the values as plain data."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """A key that takes any number between two bounds, both included."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def distribution(self, optuna: Any) -> Any:
        """Return the distribution in Optuna."""
        if self.whole:
            return optuna.distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return optuna.distributions.FloatDistribution(self.low, self.high, log=self.log)

    def restored(self, stored: Any) -> Any:
        """Return the value that Optuna has stored."""
        return int(stored) if self.whole else float(stored)

    def facts(self) -> Any:
        """Return the range as plain data."""
        return {"low": self.low, "high": self.high, "log": self.log, "whole": self.whole}


Dimension: TypeAlias = Choice | Range
Space: TypeAlias = dict[str, Dimension]


def parse_over(texts: Iterable[str]) -> dict[str, str]:
    """Parse the space of a sweep on the command line.

    Args:
        texts: Texts of the form `KEY=VALUES`.

    Returns:
        The values by key, as text.

    Raises:
        InputError: If a text is not of this form, or a key is given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, sign, values = text.partition("=")
        key = key.strip()
        if not sign or not key or not values.strip():
            raise InputError(f'"{text}" is not of the form KEY=LOW:HIGH or KEY=VALUE,VALUE, as in train.lr=0.01:1:log')
        if key in found:
            raise InputError(f"the key {key} is searched twice; give all of its values together")
        found[key] = values.strip()
    return found


def make_space(over: Mapping[str, Any], base: Experiment) -> Space:
    """Return the space of a sweep.

    Args:
        over: Values by dotted key: a list, a tuple (low, high) or (low, high, "log"), or the text of either as the
            command line takes it, "0.01,0.1" or "0.01:1:log".
        base: The experiment whose keys are searched.

    Raises:
        InputError: If a key or a value is rejected.
    """
    if not over:
        raise InputError("a sweep needs keys to search, as in train.lr=0.01:1:log or train.lr=0.01,0.1")
    space = {key: _dimension(key, values) for key, values in over.items()}
    for key in space:
        _check_key(key, base, "method.name" in space)
    return {key: _checked(key, dimension, base, space) for key, dimension in space.items()}


def _dimension(key: str, values: Any) -> Dimension:
    if isinstance(values, str):
        return _parsed(key, values)
    if isinstance(values, tuple):
        if len(values) == 2 or (len(values) == 3 and values[2] == "log"):
            return _range(key, values[0], values[1], len(values) == 3)
        raise InputError(f'{key}: a range is (low, high) or (low, high, "log"); give several values as a list')
    if not isinstance(values, Sequence) or not values:
        raise InputError(f"{key}: give a list of values or a range (low, high)")
    return _choice(key, values)


def _parsed(key: str, text: str) -> Dimension:
    low, *rest = text.split(":")
    lowest, highest = _number(low), _number(rest[0]) if rest else None
    if len(rest) not in (1, 2) or lowest is None or highest is None:
        return _choice(key, parse_grid([f"{key}={text}"])[key])
    if rest[1:] not in ([], ["log"]):
        raise InputError(f'{key}={text}: a range is LOW:HIGH or LOW:HIGH:log, not "{rest[1]}"')
    return _range(key, lowest, highest, bool(rest[1:]))


def _number(text: str) -> float | int | None:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def _range(key: str, low: Any, high: Any, log: bool) -> Range:
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
            raise InputError(f"{key}: the bounds of a range must be finite numbers, not {bound!r}")
    if not low < high:
        raise InputError(f"{key}: the range from {low} to {high} is empty; the lower bound comes first")
    if log and low <= 0:
        raise InputError(f"{key}: a range on a logarithmic scale must start above 0, not at {low}")
    return Range(low, high, log, whole=isinstance(low, int) and isinstance(high, int))


def _choice(key: str, values: Sequence[Any]) -> Choice:
    for index, value in enumerate(values):
        if value is None:
            raise InputError(f"{key}: a value to search is missing; write the values as in {key}=0.01,0.1")
        if any(same(value, other) for other in values[:index]):
            raise InputError(f"{key}: the value {value} is given twice")
    return Choice(tuple(values))


def _check_key(key: str, base: Experiment, any_method: bool) -> None:
    if key == "seed":
        raise InputError("the seed cannot be searched, because all trials have the same seeds; use --seeds")
    if key.startswith("data.") and key not in FREE_OF_DATA:
        raise InputError(
            f"{key} cannot be searched, because all trials must have the same data and splits; fullrank compare --vary "
            "shows its influence"
        )
    if key.startswith(NO_MATTER):
        raise InputError(f"{key} cannot be searched, because it does not change what is learned")
    used = {methods.find(piece).name for piece in base.method.name.split("+")}
    owner = key.split(".")[1] if key.startswith("method.") and key.count(".") > 1 else ""
    if owner and owner not in used and not any_method:
        raise InputError(
            f"{key} has no effect, because the method is {base.method.name}; add the method, as in --set "
            f"method.name={base.method.name}+{owner}"
        )


def _checked(key: str, dimension: Dimension, base: Experiment, space: Space) -> Dimension:
    """Return a dimension whose values the experiment accepts; ranges are whole where the key takes whole numbers."""
    values = dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)
    accepted = []
    for value in values:
        try:
            accepted.append(experiment_at(base, {key: value}).resolved().flat().get(key))
        except InputError as problem:
            raise InputError(f"{key} cannot be {value}: {problem}") from None
    if isinstance(dimension, Choice):
        return dimension
    whole = dimension.whole and all(isinstance(value, int) for value in accepted)
    if not whole:
        middle = (dimension.low + dimension.high) / 2
        try:
            experiment_at(base, {key: float(middle)})
        except InputError:
            raise InputError(f"{key} takes whole numbers; give whole numbers as the bounds of its range") from None
    return Range(dimension.low, dimension.high, dimension.log, whole)


def experiment_at(base: Experiment, point: Mapping[str, Any]) -> Experiment:
    """Return the experiment with the values of a point of the space."""
    return Experiment(**with_settings(base.model_dump(), point))


def grid_of(space: Space) -> list[dict[str, Any]]:
    """Return all points of a space of lists; the first key changes slowest.

    Args:
        space: The space.

    Raises:
        InputError: If a key has a range instead of a list.
    """
    for key, dimension in space.items():
        if isinstance(dimension, Range):
            raise InputError(
                f"a grid needs the values of {key} as a list, as in {key}={dimension.low},{dimension.high}; samplers "
                "random and tpe take a range"
            )
    lists = [dimension.values for dimension in space.values() if isinstance(dimension, Choice)]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*lists)]
