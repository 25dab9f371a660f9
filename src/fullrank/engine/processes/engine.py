"""The engine `processes`, which trains clients in several processes at once and gives the same bits as `serial`."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from safetensors.torch import save_file

from fullrank.data.hosted import HostedData
from fullrank.engine.base import Engine, EngineOptions
from fullrank.engine.dispatch import run_in_order
from fullrank.engine.machine import cores
from fullrank.engine.processes.wire import Wire
from fullrank.engine.recipe import SAMPLES_FILE, cannot_load, packed_recipe, samples_of
from fullrank.errors import InputError, RemoteError
from fullrank.federated.site import Job, Result, Site
from fullrank.local import interrupt

START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from fullrank.engine.processes.worker import main; main()"
)

WAKE_SECONDS = 0.2


class Processes(Engine):
    """An engine with worker processes: as many as `options.workers`, or one per core, and no more than clients.

    Args:
        site: The site that has the clients.
        options: The settings of the engine.

    Raises:
        InputError: If the site is not on the CPU, or the model or the method cannot be sent to other processes.
    """

    def __init__(self, site: Site, options: EngineOptions):
        if site.device.type != "cpu":
            raise InputError(f'engine.name = "processes" trains on the CPU, not on engine.device = "{site.device}"')
        self.site = site
        self.threads = threads = options.threads
        workers = min(options.workers or cores(), options.clients)
        self._data = _SharedFile(site.data)
        self._hello = packed_recipe(site, threads)
        self._selector = selectors.DefaultSelector()
        self._workers = [_Worker(self._data, self._hello, threads) for _ in range(workers)]
        try:
            for worker in self._workers:
                worker.wait_until_ready()
                self._selector.register(worker.reader, selectors.EVENT_READ, worker)
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Run the jobs and yield their results in order.

        At most twice as many results as there are workers are held back.
        """
        return run_in_order(jobs, self._alive, self._some)

    def _some(self) -> dict[int, Result]:
        found: dict[int, Result] = {}
        for key, _ in self._selector.select(WAKE_SECONDS):
            found |= self._result(key.data)
        interrupt.check()
        return found

    def _result(self, worker: _Worker) -> dict[int, Result]:
        """Return the result of a worker's job by the job's number; nothing if a worker without a job died."""
        number, job = worker.number, worker.job
        try:
            result: Result = worker.wire.receive()
        except EOFError:
            self._replace(worker)
            if job is None:
                return {}
            result = Result(job.client, self.site.data.size(job.client), error=worker.exit_error())
        worker.job = None
        return {number: result}

    def _alive(self) -> list[_Worker]:
        """Return the workers, after replacing each that died while it had no job."""
        for worker in list(self._workers):
            if worker.job is None and worker.process.poll() is not None:
                self._replace(worker)
        return self._workers

    def _replace(self, dead: _Worker) -> _Worker:
        self._selector.unregister(dead.reader)
        dead.stop()
        fresh = _Worker(self._data, self._hello, self.threads)
        self._workers[self._workers.index(dead)] = fresh
        fresh.wait_until_ready()
        self._selector.register(fresh.reader, selectors.EVENT_READ, fresh)
        return fresh

    def close(self) -> None:
        """Stop the worker processes at once."""
        for worker in self._workers:
            worker.stop()
        self._selector.close()
        self._data.close()


class _Worker:
    """A worker process, and the job that it is running."""

    def __init__(self, data: _SharedFile, hello: list[Any], threads: int):
        self.job: Job | None = None
        self.number = 0
        self._broadcast: Any = None
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=data.descriptors,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), SAMPLES_FILE: data.name},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.reader = self.process.stdout
        self.wire = Wire(self.reader, self.process.stdin, _wait)
        self._hello = hello

    def wait_until_ready(self) -> None:
        """Send the worker its site, and wait until it is ready."""
        try:
            self.wire.send_packed(self._hello)
            answer = self.wire.receive()
        except (EOFError, BrokenPipeError):
            raise InputError(f"a worker process did not start: {self.exit_error()}") from None
        if isinstance(answer, RemoteError):
            raise cannot_load(answer)

    def start(self, number: int, job: Job) -> None:
        """Send a job to the worker process; the broadcast of a round is sent once per worker."""
        self.number, self.job = number, job
        try:
            if job.broadcast is not self._broadcast:
                self.wire.send(("broadcast", job.broadcast))
                self._broadcast = job.broadcast
            self.wire.send(("job", replace(job, broadcast={})))
        except BrokenPipeError:
            self.process.wait()  # the dead process is found where its result is awaited

    def exit_error(self) -> RemoteError:
        """Return an error that says how the worker ended."""
        status = self.process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return RemoteError("WorkerDied", f"its worker process died ({how})", "")

    def stop(self) -> None:
        """Stop the worker process at once."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _wait(pipe: IO[bytes], to_write: bool) -> None:
    """Wait until a pipe can be read or written again; signals are obeyed meanwhile."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_WRITE if to_write else selectors.EVENT_READ)
        while not selector.select(WAKE_SECONDS):
            interrupt.check()


class _SharedFile:
    """A file with the samples, which workers map into memory: the file of the data set, or a temporary one."""

    def __init__(self, data: HostedData):
        self.descriptors: tuple[int, ...] = ()
        if data.file is not None:
            self.name = str(data.file)
            return
        with tempfile.NamedTemporaryFile(prefix="fullrank-", suffix=".safetensors", delete=False) as file:
            self._path: Path | None = Path(file.name)
        save_file(samples_of(data), self._path)
        self.name = str(self._path)
        if Path("/dev/fd").is_dir():
            # Without a name the file vanishes with its last reader, also when everything is killed.
            descriptor = os.open(self._path, os.O_RDONLY)
            self.descriptors, self.name = (descriptor,), f"/dev/fd/{descriptor}"
            self._path.unlink()
            self._path = None

    def close(self) -> None:
        """Close the file."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        if getattr(self, "_path", None) is not None:
            self._path.unlink(missing_ok=True)  # type: ignore[union-attr]
