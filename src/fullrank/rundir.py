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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from . import __version__
from .errors import Refusal
from .server import Server
from .trees import Tensors, flatten, misfit, unflatten

FORMAT = 1
CHECKPOINT_FILE = re.compile(r"\d+\.json|(server|clients)-\d+\.safetensors|\..*\.part")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either there whole or as it was before, also after a power cut."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    with contextlib.suppress(OSError):  # not every file system lets a directory be synchronised
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


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
        raise Refusal(f'the file "{path}" is missing') from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refusal(f'the file "{path}" is damaged ({error})') from None


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


class RunDirectory:
    """One run's directory, locked by the process that runs it."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._lock: IO[str] | None = None

    # Opening

    def open(self) -> None:
        """Create and lock the directory; a second process is refused, and so is a directory with other things."""
        if not self.started and self.foreign():
            raise Refusal(f'"{self.path}" is not empty and holds no run; choose another directory')
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise Refusal(f'the run directory "{self.path}" cannot be written: {error.strerror}') from None
        try:
            _lock(self._lock)
        except OSError:
            self._lock.close()
            self._lock = None
            raise Refusal(
                f'another process is running in "{self.path}"; wait for it, or choose another --out'
            ) from None
        for stale in (*self.path.glob(".*.part"), *self.checkpoints.glob(".*.part")):
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

    # Rows

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Add one round's metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

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
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept).encode())
        return kept

    def discard_result(self) -> None:
        """Forget how a run of fewer rounds ended; without the summary it is not complete."""
        for name in ("summary.json", "model.safetensors"):
            (self.path / name).unlink(missing_ok=True)

    # Checkpoints

    def save(self, server: Server, keep: int) -> None:
        """Write a checkpoint: first the tensors, then, as its last act, the small file that names them."""
        number = f"{server.round:06d}"
        save_tensors(self.checkpoints / f"server-{number}.safetensors", flatten(server.state()))
        if unsaved := server.store.unsaved():
            file = f"clients-{number}.safetensors"
            save_tensors(self.checkpoints / file, flatten(unsaved))
            server.store.saved_as(file, self.checkpoints)
        clients: dict[str, list[int]] = {}
        for client, file in server.store.files.items():
            clients.setdefault(file, []).append(client)
        manifest = {
            "format": FORMAT,
            "round": server.round,
            "server": f"server-{number}.safetensors",
            "clients": clients,
        }
        write_json(self.checkpoints / f"{number}.json", manifest)
        self.sweep(keep)

    def sweep(self, keep: int) -> None:
        """Delete checkpoints beyond the newest `keep`, and every file that none of the rest names."""
        manifests = self._manifests()
        for path in manifests[:-keep]:
            path.unlink()
        named = {path.name for path in manifests[-keep:]}
        for path in manifests[-keep:]:
            with contextlib.suppress(ValueError, KeyError):  # a damaged one names nothing
                manifest = json.loads(path.read_text())
                named |= {manifest["server"], *manifest["clients"]}
        for path in self.checkpoints.iterdir():
            if path.name not in named and CHECKPOINT_FILE.fullmatch(path.name):
                path.unlink()

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
        for file in manifest["clients"]:
            self._intact(self.checkpoints / file, _read_header)
        server.restore(state, manifest["round"], device)
        files = {client: file for file, clients in manifest["clients"].items() for client in clients}
        server.store.restore(files, self.checkpoints)

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
    return {key: content[key] for key in ("format", "round", "server", "clients")}


def _read_header(path: Path) -> None:
    with safe_open(path, framework="pt"):  # refuses a file that is shorter or longer than its header says
        pass


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a run's metrics; a line that a kill cut short is not one."""
    file = path / "metrics.jsonl"
    if not file.is_file():
        return []
    lines = file.read_text().split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise Refusal(f'"{file}" is damaged: a line of it is not JSON ({error})') from None


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
