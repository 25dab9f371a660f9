"""The rows of a comparison: methods with their own settings, grids of settings, and names for what differs."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fullrank import methods as known
from fullrank.config.experiment import Experiment, dotted, merged, method_labels, nested, parse_overrides, same
from fullrank.errors import InputError, nearest

MAY_DIFFER = (
    "method.",
    "probe.",
    "run.",
    "data.root",
    *(f"engine.{key}" for key in ("name", "workers", "threads", "device", "slots", "compile")),
)
"""Keys, besides the seed, that are no setting of a row: the method's own, and those that cannot change a result."""
NOT_SET_HERE = {"seed": "the seeds are given separately", "method.name": "the methods are given separately"}
"""Keys that neither a method's settings nor a grid can have, with the reason."""
PLAIN = 60
"""The number of characters up to which settings are part of a directory's name as they are."""


@dataclass(frozen=True)
class Variant:
    """A method with its own settings.

    `values` has dotted keys, and `text` is what the user wrote.
    """

    name: str
    values: Mapping[str, Any]
    text: str

    @property
    def parts(self) -> list[type[known.Method]]:
        """The classes of the methods that the name joins by "+"."""
        return [known.find(piece) for piece in self.name.split("+")]


def parse_variant(text: str) -> Variant:
    """Parse a method with its own settings.

    Args:
        text: `NAME:KEY=VALUE:KEY=VALUE…`, where a key is a hyper-parameter of the method or a key of the experiment.

    Raises:
        InputError: If the method does not have such a key, or a key is given twice.

    >>> parse_variant("fedavg+feddecorr:beta=0.5:train.lr=0.01").values
    {'method.feddecorr.beta': 0.5, 'train.lr': 0.01}
    """
    names: list[str] = []
    settings: list[str] = []
    for piece in text.split(":"):
        if re.match(r"\s*[\w.]+\s*=", piece):
            settings.append(piece)
        elif settings:  # a value that contains a colon, such as an import path
            settings[-1] += f":{piece}"
        else:
            names.append(piece)
    name = "+".join(piece.strip() for piece in ":".join(names).split("+"))
    bare = Variant(name, {}, text.strip())
    if not settings:
        return bare
    values: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        full = _full_key(key.strip(), bare)
        if full in values:
            raise InputError(f'"{bare.text}": {key.strip()} is given twice')
        values |= dotted(parse_overrides([f"{full}={value}"]))
    return dataclasses.replace(bare, values=values)


def _full_key(key: str, variant: Variant) -> str:
    """Return the dotted key of an experiment for a key in the settings of a method."""
    if key in NOT_SET_HERE:
        raise InputError(f'"{variant.text}": {key} cannot be a setting of a method, because {NOT_SET_HERE[key]}')
    owners = {cls.name: [field.name for field in dataclasses.fields(cls)] for cls in variant.parts}
    first, dot, _ = key.partition(".")
    if dot:
        return f"method.{key}" if first in owners else key
    having = [name for name, fields in owners.items() if key in fields]
    if len(having) > 1:
        ways = " or ".join(f"{name}.{key}" for name in having)
        raise InputError(f'"{variant.text}": {" and ".join(having)} both have {key}; write {ways}')
    if not having:
        every = [name for fields in owners.values() for name in fields]
        advice = nearest(key, every) if every else "it has none"
        raise InputError(
            f'"{variant.text}": {variant.name} has no hyper-parameter "{key}"; {advice} (other keys of the experiment '
            "are written with their table, as in train.lr=0.1)"
        )
    return f"method.{having[0]}.{key}"


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    r"""Parse `KEY=VALUE,VALUE…` into the values by key.

    Args:
        texts: The values of each key.

    Returns:
        The values by key.

    Raises:
        InputError: If a text is not of this form, or a key is given twice.

    >>> parse_grid(["train.lr=0.01,0.1", "data.augment=[\"flip\"],none"])
    {'train.lr': [0.01, 0.1], 'data.augment': [['flip'], 'none']}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, sign, values = text.partition("=")
        key = key.strip()
        if not sign or not key:
            raise InputError(f'"{text}" is not of the form KEY=VALUE,VALUE, as in train.lr=0.01,0.1')
        if key in grid:
            raise InputError(f"the key {key} is varied twice; give all of its values together")
        grid[key] = [dotted(parse_overrides([f"{key}={piece}"]))[key] for piece in split_list(values)]
    return grid


def split_list(text: str) -> list[str]:
    """Split a text at the commas that are outside brackets and quotation marks.

    >>> split_list('flip,["crop:4", "flip"],none')
    ['flip', '["crop:4", "flip"]', 'none']
    """
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces]


def check_grid(grid: Mapping[str, Sequence[Any]], variants: Sequence[Variant]) -> None:
    """Check the grid of a comparison.

    Args:
        grid: The values by key.
        variants: The methods.

    Raises:
        InputError: If a key cannot be varied, has no values, or has a value twice.
    """
    for key, values in grid.items():
        if key in NOT_SET_HERE:
            raise InputError(f"{key} cannot be varied, because {NOT_SET_HERE[key]}")
        if isinstance(values, str) or not values or any(value is None for value in values):
            raise InputError(f"the key {key} needs the values to take, as in train.lr=0.01,0.1")
        for index, value in enumerate(values):
            if any(same(value, other) for other in values[:index]):
                raise InputError(f"the key {key} has the value {value} twice")
        for variant in variants:
            if key in variant.values:
                raise InputError(f'"{variant.text}" sets {key}, which is varied as well; give it in one place')
        if not any(_has_effect(key, variant) for variant in variants):
            raise InputError(f"{key} cannot be varied, because no method of the comparison has this hyper-parameter")


def rows_of(
    grid: Mapping[str, Sequence[Any]], variants: Sequence[Variant]
) -> dict[str, tuple[Variant, dict[str, Any]]]:
    """Return the rows of a comparison: each method at each point of a grid.

    A method has no rows for the hyper-parameters of other methods.

    Args:
        grid: The values by key.
        variants: The methods.

    Returns:
        For each row, by its name, the method and the values of the keys.

    Raises:
        InputError: If two methods that are written differently are the same.
    """
    rows: dict[str, tuple[Variant, dict[str, Any]]] = {}
    for values in itertools.product(*grid.values()):
        for variant in variants:
            chosen = zip(grid, values, strict=True)
            point = {key: value for key, value in chosen if _has_effect(key, variant)}
            if rows.setdefault(row_name(variant, point), (variant, point))[0] != variant:
                raise InputError(f'"{variant.text}" has the same settings as another method of the comparison')
    return rows


def _has_effect(key: str, variant: Variant) -> bool:
    return not key.startswith("method.") or key.split(".")[1] in {cls.name for cls in variant.parts}


def with_settings(values: Mapping[str, Any], *settings: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys in the nested values of an experiment.

    Args:
        values: The nested values, which are not changed.
        *settings: Values by dotted key; later ones replace earlier ones.

    Returns:
        The new nested values.
    """
    found = dict(values)
    for each in settings:
        found = merged(found, nested(each))
    return found


def row_name(variant: Variant, point: Mapping[str, Any]) -> str:
    """Return the name of a row in the names of directories, which does not depend on the other rows.

    Args:
        variant: The method with its own settings.
        point: The values of the varied keys.
    """
    settings = {**variant.values, **point}
    if not settings:
        return variant.name
    text = ",".join(f"{key.removeprefix('method.')}={value}" for key, value in settings.items())
    plain = re.sub(r"[^\w.,=+-]", "_", text)
    if plain != text or len(plain) > PLAIN:
        plain = f"{plain[:PLAIN]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{variant.name}-{plain}"


def reference_row(reference: str, experiments: Mapping[str, Experiment], rows: Sequence[str]) -> str:
    """Return the first row that a reference names: the row itself, or a method as users write it.

    Args:
        reference: What the user wrote.
        experiments: The experiments of the rows that have one.
        rows: All rows; those without an experiment are known by their names only.

    Raises:
        InputError: If there is no such row.
    """
    written = reference.strip()
    if written in rows:
        return written
    for row in rows:
        name = row.partition(" (")[0]
        if name == written or (row in experiments and describes(written, experiments[row])):
            return row
    raise InputError(f'no row of the comparison is "{reference}"; known: {"; ".join(rows)}')


def describes(text: str, experiment: Experiment) -> bool:
    """Return whether a method with settings, as users write it, describes an experiment."""
    try:
        variant = parse_variant(text)
        name, names = variant.name, (experiment.method.name, experiment.method_label)
        flat = experiment.resolved().flat()
    except InputError:
        return False
    return name in names and all(key in flat and flat[key] == value for key, value in variant.values.items())


# Names for what differs


def setting_of(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that are not the method's own: all keys that can change a result, without the seed."""
    return {k: v for k, v in experiment.flat().items() if k != "seed" and not k.startswith(MAY_DIFFER)}


def data_of(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """Return the keys that determine the data of the clients; for one seed they give the same samples."""
    return tuple((k, repr(v)) for k, v in sorted(setting_of(experiment).items()) if k.startswith("data."))


def varied_keys(experiments: Sequence[Experiment]) -> list[str]:
    """Return the keys in which experiments differ, other than method, hyper-parameters and seed."""
    settings = [setting_of(experiment) for experiment in experiments]
    keys = dict.fromkeys(key for setting in settings for key in setting)
    return [key for key in keys if any(not same(setting.get(key), settings[0].get(key)) for setting in settings)]


def row_labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return the row of a comparison to which each experiment belongs.

    It is the method, with the hyper-parameters in which experiments of that method differ, and with all other keys in
    which any experiments differ.
    """
    names = method_labels(experiments)
    resolved = [experiment.resolved().flat() for experiment in experiments]
    settings = varied_keys(experiments)
    hyper = [{k: v for k, v in flat.items() if k.startswith("method.") and k != "method.name"} for flat in resolved]
    labels = []
    for name, flat, own in zip(names, resolved, hyper, strict=True):
        namesakes = [other for other, its in zip(hyper, names, strict=True) if its == name]
        varied = [key for key in own if any(not same(own[key], other.get(key)) for other in namesakes)]
        shown = [*varied, *(key for key in settings if key in flat)]
        details = ", ".join(f"{key.removeprefix('method.')}={flat[key]}" for key in shown)
        labels.append(f"{name} ({details})" if details else name)
    return labels
