"""The cache of decoded large data sets, one file each, which every process maps into its memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fullrank.data.dataset import IDS, DataSet, Split
from fullrank.data.sources.places import user_cache
from fullrank.files import write_atomically

LIMIT = 64 * 2**20
"""A data set whose samples have at least this many bytes is kept decoded."""

VERSION = "3"
"""The version of the files' format; a file of another version is written again."""

CLOCK_STEP = 0.02
"""Seconds in which two changes of a file may get the same time, because the system's clock of files is coarse."""

_COLUMNS = ("x", "y", *IDS)


@dataclass(frozen=True)
class Content:
    """The content of the files of a data set."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    domains: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Return the folder of decoded data sets: $FULLRANK_CACHE, or the user's cache."""
    named = os.environ.get("FULLRANK_CACHE")
    return (Path(named).expanduser() if named else user_cache()).absolute()


def cached(
    name: str,
    sources: Sequence[Path],
    decode: Callable[[], Content],
    complete: Callable[[Content], DataSet],
) -> DataSet:
    """Return a data set, from the cache if it is there.

    A large data set is read from the cache, mapped into memory, if the names, sizes, inodes and times of its sources
    are unchanged and the file in the cache has the content that was written. That is known without reading it if size,
    inode and times of this file are those with which its content was last verified; otherwise its fingerprint is
    computed, which takes about 0.6 s per gigabyte. If anything has changed, the data set is decoded. If the cache
    cannot be written, it stays in memory.

    Args:
        name: The name of the data set.
        sources: The files from which it is decoded.
        decode: Reads the content of these files.
        complete: Creates a data set from the content.
    """
    places = json.dumps([str(path.resolve()) for path in sources])
    return cached_as(name, places, _state(sources), decode, complete, LIMIT)


def cached_as(
    name: str, place: str, state: str, decode: Callable[[], Content], complete: Callable[[Content], DataSet], limit: int
) -> DataSet:
    """Return a data set, from the cache if it is there, as `cached` does.

    Args:
        name: The name of the data set.
        place: A text that identifies the data set, such as the path of its folder.
        state: A text that changes with the sources.
        decode: Reads the content of the sources.
        complete: Creates a data set from the content.
        limit: A data set whose samples have at least this many bytes is kept.
    """
    path = cache_folder() / f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:16]}.safetensors"
    kept = _kept(path, state, complete)
    if kept is not None:
        return kept
    data = complete(decode())
    if sum(split.x.nbytes for split in (data.train, data.test) if split is not None) < limit:
        return data
    # the user did not ask for a cache, so one that cannot be written is no reason to stop
    with contextlib.suppress(OSError, SafetensorError):
        _keep(path, state, data)
    return _kept(path, state, complete) or data


def _state(sources: Sequence[Path]) -> str:
    """Describe the state of files; unlike the modification time, the time of the last change cannot be set."""
    facts = [(path.name, path.stat()) for path in sources]
    return json.dumps([(name, f.st_size, f.st_mtime_ns, f.st_ctime_ns, f.st_ino) for name, f in facts])


def _keep(path: Path, state: str, data: DataSet) -> None:
    about = {
        "version": VERSION,
        "sources": state,
        "fingerprint": data.fingerprint(),
        "classes": json.dumps(data.classes),
        "domains": json.dumps(data.domains),
        "clients": json.dumps(data.clients),
        "unreadable": json.dumps(data.unreadable),
    }
    tensors = {
        f"{split_name}.{column}": tensor.contiguous()
        for split_name, split in (("train", data.train), ("test", data.test))
        for column in _COLUMNS
        if (tensor := getattr(split, column, None)) is not None
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.touch()
        mode = unfinished.stat().st_mode
        save_file(tensors, unfinished, metadata=about)
        unfinished.chmod(mode)  # as the user's umask says; safetensors lets no other user read
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _kept(path: Path, state: str, complete: Callable[[Content], DataSet]) -> DataSet | None:
    """Return the data set in the cache, or None if there is none that can be used."""
    try:
        # safetensors maps the file; a tensor taken from it is a view of the mapping, not a copy
        with safe_open(path, framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            if about.get("version") != VERSION or about.get("sources") != state:
                return None
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        names = (tuple(json.loads(about[key])) for key in ("classes", "domains", "clients", "unreadable"))
        content = Content(_split(tensors, "train"), _split(tensors, "test"), *names)
        data = replace(complete(content), file=path)
        if not _is_verified(path, about["fingerprint"]):
            before = _settled_state(path)
            if data.fingerprint() != about["fingerprint"]:
                return None  # the file has changed since; a run's result must not depend on that
            _record_verified(path, before, about["fingerprint"])
        data.set_fingerprint(about["fingerprint"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    return data


def _verified(path: Path) -> Path:
    """Return the path of the file that says in which state a file of the cache was verified."""
    return path.with_suffix(".verified.json")


def _is_verified(path: Path, fingerprint: str) -> bool:
    """Return whether a file of the cache is in the state in which it was found to have this fingerprint."""
    try:
        return bool(json.loads(_verified(path).read_text()) == [fingerprint, _state([path])])
    except (OSError, ValueError):
        return False


def _settled_state(path: Path) -> str:
    """Return the state of a file when any further change would give it another time."""
    wait = path.stat().st_ctime + CLOCK_STEP - time.time()
    time.sleep(min(max(wait, 0), CLOCK_STEP))
    return _state([path])


def _record_verified(path: Path, before: str, fingerprint: str) -> None:
    """Record that a file has a fingerprint, unless it has changed while that was computed."""
    if _state([path]) == before:
        with contextlib.suppress(OSError):  # a cache that cannot be written is verified every time
            write_atomically(_verified(path), json.dumps([fingerprint, before]).encode())


def _split(tensors: Mapping[str, Tensor], name: str) -> Split:
    x, y = tensors[f"{name}.x"], tensors[f"{name}.y"]
    columns: dict[str, Any] = {column: tensors.get(f"{name}.{column}") for column in IDS}
    return Split(x, y.clone(), **columns)
