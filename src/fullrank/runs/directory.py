"""The directory of a run. Everything is written atomically, so that a kill at any moment loses at most a round."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from typing_extensions import NotRequired, TypedDict

from fullrank.errors import InputError, RunFailed, writing
from fullrank.federated.client_states import ClientStates
from fullrank.federated.server import Server
from fullrank.files import (
    Damaged,
    append_line,
    load_tensors,
    read_lines,
    reading,
    save_tensors,
    verify_tensors,
    write_json,
    write_lines,
)
from fullrank.files import read_json as read_object
from fullrank.runs.status import MESSAGES, RUN_ELSEWHERE, WRITTEN_AGAIN, Status
from fullrank.trees import Tree, flatten, misfit, unflatten

FORMAT = 3
"""Format of checkpoints; those of format 2 have no checksums and are otherwise the same."""
READABLE = (2, 3)
CLIENTS = "clients.jsonl"
"""The table of the clients' models, which belongs to the result."""
CHECKPOINT_FILE = re.compile(r"\d+\.json|(server|clients)-\d+\.safetensors|\..*\.part")
BEFORE_THE_START = (
    "checkpoints",
    "log.txt",
    "start.safetensors",
    "partition.safetensors",
    "partition.json",
    "environment.json",
    "experiment.toml",
)
"""Files that a run may write before it writes experiment.toml, with which the directory becomes a run directory."""
LOCK_HEADER = "Created by fullrank:"
ATTEMPTS = 3
PAUSE = 0.02
"""How often, and at which distance in seconds, a lock is tried again."""


class _Data(TypedDict):
    fingerprint: str
    classes: NotRequired[list[Any]]
    input_shape: NotRequired[list[int]]


class _Partition(TypedDict):
    data: _Data
    hash: str


class _Resumed(TypedDict, total=False):
    metrics: dict[str, dict[str, bool]]


class _Environment(TypedDict, total=False):
    files: dict[str, str]
    sources: dict[str, str]
    metrics: dict[str, dict[str, bool]]
    resumed: list[_Resumed]


class _Summary(TypedDict):
    rounds: int
    ending: NotRequired[dict[str, Any]]


class _Row(TypedDict):
    round: int
    clients: NotRequired[list[dict[str, Any]]]
    accuracy: NotRequired[float | None]
    loss: NotRequired[float | None]
    personal: NotRequired[dict[str, Any]]
    skipped: NotRequired[dict[str, str]]


class _Note(TypedDict):
    round: int
    contacts: dict[str, list[int]]
    file: str
    states: list[int]


class _Manifest(TypedDict):
    format: int
    round: int
    server: str
    sound: NotRequired[bool]


SHAPES: dict[str, Any] = {
    "partition.json": _Partition,
    "environment.json": _Environment,
    "summary.json": _Summary,
}
"""Types of the JSON files, as far as the library depends on them; files of other names hold any object."""
LOST_FILES = {
    "partition.json": "the same experiment in another directory writes one before round 1: copy that",
    "environment.json": "the same experiment in another directory writes one before round 1: copy that",
    "summary.json": "delete it and give the command that started the run again, which writes it from the last "
    "checkpoint",
}
"""Advice about missing or damaged files of a run directory, by name."""


def read_json(path: Path) -> Any:
    """Read a JSON file of a run directory.

    Raises:
        InputError: If the file is missing or damaged.
    """
    try:
        with reading(path):
            return read_object(path, SHAPES.get(path.name, dict[str, Any]))
    except FileNotFoundError:
        raise InputError(f'the file "{path}" is missing{_remedy(path)}') from None
    except Damaged as problem:
        raise InputError(f'the file "{path}" is damaged ({problem}){_remedy(path)}') from None


def _remedy(path: Path) -> str:
    """Return advice about a missing or damaged file, as a clause of a sentence."""
    if path.name == "summary.json" and not RunDirectory(path.parent).last_round():
        # Without a checkpoint, a run that has no summary either would start from scratch, over its rows.
        return "; run the same experiment in another directory"
    return f"; {LOST_FILES[path.name]}" if path.name in LOST_FILES else ""


class _Names(NamedTuple):
    """The files of one checkpoint."""

    manifest: str
    server: str
    clients: str

    @classmethod
    def of(cls, round: int) -> _Names:
        return cls(f"{round:06d}.json", f"server-{round:06d}.safetensors", f"clients-{round:06d}.safetensors")


class RunDirectory:
    """The directory of one run, which the process that runs it locks.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._notes = self.checkpoints / "clients.jsonl"
        self._lock: IO[str] | None = None
        self._made: list[Path] = []
        """Folders that this process has created, the outermost first."""
        self._saved: list[tuple[int, bool]] = []
        """The rounds whose checkpoints are kept, and whether the loss was finite there."""
        self._left: deque[tuple[int, str]] = deque()
        """Files of clients' states, with the round of the first checkpoint that does not need them."""
        self._sound = True
        """Whether the last loss in the rows is finite."""
        self._size = 0
        """Number of bytes of metrics.jsonl, as this process wrote it."""

    # Opening

    def open(self) -> None:
        """Create and lock the directory.

        Raises:
            InputError: If another process has locked it, or it has files that are not those of a run.
        """
        self._reject_foreign()
        with writing(self.path, "the run directory "):
            self._make(self.path)
            self._lock = (self.path / ".lock").open("a+", encoding="utf-8")
        try:
            _lock_patiently(self._lock)
        except OSError:
            self._lock.close()
            self._lock = None
            raise InputError(
                f'another process is running in "{self.path}"; wait for it, or choose another --out'
            ) from None
        with writing(self.path, "the run directory "):
            if not self.started:
                self._announce()
            self._make(self.checkpoints)
        for stale in (*self.path.glob(".*.part"), *self.path.glob("*/.*.part")):
            stale.unlink()  # a kill left it half written

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def abandon(self) -> None:
        """Delete the files of a run that failed before it started, and no others."""
        if self.started or self._lock is None:
            return
        self.close()
        for name in (*BEFORE_THE_START, ".lock"):  # the lock last: it lists the files for a later process
            if (self.path / name).is_file():
                (self.path / name).unlink()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # another program has created a file in it meanwhile
                folder.rmdir()

    def check_lock(self) -> None:
        """Check that the lock file is still the one that this process holds.

        Raises:
            RunFailed: If it is not, because another process may then write into the directory.
        """
        if self._lock is None or sys.platform == "win32":  # on Windows, a file in use cannot be deleted
            return
        held = os.fstat(self._lock.fileno())
        try:
            found = os.stat(self.path / ".lock")
            same = (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)
        except OSError:
            same = False
        if not same:
            raise RunFailed(
                f'"{self.path / ".lock"}" was deleted or replaced while the run was active, so another process may be '
                "writing into the same directory; this run stops before it writes anything more"
            )

    @property
    def started(self) -> bool:
        """Whether a run has started in this directory."""
        return (self.path / "experiment.toml").is_file()

    @property
    def in_use(self) -> bool:
        """Whether a process on this machine is running in this directory."""
        try:
            file = (self.path / ".lock").open("rb")
        except OSError:
            return False
        with file:
            try:
                _lock(file, shared=True)
            except OSError:
                return True
        return False

    def _make(self, folder: Path) -> None:
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._made += reversed(missing)

    def _announce(self) -> None:
        """Write the names of the files that a run may create into the lock file, for a later process after a kill."""
        self._reject_foreign()  # once more, now that no other process can create files
        assert self._lock is not None
        self._lock.truncate(0)
        self._lock.write("\n".join((LOCK_HEADER, *BEFORE_THE_START, "")))
        self._lock.flush()
        os.fsync(self._lock.fileno())

    def _reject_foreign(self) -> None:
        """Reject a directory that is not a run directory and has files that no killed run can have left."""
        if self.started or not self.path.is_dir():
            return
        own = {".lock"} if self._lock is not None else set()
        lock = self.path / ".lock"
        if lock.is_file():
            lines = lock.read_text(encoding="utf-8", errors="replace").splitlines()
            if not lines or lines[0] == LOCK_HEADER:
                own |= {".lock", *lines[1:]}
        names = {path.name for path in self.path.iterdir() if not CHECKPOINT_FILE.fullmatch(path.name)}
        if names - own or (self.checkpoints.is_dir() and any(self.checkpoints.iterdir())):
            raise InputError(f'"{self.path}" is not empty and holds no run; choose another directory')

    # The result

    def result_round(self) -> int:
        """Return the number of rounds of the current result (summary and model); 0 if there is none.

        A result of fewer rounds than the newest checkpoint has is not current: a kill can leave one behind.
        """
        summary = self.path / "summary.json"
        rounds: int = read_json(summary)["rounds"] if summary.is_file() else 0
        return rounds if rounds >= self.last_round() else 0

    def status(self, rounds: int, clients: Iterable[int] = (), *, verify: bool = False) -> Status:
        """Return the status of a run in this directory.

        Args:
            rounds: The number of rounds of the complete run.
            clients: The ids of the clients whose own models belong to the result. Clients that the run skipped after a
                failure have none.
            verify: Whether the models are read and compared with their checksums. Otherwise they only have to exist.
        """
        if not self.started:
            return Status.EMPTY
        saved = bool(self.last_round())
        all_rows = self._rounds() == [*range(1, rounds + 1)]
        if all_rows and self.result_round() == rounds:
            if all(_is_whole(file) if verify else file.is_file() for file in self._models(clients)):
                return Status.COMPLETE if saved else Status.STRIPPED
            return Status.WITHOUT_MODEL if saved else Status.NUMBERS_ONLY
        if saved:
            return Status.BEFORE_END if all_rows else Status.UNFINISHED
        if (self.path / "summary.json").is_file():
            return Status.CUT
        return Status.ROWS_ONLY if all_rows else Status.UNSAVED

    def check(self, use: str, rounds: int) -> None:
        """Check that a run can be used for a purpose.

        Args:
            use: The purpose, a key of `MESSAGES`.
            rounds: The number of rounds of the complete run.

        Raises:
            InputError: If it cannot.
        """
        message = MESSAGES[use].get(self.status(rounds))
        if message is not None:
            raise InputError(message.format(path=self.path, rounds=rounds, done=max(self._rounds(), default=0)))

    def _rounds(self) -> list[int]:
        """Return the rounds that have a row; none if the rows are damaged, which is reported where they are read."""
        try:
            return [row["round"] for row in self.rows()]
        except InputError:
            return []

    def how_to_repair(self) -> str:
        """Return advice about a damaged model, as a clause of a sentence."""
        return WRITTEN_AGAIN if self.last_round() else RUN_ELSEWHERE

    def _models(self, clients: Iterable[int]) -> Iterator[Path]:
        """Yield the files of the models that belong to the result."""
        yield self.path / "model.safetensors"
        skipped = read_json(self.path / "summary.json").get("ending", {}).get("skipped", {}) if clients else {}
        yield from (self.personal_file(client) for client in clients if str(client) not in skipped)

    def personal_file(self, client: int) -> Path:
        """Return the file of a client's own model, which exists if `run.keep_personal` is true."""
        return self.path / "personal" / f"{client:06d}.safetensors"

    def _discard_result(self) -> None:
        """Delete the result of fewer rounds; without the summary the model does not count."""
        for name in ("summary.json", "model.safetensors", CLIENTS):
            (self.path / name).unlink(missing_ok=True)

    # Rows

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Append the row of a round.

        Args:
            row: The row.

        Raises:
            RunFailed: If another program has changed the file.
        """
        self.check_lock()
        file = self.path / "metrics.jsonl"
        if (file.stat().st_size if file.is_file() else 0) != self._size:
            raise RunFailed(f'"{file}" was changed by another program while the run was active; this run stops')
        append_line(file, row)
        self._size = file.stat().st_size
        self._sound = row.get("loss", 0.0 if self._sound else None) is not None

    def rows(self) -> list[dict[str, Any]]:
        """Return all complete rows."""
        return read_rows(self.path)

    def rows_until(self, rounds: int) -> list[dict[str, Any]]:
        """Return the rows of the first rounds.

        Args:
            rounds: The number of rounds.

        Raises:
            InputError: If one of these rows is missing or damaged.
        """
        kept = _until(rounds, read_lines(self.path / "metrics.jsonl", _Row))
        if [row["round"] for row in kept] != list(range(1, rounds + 1)):
            raise InputError(
                f'"{self.path / "metrics.jsonl"}" does not hold all of the {rounds} rounds that the newest checkpoint '
                "has; start a new run"
            )
        return kept

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """Replace all rows. Those after the newest checkpoint are dropped, because their rounds are run again."""
        file = self.path / "metrics.jsonl"
        write_lines(file, rows)
        self._size = file.stat().st_size
        self._sound = next((row["loss"] is not None for row in reversed(rows) if "loss" in row), True)

    # Checkpoints

    def save(self, server: Server, keep: int) -> None:
        """Write a checkpoint: first the tensors, and last the small file that names them.

        It contains the clients' states that changed since the last checkpoint. The newest checkpoint with a finite
        loss is kept in addition to the newest `keep`.

        Args:
            server: The server.
            keep: The number of checkpoints that are kept.
        """
        self.check_lock()
        names, store = _Names.of(server.round), server.store
        save_tensors(self.checkpoints / names.server, flatten(server.state()))
        if unsaved := store.unsaved():
            save_tensors(self.checkpoints / names.clients, flatten(unsaved))
        append_line(self._notes, {"round": server.round, **store.note(names.clients)})
        self._left += [(server.round, file) for file in store.saved_as(names.clients, self.checkpoints)]
        manifest = {"format": FORMAT, "round": server.round, "server": names.server, "sound": self._sound}
        write_json(self.checkpoints / names.manifest, manifest)
        self._saved.append((server.round, self._sound))
        self._discard_result()
        self.sweep(keep)

    def sweep(self, keep: int) -> None:
        """Delete checkpoints that are no longer kept, and the files that none of the rest needs."""
        kept = _kept(self._saved, keep)
        for round, _ in [pair for pair in self._saved if pair not in kept]:
            names = _Names.of(round)
            (self.checkpoints / names.manifest).unlink(missing_ok=True)
            (self.checkpoints / names.server).unlink(missing_ok=True)
        self._saved = kept
        while self._left and self._left[0][0] <= self._saved[0][0]:
            (self.checkpoints / self._left.popleft()[1]).unlink(missing_ok=True)

    def tidy(self, keep: int, last: int) -> None:
        """Delete what belongs to later rounds than the last saved one, and what a killed process has left.

        It is called before the first round only, because it reads the names of all files and all notes.

        Args:
            keep: The number of checkpoints that are kept.
            last: The last round that is saved.
        """
        saved = [(int(path.stem), _is_sound(path)) for path in self._manifests() if int(path.stem) <= last]
        notes = self._notes_until(last)
        if self._notes.is_file():
            write_lines(self._notes, notes)
        known = ClientStates()
        left = [(note["round"], file) for note in notes for file in known.follow(note, self.checkpoints)]
        self._saved = _kept(saved, keep)
        self._left = deque((round, file) for round, file in left if round > self._saved[0][0])
        needed = {name for round, _ in self._saved for name in _Names.of(round)[:2]}
        needed |= {*known.files.values(), *(file for _, file in self._left)}
        for path in self.checkpoints.iterdir():
            if path.name not in needed and CHECKPOINT_FILE.fullmatch(path.name):
                path.unlink()

    def _notes_until(self, round: int) -> list[dict[str, Any]]:
        """Return the notes on clients of the checkpoints up to a round."""
        return _until(round, read_lines(self._notes, _Note))

    def _manifests(self) -> list[Path]:
        found = [path for path in self.checkpoints.glob("*.json") if path.stem.isdigit()]
        return sorted(found, key=lambda path: int(path.stem))

    def last_round(self) -> int:
        """Return the number of rounds of the newest checkpoint; 0 if there is none."""
        manifests = self._manifests()
        return int(manifests[-1].stem) if manifests else 0

    def restore(self, server: Server, device: torch.device, older: bool = False) -> str:
        """Restore a server from the newest checkpoint.

        Args:
            server: The server of the same experiment before its first round.
            device: The device of its tensors.
            older: Whether an older checkpoint may be used if the newest is damaged. The rounds after it are run again,
                with the same result.

        Returns:
            A sentence about checkpoints that could not be used; empty if there were none.

        Raises:
            InputError: If the checkpoint is damaged, and so are all older ones if those may be used.
        """
        problems: list[str] = []
        for manifest in reversed(self._manifests()):
            try:
                state, notes = self._checkpoint(manifest)
            except Damaged as problem:
                problems.append(str(problem))
                if older:
                    continue
                break
            self._fits(state, server)
            for note in notes:
                server.store.follow(note, self.checkpoints)
            server.restore(state, int(manifest.stem), device)
            return f"{problems[0]}; the run continues from round {int(manifest.stem)}" if problems else ""
        if problems:
            way_out = "start a new run" if older else "the command that started the run reports whether it can continue"
            raise InputError(f"{problems[0]}; {way_out}")
        return ""

    def _written_by(self) -> str:
        """Return a clause that says which version wrote the directory, if that can be read."""
        with contextlib.suppress(InputError, OSError, KeyError):
            around = read_json(self.path / "environment.json")
            newest = (around.get("resumed") or [around])[-1]
            commit = f" (commit {newest['git_commit']})" if newest["git_commit"] else ""
            return f"; they were written by fullrank {newest['fullrank']}{commit}"
        return ""

    def _checkpoint(self, path: Path) -> tuple[Tree, list[dict[str, Any]]]:
        """Return the server's state and the notes on clients of a checkpoint, after a check of all its files."""
        manifest = _intact(path, lambda path: read_object(path, _Manifest))
        if manifest["format"] not in READABLE:
            raise InputError(
                f'the checkpoints in "{self.path}" have format {manifest["format"]}, this version reads '
                f"{' and '.join(map(str, READABLE))}{self._written_by()}"
            )
        round = int(path.stem)
        if (manifest["round"], manifest["server"]) != (round, _Names.of(round).server):
            raise Damaged(f'the checkpoint file "{path}" is damaged (it belongs to round {manifest["round"]})')
        # Clones, because a map of the file is not aligned as memory is, and some kernels then round differently.
        saved = _intact(self.checkpoints / manifest["server"], load_tensors)
        state = unflatten({name: tensor.clone() for name, tensor in saved.items()})
        notes = self._notes_until(round)
        if not notes or notes[-1]["round"] != round:
            raise Damaged(f'the checkpoint file "{self._notes}" is damaged (it does not reach to round {round})')
        known = ClientStates()
        for note in notes:
            known.follow(note, self.checkpoints)
        for file in sorted(set(known.files.values())):
            _intact(self.checkpoints / file, verify_tensors)
        return state, notes

    def _fits(self, state: Tree, server: Server) -> None:
        problem = misfit(state.get("model", {}), server.model)
        if problem is None and "frozen_version" not in state:
            problem = "frozen_version is missing"
        if problem:
            raise InputError(f'the checkpoint in "{self.path}" does not fit the model: {problem}')


def _until(round: int, lines: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines up to that of a round; those after it are not read, so they may be damaged."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["round"] < round:
        line = next(lines, None)
        if line is None or line["round"] > round:
            break
        found.append(line)
    return found


def _kept(saved: list[tuple[int, bool]], keep: int) -> list[tuple[int, bool]]:
    """Return the newest checkpoints, and the newest one with a finite loss if it is not among them."""
    newest = saved[-keep:]
    if any(sound for _, sound in newest):
        return newest
    return [pair for pair in saved[:-keep] if pair[1]][-1:] + newest


def _is_sound(manifest: Path) -> bool:
    """Return whether the loss was finite at a checkpoint; False if it cannot be read."""
    try:
        return bool(read_object(manifest, _Manifest).get("sound", True))
    except (Damaged, OSError):
        return False


def _intact(path: Path, read: Callable[[Path], Any]) -> Any:
    """Read a file of a checkpoint; the error names the file if it is missing or damaged."""
    try:
        return read(path)
    except FileNotFoundError:
        raise Damaged(f'the checkpoint file "{path}" is missing') from None
    except Damaged as problem:
        raise Damaged(f'the checkpoint file "{path}" is damaged ({problem})') from None


def _is_whole(path: Path) -> bool:
    try:
        verify_tensors(path)
    except (OSError, Damaged):
        return False
    return True


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the complete rows of a run's metrics."""
    return [*read_lines(path / "metrics.jsonl", _Row)]


def _lock_patiently(file: IO[Any]) -> None:
    """Lock a file. `in_use` holds a lock for a moment, so it is tried again before the file counts as locked."""
    for _ in range(ATTEMPTS):
        try:
            return _lock(file)
        except OSError:
            time.sleep(PAUSE)
    _lock(file)


def _lock(file: IO[Any], shared: bool = False) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
