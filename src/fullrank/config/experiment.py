"""An experiment: a validated description of one run. TOML in, TOML out; unknown keys are refused by name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fullrank import methods, models
from fullrank.config.schema import (
    Data,
    EngineTable,
    Evaluate,
    MethodTable,
    Model,
    ProbeTable,
    RunTable,
    Statistics,
    Table,
    Train,
)
from fullrank.errors import Refusal, nearest, not_a_table, sentence
from fullrank.files import Damaged, check_text
from fullrank.plugins import GIVEN, is_foreign, refuse_untrusted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


DEEPEST = 20
"""Levels of tables that a key may name."""


class Experiment(Table):
    """One run, described. Every key has a default, so `Experiment()` is a run on the embedded digits.

    >>> Experiment.of({"data.alpha": 0.05, "method": {"name": "fedavg+feddecorr"}}).data.alpha
    0.05
    """

    seed: Annotated[int, Field(ge=0)] = 0
    """Of everything that is drawn."""
    data: Data = Data()
    model: Model = Model()
    method: MethodTable = MethodTable()
    train: Train = Train()
    engine: EngineTable = EngineTable()
    evaluate: Evaluate = Evaluate()
    probe: ProbeTable = ProbeTable()
    run: RunTable = RunTable()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise Refusal(_sentences(error)) from None

    @model_validator(mode="after")
    def _resolvable(self) -> Experiment:
        """The method and the model exist and take these options."""
        try:
            if self._looks_up(self.model.name):
                models.check_options(self.model.name, models.builder(self.model.name), self.model.options)
            if self._looks_up(self.method.name):
                methods.build(self.method.name, **self.method.tables)
        except Refusal as problem:
            raise ValueError(str(problem)) from problem
        return self

    def _looks_up(self, name: str) -> bool:
        """Whether a model's or method's name must lead to what it names."""
        return name != GIVEN and not name.startswith(f"{GIVEN}:")

    def __eq__(self, other: object) -> bool:
        # Not by class: a run read back is of the experiment that was run.
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    # Reading and writing

    @classmethod
    def of(cls, source: Experiment | str | Path | Mapping[str, Any]) -> Experiment:
        """From an experiment, the path of a TOML file, or a dict with nested or dotted keys."""
        if isinstance(source, Recorded):
            return source.opened()
        if isinstance(source, Experiment):
            return source
        if isinstance(source, Mapping):
            return cls(**nested(source))
        return cls.from_toml(source)

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """From a TOML file, with `key=value` overrides on top."""
        return cls(**merged(read_toml(path), parse_overrides(overrides)))

    def to_toml(self, path: str | Path) -> None:
        """Write every key, defaults included."""
        Path(path).write_text(self.as_toml(), encoding="utf-8")

    def as_toml(self) -> str:
        """The text of the TOML file. TOML has no None: such a key is left out, and its default is None again."""
        return tomli_w.dumps(_without_none(self.model_dump()))

    def but(self, **dotted: Any) -> Experiment:
        """A copy with other values, keys dotted with `__` or given as a nested dict."""
        return type(self)(**merged(self.model_dump(), nested({k.replace("__", "."): v for k, v in dotted.items()})))

    # Names and differences

    def import_paths(self) -> dict[str, str]:
        """The names of data, model and method, by key, that lead to code outside the library."""
        named = {"data.name": self.data.name, "model.name": self.model.name, "method.name": self.method.name}
        return {key: name for key, name in named.items() if is_foreign(key, name)}

    def flat(self) -> dict[str, Any]:
        """Every key that matters to this run, dotted; tables of methods that the name does not mention left out."""
        values = dotted(self.model_dump())
        if not self._method_names():
            return values
        named = {methods.find(piece).name for piece in self._method_names()}
        return {
            key: value
            for key, value in values.items()
            if not (key.startswith("method.") and key.count(".") > 1 and key.split(".")[1] not in named)
        }

    def _method_names(self) -> list[str]:
        return self.method.name.split("+") if self._looks_up(self.method.name) else []

    def resolved(self) -> Experiment:
        """With every hyper-parameter of its methods written out."""
        tables = dict(self.method.tables)
        for piece in self._method_names():
            cls = methods.find(piece)
            tables[cls.name] = methods.check_fields(cls, tables.get(cls.name, {}))
        return type(self)(**merged(self.model_dump(), {"method": tables}))

    def hash(self) -> str:
        """Of what decides the result: keys at their defaults, where data lie, engine, run and rounds left out."""
        defaults = Experiment(method={"name": self.method.name}).resolved().flat()
        chosen = {
            key: value
            for key, value in self.resolved().flat().items()
            if (not same(value, defaults.get(key)) or key == "method.name")
            and not key.startswith(("engine.", "run."))
            and key not in ("data.root", "train.rounds")
        }
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    def directory(self) -> Path:
        """Where a run goes that is not told where: the same experiment finds its own directory again."""
        method = "+".join(methods.find(piece).name for piece in self._method_names())
        return Path("runs") / f"{self.data_label}-{method}-{self.hash()[:8]}"

    @property
    def data_label(self) -> str:
        """The data's name as part of a directory's name."""
        name = self.data.name
        return (Path(name).stem if name.endswith(".npz") else name).replace(":", ".").replace("/", "-")


class Recorded(Experiment):
    """The experiment of a run as its directory has it: reading it imports no module that it names.

    `opened` gives the experiment that can be run, which imports what it names if the reader trusts the directory.
    """

    _path: Path = PrivateAttr(default=Path())
    _trusted: bool = PrivateAttr(default=False)

    @classmethod
    def by(cls, path: Path, trust: bool = False) -> Recorded:
        """What the run in a directory recorded."""
        file = path / "experiment.toml"
        values = read_toml(file)
        try:
            check_text(file.read_text(encoding="utf-8"))
        except Damaged as problem:
            raise Refusal(f'"{file}" is damaged: {problem}') from None
        if not values:
            raise Refusal(
                f'"{file}" is empty, so it is damaged; put the experiment in it with which the run was started, or '
                "take another directory"
            )
        try:
            found = cls(**values)
        except Refusal as problem:
            raise Refusal(f'the experiment of the run in "{path}" cannot be read: {problem}') from None
        found._path, found._trusted = path, trust
        return found

    def opened(self, *, data: bool = True) -> Experiment:
        """The experiment that was run; rejected where it names code that the reader has not said to trust.

        Args:
            data: Whether the data are going to be loaded too, so that their name is imported.
        """
        if not self._trusted:
            refuse_untrusted(self._path, {k: v for k, v in self.import_paths().items() if data or k != "data.name"})
        return Experiment(**self.model_dump())

    def named_by(self, experiment: Experiment) -> Experiment:
        """The experiment that was run, where the user's own names the same code; else as it was recorded."""
        known = experiment.import_paths().items() >= self.import_paths().items()
        return Experiment(**self.model_dump()) if known else self

    def but(self, **dotted: Any) -> Experiment:
        """A copy with other values, as untrusted as this one."""
        changed = super().but(**dotted)
        assert isinstance(changed, Recorded)
        changed._path, changed._trusted = self._path, self._trusted
        return changed

    def _looks_up(self, name: str) -> bool:
        return super()._looks_up(name) and ":" not in name

    def hash(self) -> str:
        """That of the experiment that was run, for which its methods must be there."""
        return self.opened(data=False).hash()

    def directory(self) -> Path:
        """Where the experiment that was run goes, for which its methods must be there."""
        return self.opened(data=False).directory()


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as nested dicts."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise Refusal(f'there is no file "{path}"') from None
    except RecursionError:
        raise Refusal(f'"{path}" is not an experiment: its values are nested too deeply to be read') from None
    except ValueError as error:  # also numbers with too many digits and text that is not UTF-8
        raise Refusal(f'"{path}" is not valid TOML: {error}') from None
    except OSError as error:
        raise Refusal(f'"{path}" cannot be read: {error.strerror}') from None


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as nested dicts; the last of a repeated key wins."""
    values: dict[str, Any] = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise Refusal(f'"{text}" is not of the form key=value, as in data.alpha=0.05')
        values[key.strip()] = _read_value(key.strip(), value.strip())
    return nested(values)


def _read_value(key: str, text: str) -> Any:
    """A value as TOML, else as text; always as text where the key takes text, and `.5` and `1.` as numbers."""
    if _takes_text(key) or (key.startswith("model.") and text == "inf"):  # a mode of networks, in TOML a number
        return text.strip("\"'")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise Refusal(f"{key}: the value is nested too deeply to be read") from None
    except ValueError:  # text, or a number with too many digits
        pass
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def _takes_text(key: str) -> bool:
    table, _, name = key.rpartition(".")
    field = Experiment.model_fields.get(table)
    keys = type(field.default).model_fields if field is not None else {}
    return name in keys and keys[name].annotation is str


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested dicts.

    >>> nested({"data.alpha": 0.1, "data": {"clients": 5}})
    {'data': {'alpha': 0.1, 'clients': 5}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = str(key).split(".")
        if len(above) > DEEPEST:
            raise Refusal(f"{str(key)[:100]}…: there is no such key; an experiment has no tables that deep")
        node: Any = {name: nested(value) if isinstance(value, Mapping) else _text(value)}
        for step in reversed(above):
            node = {step: node}
        tree = merged(tree, node)
    return tree


def _text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def same(a: Any, b: Any) -> bool:
    """Whether two values of a key mean the same; a participation of 1 is one client, of 1.0 all of them."""
    return type(a) is type(b) and a == b


def merged(below: Mapping[str, Any], above: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Two nested dicts, the second on top of the first; `where` is the dotted name of both, followed by a dot.

    What is no table although it must be one (as `[[data]]` or `data = 5` in a file) is rejected, not replaced.
    """
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        if isinstance(value, Mapping) and key in result and not both and _is_a_table(f"{where}{key}"):
            raise Refusal(not_a_table(f"{where}{key}", result[key]))
        result[key] = merged(result[key], value, f"{where}{key}.") if both else value
    return result


def _is_a_table(key: str) -> bool:
    """Whether a dotted key always names a table: one of the experiment's own, or the hyper-parameters of a method."""
    field = Experiment.model_fields.get(key)
    own = field is not None and isinstance(field.default, Table)
    return own or (key.startswith("method.") and key.count(".") == 1)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, Mapping) else v for k, v in values.items() if v is not None}


def _sentences(error: ValidationError) -> str:
    """Each problem once, in one sentence. Of a union's alternatives the first is the usual one, unless a table was
    given and the problem lies inside."""
    problems: dict[str, str] = {}
    for detail in error.errors():
        keys, table = _place(detail)
        problems.setdefault(".".join(keys), _sentence(keys, table, detail))
    return "\n".join(
        text for where, text in problems.items() if not any(other.startswith(f"{where}.") for other in problems)
    )


def _place(detail: ErrorDetails) -> tuple[list[str], type[BaseModel]]:
    """The keys that lead to a finding, and the last table on the way.

    Other steps are indices in lists and pydantic's names for the alternatives of a union.
    """
    keys: list[str] = []
    table: type[BaseModel] = Experiment
    for step in detail["loc"]:
        if step == Statistics.__name__:
            table = Statistics
        elif step in table.model_fields:
            keys.append(str(step))
            default = table.model_fields[str(step)].default
            table = type(default) if isinstance(default, Table) else table
    if detail["type"] == "extra_forbidden":
        keys.append(str(detail["loc"][-1]))
    return keys, table


def _sentence(keys: list[str], table: type[BaseModel], detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    where = ".".join(keys)
    if detail["type"] == "extra_forbidden":
        return f"{where}: there is no such key; {nearest(keys[-1], table.model_fields)}"
    return sentence(where, detail)
