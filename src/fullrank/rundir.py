"""The run directory: everything is written atomically, so that a kill at any moment loses at most a round."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from . import __version__
from .errors import Refusal, naming_file, writing
from .server import Server
from .store import ClientStore
from .trees import Tensors, flatten, misfit, unflatten

FORMAT = 2
CHECKPOINT_FILE = re.compile(r"\d+\.json|(server|clients)-\d+\.safetensors|\..*\.part")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either there whole or as it was before, also after a power cut."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with naming_file(path):
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)  # on a full disk every byte is wanted
            raise
    with contextlib.suppress(OSError):  # not every file system lets a directory be synchronised
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file; a kill may cut it short."""
    with naming_file(path), path.open("a") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON lines; one that a kill cut short is not one."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f'"{path}" is damaged: a line of it is not JSON ({error})') from None


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines atomically."""
    write_atomically(path, "".join(json.dumps(value) + "\n" for value in values).encode())


def writable(value: Any) -> Any:
    """The same in what JSON knows: a number that is not finite has no value there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: writable(inner) for key, inner in value.items()}
    return [writable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def read_json(path: Path) -> Any:
    """What a JSON file of a run directory holds; one sentence where it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise Refusal(f'the file "{path}" is missing{_way_out(path)}') from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f'the file "{path}" is damaged ({error}){_way_out(path)}') from None


def _way_out(path: Path) -> str:
    """What can be done without a file of a run directory."""
    if path.name in ("partition.json", "environment.json"):
        return "; the same experiment in another directory writes one before round 1: copy that"
    if path.name == "summary.json":
        # Without a checkpoint a run that has no summary either would begin anew, over its rows.
        saved = RunDirectory(path.parent).last_round()
        again = "delete it and give the command that started the run again, which writes it anew"
        return f"; {again}" if saved else "; run the same experiment in another directory"
    return ""


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file atomically; it takes contiguous tensors that share no memory."""
    seen: set[int] = set()
    ready: Tensors = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        if address in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        ready[name] = tensor
    write_atomically(path, save(ready))


class _Names(NamedTuple):
    """The files of one checkpoint."""

    manifest: str
    server: str
    clients: str

    @classmethod
    def of(cls, round: int) -> _Names:
        return cls(f"{round:06d}.json", f"server-{round:06d}.safetensors", f"clients-{round:06d}.safetensors")


class RunDirectory:
    """One run's directory, locked by the process that runs it."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._notes = self.checkpoints / "clients.jsonl"
        self._lock: IO[str] | None = None
        self._saved: list[int] = []
        """The rounds whose checkpoints are kept."""
        self._left: deque[tuple[int, str]] = deque()
        """Files of clients' states that no checkpoint from that round on needs."""

    # Opening

    def open(self) -> None:
        """Create and lock the directory; a second process is refused, and so is a directory with other things."""
        if not self.started and self.foreign():
            raise Refusal(f'"{self.path}" is not empty and holds no run; choose another directory')
        with writing(self.path, "the run directory "):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a")
        try:
            _lock(self._lock)
        except OSError:
            self._lock.close()
            self._lock = None
            raise Refusal(
                f'another process is running in "{self.path}"; wait for it, or choose another --out'
            ) from None
        for stale in (*self.path.glob(".*.part"), *self.path.glob("*/.*.part")):
            stale.unlink()  # a kill left it half written

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def abandon(self) -> None:
        """Leave nothing behind of a run that was refused before it began."""
        if self.started or self._lock is None:
            return
        self.close()
        for name in (".lock", "log.txt"):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: then it is not ours to remove
            self.checkpoints.rmdir()
            self.path.rmdir()

    @property
    def started(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / "experiment.toml").is_file()

    def foreign(self) -> bool:
        """Whether the directory holds things that no run puts there before it has begun."""
        if not self.path.is_dir():
            return False
        own = {
            "checkpoints",
            ".lock",
            "log.txt",
            "experiment.toml",
            "partition.json",
            "partition.safetensors",
            "environment.json",
        }
        names = {path.name for path in self.path.iterdir() if not CHECKPOINT_FILE.fullmatch(path.name)}
        return bool(names - own) or (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    def finished(self, rounds: int) -> bool:
        """Whether a run of so many rounds is complete here, its result written."""
        summary = self.path / "summary.json"
        return summary.is_file() and read_json(summary)["rounds"] == rounds

    def has_its_result(self, rounds: int) -> bool:
        """Whether a run of so many rounds is complete here, and its model whole if a checkpoint could restore it."""
        return self.finished(rounds) and (_is_whole(self.path / "model.safetensors") or not self.last_round())

    def refuse_if_stripped(self) -> None:
        """Of a run that ended, and so had a checkpoint: without one it would begin anew, over its rows."""
        if (self.path / "summary.json").is_file() and not self.last_round():
            raise Refusal(
                f'the run in "{self.path}" ended, but its checkpoints are gone: it can be read, not gone on with; '
                "take another directory"
            )

    # Rows

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Add one round's metrics."""
        append_line(self.path / "metrics.jsonl", row)

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows."""
        return read_rows(self.path)

    def cut_rows(self, rounds: int) -> list[dict[str, Any]]:
        """Forget the rows after a round: their rounds were not saved and will be played again."""
        kept = [row for row in self.rows() if row["round"] <= rounds]
        if [row["round"] for row in kept] != list(range(1, rounds + 1)):
            raise Refusal(
                f'"{self.path / "metrics.jsonl"}" does not hold all of the {rounds} rounds that the newest checkpoint '
                "has behind it; start a new run"
            )
        write_lines(self.path / "metrics.jsonl", kept)
        return kept

    def discard_result(self) -> None:
        """Forget how a run of fewer rounds ended; without the summary it is not complete."""
        for name in ("summary.json", "model.safetensors"):
            (self.path / name).unlink(missing_ok=True)

    # Checkpoints

    def save(self, server: Server, keep: int) -> None:
        """Write a checkpoint: first the tensors, then, as its last act, the small file that names them.

        Of clients it writes what is new since the last one; all notes together say what is known of each.
        """
        names, store = _Names.of(server.round), server.store
        save_tensors(self.checkpoints / names.server, flatten(server.state()))
        if unsaved := store.unsaved():
            save_tensors(self.checkpoints / names.clients, flatten(unsaved))
        append_line(self._notes, {"round": server.round, **store.note(names.clients)})
        self._left += [(server.round, file) for file in store.saved_as(names.clients, self.checkpoints)]
        write_json(self.checkpoints / names.manifest, {"format": FORMAT, "round": server.round, "server": names.server})
        self._saved.append(server.round)
        self.sweep(keep)

    def sweep(self, keep: int) -> None:
        """Delete checkpoints beyond the newest `keep`, and the files that none of the rest needs."""
        while len(self._saved) > keep:
            names = _Names.of(self._saved.pop(0))
            (self.checkpoints / names.manifest).unlink(missing_ok=True)
            (self.checkpoints / names.server).unlink(missing_ok=True)
        while self._left and self._left[0][0] <= self._saved[0]:
            (self.checkpoints / self._left.popleft()[1]).unlink(missing_ok=True)

    def tidy(self, keep: int) -> None:
        """Before the first round of a process: forget what lies beyond the newest checkpoint, sweep what a kill left.

        This looks at every file and every note, which a round must not do.
        """
        rounds = [int(path.stem) for path in self._manifests()]
        notes = self._notes_until(rounds[-1] if rounds else 0)
        if self._notes.is_file():
            write_lines(self._notes, notes)
        known = ClientStore()
        left = [(note["round"], file) for note in notes for file in known.follow(note, self.checkpoints)]
        self._saved = rounds[-keep:]
        self._left = deque((round, file) for round, file in left if round > self._saved[0])
        needed = {name for round in self._saved for name in _Names.of(round)[:2]}
        needed |= {*known.files.values(), *(file for _, file in self._left)}
        for path in self.checkpoints.iterdir():
            if path.name not in needed and CHECKPOINT_FILE.fullmatch(path.name):
                path.unlink()

    def _notes_until(self, round: int) -> list[dict[str, Any]]:
        """What the checkpoints up to a round noted of clients."""
        return [note for note in read_lines(self._notes) if note["round"] <= round]

    def _manifests(self) -> list[Path]:
        found = [path for path in self.checkpoints.glob("*.json") if path.stem.isdigit()]
        return sorted(found, key=lambda path: int(path.stem))

    def last_round(self) -> int:
        """The rounds that the newest checkpoint has behind it; 0 without one."""
        manifests = self._manifests()
        return int(manifests[-1].stem) if manifests else 0

    def restore(self, server: Server, device: torch.device) -> None:
        """Bring a server to where the newest checkpoint left it."""
        manifests = self._manifests()
        if not manifests:
            return
        manifest = self._intact(manifests[-1], _read_manifest)
        if manifest["format"] != FORMAT:
            raise Refusal(
                f'the checkpoints in "{self.path}" have format {manifest["format"]}, this version reads {FORMAT}'
            )
        saved = self._intact(self.checkpoints / manifest["server"], load_file)
        # Clones, because a map of the file is not aligned as memory is, and some kernels then round differently.
        state = unflatten({name: tensor.clone() for name, tensor in saved.items()})
        if problem := misfit(state["model"], server.model):
            raise Refusal(f'the checkpoint in "{self.path}" does not fit the model: {problem}')
        notes = self._notes_until(manifest["round"])
        if not notes or notes[-1]["round"] != manifest["round"]:
            raise Refusal(f'"{self._notes}" does not reach to round {manifest["round"]}; start a new run')
        for note in notes:
            server.store.follow(note, self.checkpoints)
        for file in sorted(set(server.store.files.values())):
            self._intact(self.checkpoints / file, _read_header)
        server.restore(state, manifest["round"], device)

    def _intact(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """What a file of the newest checkpoint holds; one sentence where it is missing or damaged."""
        try:
            return read(path)
        except FileNotFoundError:
            problem = "is missing"
        except Exception as error:
            problem = f"is damaged ({error})"
        *older, newest = self._manifests()
        way_out = f'delete "{newest}" to go on from round {int(older[-1].stem)}' if older else "start a new run"
        raise Refusal(f'the checkpoint file "{path}" {problem}; {way_out}')


def _read_manifest(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    return {key: content[key] for key in ("format", "round", "server")}


def _read_header(path: Path) -> None:
    with safe_open(path, framework="pt"):  # refuses a file that is shorter or longer than its header says
        pass


def _is_whole(path: Path) -> bool:
    try:
        _read_header(path)
    except (OSError, SafetensorError):
        return False
    return True


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a run's metrics."""
    return read_lines(path / "metrics.jsonl")


def environment(threads: int, device: torch.device) -> dict[str, Any]:
    """What a result depends on beside its experiment."""
    return {
        "fullrank": __version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "command": sys.argv,
    }


def _git_commit() -> str | None:
    """The commit of the package's own source tree, with a mark if it has changes; None where it is installed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain") else "") if tracked else None
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lock(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
