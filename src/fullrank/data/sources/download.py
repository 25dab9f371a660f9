"""Download a data set from its official source: resume an interrupted transfer, check sums, unpack archives safely.

Pooch, the usual library for this, downloads a file from the start after each interruption, which is why the transfer
is written here.
"""

from __future__ import annotations

import filecmp
import gzip
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from fullrank._version import __version__
from fullrank.data.sources.places import Place, download_root
from fullrank.data.sources.stored import Download, Stored, content_md5
from fullrank.errors import InputError, writing

TIMEOUT = 30.0
"""A connection counts as broken after this many seconds without an answer."""

_CHUNK = 2**18

Watch = Callable[[str, int, int | None], None]
"""A function that is called with the address, the bytes that have arrived, and the size of the file if it is known."""


def get(stored: Stored, root: str | Path = "", watch: Watch | None = None) -> str:
    """Download a data set unless it is there already.

    Args:
        stored: The data set.
        root: The folder for the files; by default $FULLRANK_DATA, or a folder in the user's cache.
        watch: A function that is called with the progress of the transfer.

    Returns:
        A sentence that says where the data set is.

    Raises:
        InputError: If it cannot be downloaded, or files of another copy are in the folder.
    """
    place = stored.search(root)
    if place is not None:
        _reject_not_official(stored, place)
        return f"{stored.title} is complete in {place.folder} already"
    folder = download_root(root)
    if not stored.downloads:
        raise InputError(f"{stored.title} cannot be downloaded by a program; {stored.how_to_get()}")
    with writing(folder, instead="; give another --root"):
        for download in _files_to_download(stored, folder):
            fetched_here = not (folder / download.folder / download.file).is_file()
            file = fetch(download, folder, watch)
            if download.members:
                unpack(file, download.members, folder)
                if fetched_here:
                    file.unlink()
    return f"{stored.title} is in {stored.find(folder).folder}"


def fetch(download: Download, root: Path, watch: Watch | None = None) -> Path:
    """Download a file unless it is there already, and verify its checksum in both cases.

    Args:
        download: The file.
        root: The folder of the data set.
        watch: A function that is called with the progress of the transfer.

    Returns:
        The path of the file.

    Raises:
        InputError: If the file cannot be downloaded, or has another checksum.
    """
    target = root / download.folder / download.file
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file():
        part = target.with_name(f"{target.name}.part")
        try:
            _transfer(download.url, part, watch or (lambda *_: None))
        except _Unreachable as problem:
            raise InputError(
                f"{download.url} cannot be downloaded ({problem}); try the same command again later, which"
                f" continues where it stopped, or put the file into {target.parent} by hand"
            ) from None
        _reject_other_sum(part, download)
        os.replace(part, target)
    else:
        _reject_other_sum(target, download)
    return target


def unpack(archive: Path, members: tuple[str, ...], root: Path) -> None:
    """Extract members of a gzipped tar or a zip archive.

    Args:
        archive: The archive.
        members: The members to extract.
        root: The folder into which they are extracted.

    Raises:
        InputError: If the archive lacks a member, is damaged, or contains a link or a path that leads elsewhere.
    """
    open_archive = _in_zip if archive.suffix == ".zip" else _in_tar
    try:
        with open_archive(archive) as files:
            missing = [name for name in members if name not in files]
            if missing:
                raise InputError(f"{archive} lacks {', '.join(missing)}")
            for name in members:
                _extract(files[name], root / name)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{archive} is damaged: it cannot be unpacked ({error})") from None


class _Unreachable(Exception):
    """Raised if the server does not send the requested file."""


def _files_to_download(stored: Stored, folder: Path) -> tuple[Download, ...]:
    """Return the files to download: those of which one is there already, otherwise the preferred ones."""
    for way in stored.downloads:
        if any((folder / download.folder / download.file).is_file() for download in way):
            return way
    return stored.downloads[0]


def _reject_not_official(stored: Stored, place: Place) -> None:
    advice = f"move {place.folder} away, or give another --root"
    try:
        others = [fact.path.name for fact in stored.inspect(place) if fact.state in ("altered", "another size")]
    except InputError as error:
        raise InputError(f"{error}; {advice}") from None
    if others:
        raise InputError(f"{place.folder} has {', '.join(others)} already, but not as in the official copy; {advice}")


def _transfer(url: str, part: Path, watch: Watch) -> None:
    """Download into a file, continuing after its content; connect again as long as each connection brings something."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        total = _download(url, part, before, watch)
        after = part.stat().st_size
        if total is None or after >= total:
            return
        if after <= before:
            raise _Unreachable(f"the connection broke after {after} of {total} bytes")


def _download(url: str, part: Path, start: int, watch: Watch) -> int | None:
    """Download as much as one connection brings, and return the size of the whole file if the server reports it."""
    try:
        with _open(url, start) as response:
            resumed = response.status == 206
            length = response.headers.get("Content-Length", "")
            done = start if resumed else 0
            total = done + int(length) if length.isdecimal() else None
            with part.open("ab" if resumed else "wb") as file:
                for chunk in _chunks(response):
                    file.write(chunk)
                    done += len(chunk)
                    watch(url, done, total)
            return total
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to send
            return _download(url, part, 0, watch) if _announced(error) not in (None, start) else start
        raise _Unreachable(f"the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _Unreachable(getattr(error.reason, "strerror", None) or str(error.reason)) from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _Unreachable(str(error) or type(error).__name__) from None


def _open(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"fullrank/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    response: http.client.HTTPResponse = urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=TIMEOUT
    )
    sent = response.headers.get("Content-Range", "")
    if response.status == 206 and not sent.startswith(f"bytes {start}-"):
        response.close()
        raise _Unreachable(f'the server sends "{sent}" where "bytes {start}-" was requested')
    return response


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield what arrives, up to the end or until the connection breaks."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (http.client.HTTPException, OSError):
            return
        if not chunk:
            return
        yield chunk


def _announced(error: urllib.error.HTTPError) -> int | None:
    size = error.headers.get("Content-Range", "").rpartition("/")[2]
    return int(size) if size.isdecimal() else None


def _reject_other_sum(path: Path, download: Download) -> None:
    with path.open("rb") as file:
        found = content_md5(*iter(lambda: file.read(_CHUNK), b""))
    if found != download.md5:
        raise InputError(
            f"{path} has the MD5 sum {found}, and {download.url} must have {download.md5}; delete it and try again"
        )


_Opened = Callable[[], IO[bytes]]


@contextmanager
def _in_tar(archive: Path) -> Iterator[dict[str, _Opened]]:
    """Yield the files of an archive by their paths, each with a function that opens it."""
    with tarfile.open(archive, "r:gz") as file:
        entries = {_safe_name(archive, entry.name, plain=entry.isfile() or entry.isdir()): entry for entry in file}
        yield {name: partial(_opened, file, entry) for name, entry in entries.items() if entry.isfile()}


@contextmanager
def _in_zip(archive: Path) -> Iterator[dict[str, _Opened]]:
    """Yield the files of an archive by their paths, each with a function that opens it."""
    with zipfile.ZipFile(archive) as file:
        entries = {_safe_name(archive, entry.filename): entry for entry in file.infolist()}
        yield {name: partial(file.open, entry) for name, entry in entries.items() if not entry.is_dir()}


def _opened(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    source = archive.extractfile(entry)
    assert source is not None  # it is a file
    return source


def _safe_name(archive: Path, name: str, plain: bool = True) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not plain:
        raise InputError(
            f'{archive} has the entry "{name}", a link or a path that leads elsewhere; nothing was unpacked'
        )
    return str(path)


def _extract(open_member: _Opened, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        with open_member() as source, part.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
        if target.exists() and not filecmp.cmp(part, target, shallow=False):
            raise InputError(f"{target} is there already, with other content than in the archive; move it away")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
