"""The runs that a page is about, each with its state, grouped by data, method and settings as in a comparison."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fullrank.comparison.directories import check_comparable, runs_in
from fullrank.comparison.intervals import std
from fullrank.comparison.table import Comparison, Row
from fullrank.comparison.variants import data_of, row_labels
from fullrank.data.heterogeneity import CountArray
from fullrank.errors import InputError
from fullrank.files import read_json as read_object
from fullrank.runs.client_tables import STAGES
from fullrank.runs.clients import ClientRow
from fullrank.runs.directory import RunDirectory, read_json
from fullrank.runs.drifts import far_client
from fullrank.runs.pruning import MARK
from fullrank.runs.recorded import federation_facts
from fullrank.runs.result import Run, load_run

STOPPED = "stopped: "
"""The beginning of the line of a log that says why a run stopped."""
RESUMED = "writing to "
"""The beginning of the line of a log that says that a run has started or resumed."""
COMPLETE, RUNNING, STOPPED_EARLY, UNFINISHED = "complete", "running", "stopped", "unfinished"
"""The states of a run."""
AVERAGED = 5
"""The number of evaluations in the mean of the last ones."""
VALIDATION = "validation_accuracy"
HASH = 12
"""The number of digits of a hash that are shown."""
Course = Mapping[int, float]


@dataclass(frozen=True)
class Member:
    """A run of a page, with what its directory records."""

    run: Run
    name: str
    """Its method and settings, the seed, and its directory where these do not suffice."""
    state: str = COMPLETE
    reason: str = ""
    """Why it stopped, if the log says so."""
    partition: Mapping[str, Any] = field(default_factory=dict)
    """The content of partition.json."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The content of environment.json."""
    chosen_by: str = ""
    """The key of the validation accuracy, if the run is a trial of a sweep: then nothing of the test set is shown."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.run.experiment.seed

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the rounds."""
        return self.run.metrics

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of the run; empty without a complete round."""
        return self.run.summary() if self.rows else {"absent": {}, "rounds": 0}

    @cached_property
    def kept(self) -> list[ClientRow]:
        """The table of the run's models, empty if there is none yet."""
        if self.state != COMPLETE or self.chosen_by:
            return []
        return self.run.kept() or []

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        return [str(name) for name in self.partition.get("data", {}).get("classes", [])]

    @property
    def sites(self) -> list[str]:
        """The names of the clients, where they are sites."""
        return [str(name) for name in self.partition.get("names", [])]

    @cached_property
    def far(self) -> dict[int, dict[str, Any]]:
        """The rounds in which one client's weights moved far more than those of any other, with that client."""
        found = {row["round"]: row.get("far_client") or far_client(row.get("clients", [])) for row in self.rows}
        return {round: far for round, far in found.items() if far}

    def client_name(self, client: int) -> str:
        """Return the name of a client, which is its site's where it has one."""
        return self.sites[client] if client < len(self.sites) else f"client {client}"

    def course(self, key: str) -> dict[int, float]:
        """Return a measure by round, for the rounds in which it is defined; dots lead to measures inside others."""
        found: dict[int, float] = {}
        for row in self.rows:
            value: Any = row
            for step in key.split("."):
                value = value.get(step) if isinstance(value, Mapping) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[row["round"]] = float(value)
        return found

    @property
    def last_stage(self) -> str | None:
        """The last stage of the clients' own models that was evaluated."""
        return next((each for each in reversed(list(STAGES)) if each in self.summary.get("personal", {})), None)

    @property
    def result(self) -> float | None:
        """The mean of the last five accuracies over rounds; without any, that of the clients' own models."""
        values = list(self.course(self.accuracy_key).values())[-AVERAGED:]
        if values:
            return sum(values) / len(values)
        return self.personal(self.last_stage) if self.last_stage is not None and not self.chosen_by else None

    def personal(self, stage: str) -> float | None:
        """Return the mean accuracy of the clients' own models of a stage on the clients' own samples."""
        found = self.summary.get("personal", {}).get(stage, {}).get("mean")
        return float(found) if found is not None else None

    @property
    def accuracy_key(self) -> str:
        """The key of the accuracy in the rows: that of the clients' own models where there is no global model."""
        if self.chosen_by:
            return self.chosen_by
        return next((key for key in ("accuracy", "personal_accuracy") if self.course(key)), "accuracy")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed: one line of a chart, one row of a table."""

    label: str
    colour: int
    members: tuple[Member, ...]

    @property
    def shown(self) -> tuple[Member, ...]:
        """The runs that means are over: the complete ones, or all if none is complete."""
        complete = tuple(member for member in self.members if member.state == COMPLETE)
        return complete or tuple(member for member in self.members if member.rows)

    @property
    def name(self) -> str:
        """The name in legends, with the number of seeds if there are several."""
        number = len(self.shown)
        return f"{self.label} ({number} seeds)" if number > 1 else self.label

    @property
    def first(self) -> Member:
        """The run that stands for the group where only one can be shown: the first with a result."""
        return (self.shown or self.members)[0]

    def over_rounds(self, course: Callable[[Member], Course]) -> dict[str, list[Any]]:
        """Return the mean over seeds by round, with its standard deviation as the ends of a band.

        A round has a mean if all runs that are shown have a value there.
        """
        return spread([found for member in self.shown if (found := course(member))])

    def values(self, of: Callable[[Member], float | None]) -> list[float]:
        """Return a number of each run that is shown and has it."""
        return [value for member in self.shown if (value := of(member)) is not None]


def spread(courses: Sequence[Course]) -> dict[str, list[Any]]:
    """Return places, means, and means ± one standard deviation of courses, at the places that all have.

    >>> spread([{1: 2.0, 2: 3.0}, {1: 4.0}])["y"]
    [3.0]
    """
    if not courses:
        return {"x": [], "y": []}
    shared = [place for place in courses[0] if all(place in other for other in courses)]
    columns = [[course[place] for course in courses] for place in shared]
    means = [sum(column) / len(column) for column in columns]
    if len(courses) == 1:
        return {"x": shared, "y": means}
    widths = [std(column) or 0.0 for column in columns]
    ends = {
        "low": [mean - width for mean, width in zip(means, widths, strict=True)],
        "high": [mean + width for mean, width in zip(means, widths, strict=True)],
    }
    return {"x": shared, "y": means, **ends}


@dataclass(frozen=True)
class Cohort:
    """Groups of runs on the same data, which can be compared with each other."""

    number: int
    title: str
    """The difference between its data and those of the other cohorts; empty if there is only one."""
    groups: tuple[Group, ...]

    @property
    def members(self) -> list[Member]:
        """All runs."""
        return [member for group in self.groups for member in group.members]

    @property
    def suffix(self) -> str:
        """The end of the ids of its charts, which differ between cohorts."""
        return f"-{self.number + 1}" if self.title else ""

    def entitled(self, title: str) -> str:
        """Return the title of a chart, with the data where there are several."""
        return f"{title}: {self.title}" if self.title else title

    @cached_property
    def comparison(self) -> Comparison | None:
        """The comparison of the complete runs, or None if there are not two groups with any."""
        complete = {
            (group.label, member.seed): member.run
            for group in self.groups
            for member in group.members
            if member.state == COMPLETE and member.run.path is not None
        }
        labels = {label for label, _ in complete}
        if len(labels) < 2:
            return None
        order = tuple(group.label for group in self.groups if group.label in labels)
        with contextlib.suppress(InputError):
            return Comparison(complete, self.measure, "last5", names=order)
        return None

    @cached_property
    def compared(self) -> list[Row]:
        """The rows of the comparison; empty if there is none."""
        return self.comparison.rows() if self.comparison is not None else []

    @cached_property
    def best(self) -> set[str]:
        """The groups that are the best, and those that their seeds do not tell from the best."""
        return self.comparison.best() if self.comparison is not None else set()

    @cached_property
    def measure(self) -> str:
        """The measure by which the groups are compared: one that all of them have, if possible the accuracy."""
        if self.members[0].chosen_by:
            return self.members[0].chosen_by
        complete = [member.summary for member in self.members if member.state == COMPLETE]
        return next(
            (key for key in ("accuracy", "personal") if complete and all(summary.get(key) for summary in complete)),
            "accuracy",
        )

    @property
    def words(self) -> str:
        """The words for `measure`."""
        if self.measure == "personal":
            return "Clients' accuracy"
        return "Validation accuracy" if self.measure == VALIDATION else "Test accuracy"

    def value_of(self, member: Member) -> float | None:
        """Return the value of `measure` of a run, also before its end."""
        if self.measure == "personal":
            return member.personal(member.last_stage) if member.last_stage is not None else None
        values = list(member.course(self.measure).values())[-AVERAGED:]
        return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Study:
    """A folder that a comparison, a sweep or a reproduction has written, with its record."""

    kind: str
    path: Path
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """Everything that a page is about."""

    cohorts: tuple[Cohort, ...]
    study: Study | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    """Runs that failed before they had a directory, by name, with their reasons."""
    paths: tuple[str, ...] = ()
    """The runs and folders as the user named them, for the commands on the page."""

    @property
    def groups(self) -> list[Group]:
        """All groups."""
        return [group for cohort in self.cohorts for group in cohort.groups]

    @property
    def members(self) -> list[Member]:
        """All runs."""
        return [member for group in self.groups for member in group.members]

    @property
    def one(self) -> Member | None:
        """The only run, if there is one only."""
        return self.members[0] if len(self.members) == 1 else None

    def command(self, kind: str, options: str = "", most: int = 0, *, name: str = "") -> str:
        """Return the command that draws a figure of these runs for a paper; empty for runs without a directory.

        Args:
            kind: The kind of figure.
            options: Further options.
            most: The largest number of runs that the figure takes; 0 is any.
            name: The name of the file, by default the kind.
        """
        if any(member.run.path is None for member in self.members):
            return ""
        named = list(self.paths)
        if most:
            named = [str(group.first.run.path) for group in self.groups if group.first.run.path is not None][:most]
        quoted = " ".join(path if path.replace("/", "").isidentifier() else _quoted(path) for path in named)
        return f"fullrank figure {kind} {quoted}{f' {options}' if options else ''} --out {name or kind}.pdf"


def _quoted(path: str) -> str:
    """Return a path as a shell takes it."""
    plain = all(letter.isalnum() or letter in "_-./+=,:@" for letter in path)
    return path if plain and path else "'" + path.replace("'", "'\\''") + "'"


# Reading


def subject_of(inputs: Iterable[str | Path | Run]) -> Subject:
    """Read the runs of a page.

    Args:
        inputs: Runs, run directories, and folders of runs such as those of comparisons, sweeps and reproductions.

    Raises:
        InputError: If there is no run.
    """
    given = list(inputs)
    if not given:
        raise InputError("a report needs at least one run")
    runs: dict[Any, Run] = {}
    for each in given:
        for run in [each] if isinstance(each, Run) else _runs_of(Path(each)):
            runs.setdefault(run.path.resolve() if run.path is not None else id(run), run)
    paths = tuple(str(each.path or "a run in memory") if isinstance(each, Run) else str(each) for each in given)
    first = given[0].path if isinstance(given[0], Run) else Path(given[0])
    study = _study(first) if len(given) == 1 and first is not None else None
    by = VALIDATION if study is not None and study.kind == "sweep" else ""
    members = [replace(_member(run), chosen_by=by) for run in runs.values()]
    return Subject(cohorts_of(members), study, _failures(study, members), paths)


def _runs_of(path: Path) -> list[Run]:
    """Return the run in a directory, or the runs in a folder, those included that a sweep has pruned."""
    if not path.exists():
        raise InputError(f'there is no run "{path}"')
    try:
        found = runs_in(path)
    except InputError:
        if RunDirectory(path).started or not path.is_dir():
            raise
        found = []
    pruned = [] if RunDirectory(path).started else [load_run(mark.parent) for mark in sorted(path.glob(f"**/{MARK}"))]
    if not found and not pruned:
        raise InputError(f'"{path}" is not a run directory and holds none')
    return [*found, *pruned]


def _study(path: Path) -> Study | None:
    """Return the record of a comparison, a sweep or a reproduction, if a folder has one."""
    for kind, file in (
        ("comparison", "comparison.json"),
        ("sweep", "sweep.json"),
        ("reproduction", "reproduction.json"),
    ):
        if (path / file).is_file():
            return Study(kind, path, read_object(path / file))
    return None


def _failures(study: Study | None, members: Sequence[Member]) -> dict[str, str]:
    """Return the runs that a comparison records as failed and that have no directory."""
    listed = study.record.get("failed", []) if study is not None and study.kind == "comparison" else []
    known = {(member.name.partition(" · ")[0], member.seed) for member in members}
    return {
        f"{each['method']}, seed {each['seed']}": str(each["reason"])
        for each in listed
        if (each["method"], each["seed"]) not in known
    }


def _member(run: Run) -> Member:
    path = run.path
    if path is None:
        facts = federation_facts(run._assembly.federation) if run._assembly is not None else {}
        return Member(run, run.experiment.method_label, partition=facts)
    state, reason = _state(run, path)
    facts = {name: read_json(path / f"{name}.json") for name in ("partition", "environment")}
    return Member(run, run.experiment.method_label, state, reason, facts["partition"], facts["environment"])


def _state(run: Run, path: Path) -> tuple[str, str]:
    """Return the state of a run directory, and why the run stopped."""
    rounds = run.experiment.train.rounds
    if [row["round"] for row in run.metrics] == [*range(1, rounds + 1)] and RunDirectory(path).result_round() == rounds:
        return COMPLETE, ""
    if _is_locked(path / ".lock"):
        return RUNNING, ""
    reason = ""
    with contextlib.suppress(OSError):
        for line in (path / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(STOPPED):
                reason = line.removeprefix(STOPPED)
            elif line.startswith(RESUMED):
                reason = ""
    return (STOPPED_EARLY if reason else UNFINISHED), reason


def _is_locked(file: Path) -> bool:
    """Return whether a process holds the lock of a run directory; False on systems that do not list locks.

    The lock itself is not touched: a run that starts at this moment would be rejected.
    """
    with contextlib.suppress(OSError, ValueError):
        inode = os.stat(file).st_ino
        fields = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        held = (word for words in fields for word in words if word.count(":") == 2)  # major:minor:inode
        return any(int(word.rpartition(":")[2]) == inode for word in held)
    return False


# Grouping


def cohorts_of(members: Sequence[Member]) -> tuple[Cohort, ...]:
    """Return runs by data, and those on the same data by method and settings.

    Runs with the same keys of [data] whose data or splits differ are not of one cohort: they are never in one line.
    """
    labels = row_labels([member.run.experiment for member in members])
    together: list[list[int]] = []
    for place, member in enumerate(members):
        for known in together:
            if _same_data([members[other] for other in known], member):
                known.append(place)
                break
        else:
            together.append([place])
    titles = _titles([[members[place] for place in places] for places in together])
    found = []
    for number, (places, title) in enumerate(zip(together, titles, strict=True)):
        own = [members[place] for place in places]
        inner = row_labels([member.run.experiment for member in own]) if len(together) > 1 else labels
        found.append(Cohort(number, title, tuple(_groups(own, inner))))
    return tuple(found)


def _groups(members: Sequence[Member], labels: Sequence[str]) -> Iterator[Group]:
    by_label: dict[str, list[Member]] = {}
    for member, label in zip(members, labels, strict=True):
        known = by_label.get(label, [])
        if any(other.seed == member.seed for other in known):  # the same experiment twice is no second seed
            label = f"{label} · {_place(member)}"
        by_label.setdefault(label, []).append(replace(member, name=label))
    for colour, (label, own) in enumerate(by_label.items()):
        yield Group(label, colour, tuple(sorted(own, key=lambda member: member.seed)))


def _place(member: Member) -> str:
    return str(member.run.path) if member.run.path is not None else "in memory"


def _same_data(known: Sequence[Member], member: Member) -> bool:
    if data_of(known[0].run.experiment) != data_of(member.run.experiment):
        return False
    if any(each.run.path is None for each in (*known, member)):
        return True
    like = [known[0], *(each for each in known[1:] if each.seed == member.seed)]
    try:
        check_comparable([*(each.run for each in like), member.run])
    except InputError:
        return False
    return True


def _titles(cohorts: Sequence[Sequence[Member]]) -> list[str]:
    """Return what distinguishes cohorts: the keys of [data] that differ, and fingerprints where no key does."""
    if len(cohorts) < 2:
        return [""] * len(cohorts)
    tables = [dict(data_of(own[0].run.experiment)) for own in cohorts]
    keys = [key for key in tables[0] if any(table.get(key) != tables[0].get(key) for table in tables)]
    names = [
        ", ".join(f"{key.removeprefix('data.')} = {table.get(key, '')}".replace("'", "") for key in keys)
        for table in tables
    ]
    titles = []
    for name, own in zip(names, cohorts, strict=True):
        if names.count(name) > 1:
            facts = own[0].partition
            prints = f"data {facts['data']['fingerprint'][:HASH]}, partition {facts['hash'][:HASH]}"
            name = f"{name}, {prints}" if name else prints
        titles.append(name)
    return titles


def accuracy_label(members: Iterable[Member]) -> str:
    """Return the words for the accuracy that these runs have in their rounds."""
    keys = {member.accuracy_key for member in members if member.rows}
    words = {"personal_accuracy": "Clients' accuracy", VALIDATION: "Validation accuracy"}
    return words.get(next(iter(keys)), "Test accuracy") if len(keys) == 1 else "Test accuracy"


def of_first_seed(groups: Sequence[Group]) -> str:
    """Return the words that say which run of each group is shown, where groups have several.

    They are empty if there is one run each.
    """
    if all(len(group.members) == 1 for group in groups):
        return ""
    seeds = {group.first.seed for group in groups}
    return f", seed {seeds.pop()}" if len(seeds) == 1 else ", of the first seed of each method"


def counts_of(member: Member) -> CountArray | None:
    """Return the training samples by client and class, if the run recorded them."""
    import numpy as np

    table = member.partition.get("class_counts")
    return np.array(table, dtype=np.int64) if table else None
