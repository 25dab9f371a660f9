"""An experiment: the validated description of one run, read from and written to TOML. Unknown keys are errors."""

from __future__ import annotations

import contextlib
import difflib
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
from fullrank.data.augment.registry import is_import_path
from fullrank.engine import ENGINES
from fullrank.errors import Conflict, InputError, nearest, not_a_table, sentence
from fullrank.files import Damaged, check_text
from fullrank.metrics.registry import find_metrics
from fullrank.plugins import FILES, GIVEN, LIBRARY, is_foreign, reject_untrusted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


DEEPEST = 20
"""Maximum number of nested tables in a key."""


class Experiment(Table):
    """The description of one run. Every key has a default: `Experiment()` is a run on the embedded digits.

    Args:
        **values: The values of keys and tables, as in a TOML file; `Experiment.of` accepts dotted keys as well.

    Raises:
        InputError: If a key is unknown, or a value is invalid; the message names every such key.
        Conflict: If the methods cannot be composed.

    >>> Experiment.of({"data.alpha": 0.05, "method": {"name": "fedavg+feddecorr"}}).data.alpha
    0.05
    """

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of all random numbers of the run: initial weights, sampled clients, batches and augmentation."""
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
            causes = [getattr(detail.get("ctx", {}).get("error"), "__cause__", None) for detail in error.errors()]
            kind = Conflict if any(isinstance(cause, Conflict) for cause in causes) else InputError
            raise kind(_sentences(error)) from None

    @model_validator(mode="after")
    def _resolvable(self) -> Experiment:
        """Check that everything that the experiment names exists and accepts these options."""
        from fullrank.federated.aggregation import find_aggregator

        try:
            if self._looks_up(self.model.name):
                models.check_options(self.model.name, models.builder(self.model.name), self.model.options)
            self._check_functions()
            if self._looks_up(self.train.aggregator):
                find_aggregator(self.train.aggregator)
            if ":" in self.engine.name and self._looks_up(self.engine.name):
                ENGINES.find(self.engine.name)
        except InputError as problem:
            raise ValueError(str(problem)) from problem
        return self

    def _check_functions(self) -> None:
        """Check that the method, its criterion and the metrics can be found."""
        method = methods.Method()
        if self._looks_up(self.method.name):
            method = methods.build(self.method.name, **self.method.tables)
        methods.Composition(method, self.train.criterion)
        find_metrics(self.evaluate.metrics)

    def _looks_up(self, name: str) -> bool:
        """Return whether the name of a model or method must be resolved."""
        return name != GIVEN and not name.startswith(f"{GIVEN}:")

    def __eq__(self, other: object) -> bool:
        # Classes are not compared: the experiment of a loaded run equals the one that was run.
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    # Reading and writing

    @classmethod
    def of(cls, source: Experiment | str | Path | Mapping[str, Any]) -> Experiment:
        """Return the experiment that a source describes.

        Args:
            source: An experiment, the path of a TOML file, or a dict with nested or dotted keys.

        Raises:
            InputError: If the source cannot be read, or is not a valid experiment.
        """
        if isinstance(source, Recorded):
            return source.opened()
        if isinstance(source, Experiment):
            return source
        if isinstance(source, Mapping):
            return cls(**nested(source))
        return cls.from_toml(source)

    @classmethod
    def from_toml(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """Read an experiment from a TOML file.

        Args:
            path: The file.
            overrides: Values that replace those of the file, as `key=value`.

        Raises:
            InputError: If the file cannot be read, or is not a valid experiment.
        """
        return cls(**merged(read_toml(path), parse_overrides(overrides)))

    def to_toml(self, path: str | Path) -> None:
        """Write all keys to a TOML file, including those at their defaults."""
        Path(path).write_text(self.as_toml(), encoding="utf-8")

    def as_toml(self) -> str:
        """Return the text of the TOML file. Keys whose value is None are omitted, since TOML has no None."""
        return tomli_w.dumps(without_none(self.model_dump()))

    def but(self, **dotted: Any) -> Experiment:
        """Return a copy with other values.

        Args:
            **dotted: The values: `data__alpha=0.1` and `data={"alpha": 0.1}` both set `data.alpha`.

        Raises:
            InputError: If a value is invalid.

        >>> Experiment().but(data__alpha=0.5).data.alpha
        0.5
        """
        return type(self)(**merged(self.model_dump(), nested({k.replace("__", "."): v for k, v in dotted.items()})))

    # Names and differences

    def import_paths(self) -> dict[str, str]:
        """Return the names of code outside the library by key; those of a list are joined by "+"."""
        found: dict[str, str] = {}
        for key in LIBRARY:
            table, _, field = key.partition(".")
            value = getattr(getattr(self, table), field, "")
            names = [value] if isinstance(value, str) else [name for name in value if is_foreign(key, name)]
            if key == "data.augment":  # what follows a name of the library's own is an argument
                names = [name for name in names if is_import_path(name)]
            if is_foreign(key, name := "+".join(names)):
                found[key] = name
        return found

    def flat(self) -> dict[str, Any]:
        """Return the dotted keys and values of this run, without hyper-parameters of methods that it does not use."""
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
        """Return a copy that contains every hyper-parameter of its methods."""
        tables = dict(self.method.tables)
        for piece in self._method_names():
            cls = methods.find(piece)
            tables[cls.name] = methods.check_fields(cls, tables.get(cls.name, {}))
        return type(self)(**merged(self.model_dump(), {"method": tables}))

    def hash(self) -> str:
        """Return a hash of the keys that determine the result.

        Keys at their defaults, the folder of the data, the number of rounds and the tables `engine` and `run` do not
        count.
        """
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
        """Return the default directory of the run, which is the same for equal experiments."""
        method = "+".join(methods.find(piece).name for piece in self._method_names())
        return Path("runs") / f"{self.data_label}-{method}-{self.hash()[:8]}"

    @property
    def method_label(self) -> str:
        """The names of the methods as displays and tables show them: a user's class by its name, not its import path.

        >>> Experiment(method={"name": "fullrank.methods.fedprox:FedProx+feddecorr"}).method_label
        'fedprox+feddecorr'
        """
        pieces = self.method.name.removeprefix(f"{GIVEN}:").split("+")
        return "+".join(self._own_name(piece) if ":" in piece else piece for piece in pieces)

    def _own_name(self, path: str) -> str:
        """Return the name of the method behind an import path."""
        return methods.find(path).name

    @property
    def is_given(self) -> bool:
        """Whether a program gave the data, the model or the method, so that this description cannot repeat the run."""
        return GIVEN in (self.data.name, self.model.name) or self.method.name.startswith(f"{GIVEN}:")

    @property
    def data_label(self) -> str:
        """The name of the data set in a form that can be part of a file name."""
        name = self.data.name
        return (Path(name).stem if name.endswith(FILES["data.name"]) else name).replace(":", ".").replace("/", "-")


class Recorded(Experiment):
    """The experiment that a run directory contains. Reading it imports none of the modules that it names.

    `opened` returns an experiment that can be run; it imports these modules if the user trusts the directory.
    """

    _path: Path = PrivateAttr(default=Path())
    _trusted: bool = PrivateAttr(default=False)

    @classmethod
    def by(cls, path: Path, trust: bool = False) -> Recorded:
        """Read the experiment of a run.

        Args:
            path: The run directory.
            trust: Whether modules outside the library that it names may be imported.

        Raises:
            InputError: If there is no experiment in the directory, or it cannot be read.
        """
        file = path / "experiment.toml"
        values = read_toml(file)
        try:
            check_text(file.read_text(encoding="utf-8"))
        except Damaged as problem:
            raise InputError(f'"{file}" is damaged: {problem}') from None
        if not values:
            raise InputError(
                f'"{file}" is empty, so it is damaged; write the experiment of the run into it, or '
                "choose another directory"
            )
        try:
            found = cls(**values)
        except InputError as problem:
            raise InputError(f'the experiment of the run in "{path}" cannot be read: {problem}') from None
        found._path, found._trusted = path, trust
        return found

    def opened(self, *, data: bool = True, track: bool = True, engine: bool = True) -> Experiment:
        """Return the experiment that was run.

        Args:
            data: Whether the data will be loaded, so that the modules that [data] names are imported.
            track: Whether it will be run, so that the modules of `run.track` are imported.
            engine: Whether clients will be trained by the engine of the run. If not, an engine outside the library is
                replaced by `serial`, and its module is not imported.

        Raises:
            InputError: If the experiment names code outside the library and the directory is not trusted.
        """
        values, paths = self.model_dump(), self.import_paths()
        if not engine and "engine.name" in paths:
            del paths["engine.name"]
            values["engine"]["name"] = "serial"
        if not self._trusted:
            spared = ("data.",) * (not data) + ("run.track",) * (not track)
            reject_untrusted(self._path, {key: name for key, name in paths.items() if not key.startswith(spared)})
        return Experiment(**values)

    def named_by(self, experiment: Experiment) -> Experiment:
        """Return the experiment that was run if `experiment` names the same code, otherwise the recorded one.

        Callbacks are not compared: those of a resumed run are the ones that the new experiment names.
        """
        theirs = {key: name for key, name in self.import_paths().items() if key != "run.track"}
        known = experiment.import_paths().items() >= theirs.items()
        return Experiment(**self.model_dump()) if known else self

    def but(self, **dotted: Any) -> Experiment:
        """Return a copy with other values that is trusted only if this one is."""
        changed = super().but(**dotted)
        assert isinstance(changed, Recorded)
        changed._path, changed._trusted = self._path, self._trusted
        return changed

    def _check_functions(self) -> None:
        """Check the method only: criterion and metrics are imported, and thereby checked, when the run is opened."""
        if self._looks_up(self.method.name):
            methods.build(self.method.name, **self.method.tables)

    def _looks_up(self, name: str) -> bool:
        return super()._looks_up(name) and ":" not in name

    def _own_name(self, path: str) -> str:
        """Return the name under which the hyper-parameters of a method are recorded; else its import path."""
        name, tables = path.partition(":")[2].lower(), self.method.tables
        own = [table for table in tables if table not in methods.METHODS.own]
        return name if name in tables else own[0] if len(own) == 1 else path

    def hash(self) -> str:
        """Return the hash of the experiment that was run, which imports its methods."""
        return self.opened(data=False, track=False, engine=False).hash()

    def directory(self) -> Path:
        """Return the default directory of the experiment that was run, which imports its methods."""
        return self.opened(data=False, track=False, engine=False).directory()


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as nested dicts.

    Raises:
        InputError: If there is no such file, or it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise InputError(f'there is no file "{path}"') from None
    except RecursionError:
        raise InputError(f'"{path}" is not an experiment: its values are nested too deeply to be read') from None
    except ValueError as error:  # also numbers with too many digits and text that is not UTF-8
        raise InputError(f'"{path}" is not valid TOML: {error}') from None
    except OSError as error:
        raise InputError(f'"{path}" cannot be read: {error.strerror}') from None


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse values of the command line into nested dicts.

    Args:
        overrides: Texts of the form `key=value`; the last value of a repeated key wins.

    Raises:
        InputError: If a text is not of this form.
    """
    values: dict[str, Any] = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise InputError(f'"{text}" is not of the form key=value, as in data.alpha=0.05')
        values[key.strip()] = _read_value(key.strip(), value.strip())
    return nested(values)  # keys without a value are None


def _read_value(key: str, text: str) -> Any:
    """Parse a value as TOML, or as a string if the key takes strings or it is not TOML; `.5` and `1.` are numbers.

    Nothing is an empty string for a key that takes strings, and None for any other.
    """
    if _takes_text(key) or (key.startswith("model.") and text == "inf"):  # a mode of networks, in TOML a number
        return text.strip("\"'")
    if not text:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise InputError(f"{key}: the value is nested too deeply to be read") from None
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
    """Convert dotted keys to nested dicts.

    Args:
        values: Values by keys, which may be dotted.

    Raises:
        InputError: If a key has more parts than any key of an experiment.

    >>> nested({"data.alpha": 0.1, "data": {"clients": 5}})
    {'data': {'alpha': 0.1, 'clients': 5}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = str(key).split(".")
        if len(above) > DEEPEST:
            raise InputError(f"{str(key)[:100]}…: there is no such key; an experiment has no tables as deep as that")
        node: Any = {name: nested(value) if isinstance(value, Mapping) else _text(value)}
        for step in reversed(above):
            node = {step: node}
        tree = merged(tree, node)
    return tree


def _text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested dicts to dotted keys, the inverse of `nested`.

    Args:
        values: The nested dicts.
        prefix: A prefix of all keys, including its dot.

    >>> dotted({"data": {"alpha": 0.1, "clients": 5}})
    {'data.alpha': 0.1, 'data.clients': 5}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def method_labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return the label of each experiment's method: the import path where two classes have the same name."""
    names, labels = ([e.method.name for e in experiments], [e.method_label for e in experiments])
    known: dict[str, set[str]] = {}
    for name, label in zip(names, labels, strict=True):
        known.setdefault(label, set()).add(name)
    return [label if len(known[label]) == 1 else name for name, label in zip(names, labels, strict=True)]


def same(a: Any, b: Any) -> bool:
    """Return whether two values of a key are equal and of the same type.

    The type matters: `train.participation = 1` means one client, and 1.0 means all of them.

    >>> same(1, 1), same(1, 1.0)
    (True, False)
    """
    return type(a) is type(b) and a == b


def merged(below: Mapping[str, Any], above: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Merge two nested dicts; values of the second replace those of the first.

    A value that must be a table but is not (such as `[[data]]` or `data = 5` in a file) is an error.

    Args:
        below: The first dict.
        above: The second dict.
        where: The dotted name of both in the experiment, followed by a dot.

    Raises:
        InputError: If a value that must be a table is not one.
    """
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        if isinstance(value, Mapping) and key in result and not both and _is_a_table(f"{where}{key}"):
            raise InputError(not_a_table(f"{where}{key}", result[key]))
        result[key] = merged(result[key], value, f"{where}{key}.") if both else value
    return result


def _is_a_table(key: str) -> bool:
    """Return whether a dotted key always names a table of the experiment or the hyper-parameters of a method."""
    field = Experiment.model_fields.get(key)
    own = field is not None and isinstance(field.default, Table)
    return own or (key.startswith("method.") and key.count(".") == 1)


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values without the keys that are None."""
    return {k: without_none(v) if isinstance(v, Mapping) else v for k, v in values.items() if v is not None}


def _sentences(error: ValidationError) -> str:
    """Describe each problem once, in one sentence.

    For a union, the problem of the first alternative is reported, unless a table was given and the problem is inside
    the table, or text with commas was given where a list is possible.
    """
    problems: dict[str, str] = {}
    for detail in sorted(error.errors(), key=lambda detail: not _is_a_list_in_words(detail)):
        keys, table = _place(detail)
        problems.setdefault(".".join(keys), _sentence(keys, table, detail))
    return "\n".join(
        text for where, text in problems.items() if not any(other.startswith(f"{where}.") for other in problems)
    )


def _is_a_list_in_words(detail: ErrorDetails) -> bool:
    return detail["type"] == "list_type" and isinstance(detail["input"], str) and "," in detail["input"]


def _place(detail: ErrorDetails) -> tuple[list[str], type[BaseModel]]:
    """Return the keys that lead to a problem, and the innermost table.

    The remaining steps of pydantic's path are indices of lists and names of the alternatives of a union.
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
        elsewhere = _elsewhere(where, detail["input"])
        advice = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else nearest(keys[-1], table.model_fields)
        return f"{where}: there is no such key; {advice}"
    return sentence(where, detail)


def _elsewhere(where: str, value: Any) -> list[str]:
    """Return the keys that were meant by an unknown one with this value, in quotation marks."""
    if isinstance(value, Mapping):
        inside = next(iter(value), "")
        return [f'"method.{where}.{inside}"'] if inside and where in methods.METHODS.names() else []
    if found := _keys_named(where.rpartition(".")[2]):
        return found
    if "." in where:
        return []
    every = list(dotted(Experiment().model_dump()))
    known = {name: key for key in every for name in (key.rpartition(".")[2], key.replace(".", ""))}
    return [f'"{known[name]}"' for name in difflib.get_close_matches(where, known, 1, 0.8)]


def _keys_named(name: str) -> list[str]:
    """Return the dotted keys of an experiment whose last part is a name, in quotation marks."""
    fields = {key: type(field.default) for key, field in Experiment.model_fields.items()}
    found = [name] if name in fields and not issubclass(fields[name], Table) else []
    found += [f"{key}.{name}" for key, kind in fields.items() if issubclass(kind, Table) and name in kind.model_fields]
    return [f'"{key}"' for key in found]
