"""The engine `ray`, which trains clients in actors on a Ray cluster and gives the same bits as `serial`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from fullrank.engine.base import Engine, EngineOptions
from fullrank.engine.dispatch import run_in_order
from fullrank.engine.machine import cores
from fullrank.engine.ray.cluster import Cluster, cause
from fullrank.engine.ray.worker import (
    Introduction,
    RayWorker,
    SampleFile,
    as_arrays,
    as_frames,
    from_frames,
    to_frames,
    versions,
)
from fullrank.engine.recipe import cannot_load, packed_recipe, samples_of
from fullrank.engine.transfer import handed_over, sent_to
from fullrank.errors import InputError, RemoteError, RunFailed
from fullrank.federated.site import Job, Result, Site
from fullrank.local import interrupt

WAKE_SECONDS = 0.2
ROOM_SECONDS = 120.0
"""The number of seconds for which the engine waits for a worker while there is none."""
ATTEMPTS = 3
"""How often a client's job is started before a worker that is lost with it counts as the client's failure."""
SETTLE_SECONDS = 5.0
"""The number of seconds for which the engine, once it has a worker, waits at its start for the others."""
GPU_SHARES = 10_000
"""Ray counts shares of a GPU in ten-thousandths."""


class Ray(Engine):
    """An engine whose workers are Ray actors: as many as `options.workers`, and no more than clients.

    On a CPU each worker takes `options.threads` CPUs of the cluster, and 0 workers means as many as it has room for. On
    GPUs `options.workers` is the number of GPUs and `options.slots` that of workers on each.

    A job whose worker is lost is run again by another one, with the same result.

    Args:
        site: The site of the clients.
        options: The settings.

    Raises:
        InputError: If Ray is not installed, no cluster answers, or no node has the resources of a worker.
        RunFailed: If the cluster has no room for a worker.
    """

    def __init__(self, site: Site, options: EngineOptions):
        self.site = site
        device = _device(options.device or str(site.device))
        number, slots, threads = options.workers, max(1, options.slots), options.threads
        wanted = (number or torch.cuda.device_count() or 1) * (slots if device == "cuda" else 1)
        self.cluster = Cluster(options.address, cpus=max(cores(), wanted * threads))
        self._workers: list[_Actor] = []
        self._again: deque[tuple[int, Job]] = deque()
        self._losses: dict[int, list[str]] = {}
        self._lost_early = 0
        self._room_until = time.monotonic() + ROOM_SECONDS
        self._noted: dict[str, Any] = _no_notes()
        try:
            if device == "cpu":
                number = number or int(self.cluster.total("CPU") // threads)
                self._needs: dict[str, float] = {"num_cpus": threads}
            else:
                number = (number or int(self.cluster.total("GPU"))) * slots
                self._needs = {"num_cpus": threads, "num_gpus": GPU_SHARES // slots / GPU_SHARES}
            self._check_room(device)
            self._ships = _Shipment(self.cluster.ray, site, packed_recipe(site, threads, device))
            for _ in range(max(1, min(number, options.clients))):
                self._workers.append(self._new_worker())
            self._ready()
            self._wait_for_others()
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Run the jobs and yield their results in order. At most twice as many results as there are workers are held
        back.
        """
        self._losses.clear()
        self._again.clear()
        return run_in_order(jobs, self._idle_first, self._next_results)

    def notes(self) -> dict[str, Any]:
        """Return how many jobs of the round were run on each node, and why jobs were run again, by client."""
        found, self._noted = self._noted, _no_notes()
        return {"ray": {name: dict(value) for name, value in found.items() if value}} if found["nodes"] else {}

    def close(self) -> None:
        """End the workers at once, and the connection to Ray."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self.cluster.close()

    def _idle_first(self) -> list[_Actor]:
        """Return the workers that are ready. Jobs of workers that were lost are started first."""
        ready = self._ready()
        for worker in ready:
            if self._again and worker.job is None:
                worker.start(*self._again.popleft())
        return ready

    def _ready(self) -> list[_Actor]:
        """Return the workers that are ready, once there is one."""
        while not (ready := [worker for worker in self._workers if worker.ready]):
            if time.monotonic() > self._room_until and not any(worker.node for worker in self._workers):
                raise self._no_room()
            self._next_results()
        self._room_until = time.monotonic() + ROOM_SECONDS
        return ready

    def _wait_for_others(self) -> None:
        """Wait a short time until all workers are ready. Those for which there is no room yet join later."""
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until and not all(worker.ready for worker in self._workers):
            self._next_results()

    def _next_results(self) -> dict[int, Result]:
        """Wait for an answer of a worker, for a short time, and return the results that it brings."""
        pending = {worker.answer: worker for worker in self._workers if worker.answer is not None}
        try:
            done, _ = self.cluster.ray.wait(list(pending), num_returns=1, timeout=WAKE_SECONDS)
        except self.cluster.ray.exceptions.RayError as error:
            raise RunFailed(f"the connection to {self.cluster.name} was lost ({_first_line(error)})") from error
        interrupt.check()
        found: dict[int, Result] = {}
        for answer in done:
            found |= self._answered(pending[answer])
        return found

    def _answered(self, worker: _Actor) -> dict[int, Result]:
        answer, worker.answer = worker.answer, None
        try:
            content = self.cluster.ray.get(answer, timeout=ROOM_SECONDS)
        except self.cluster.ray.exceptions.RayTaskError as error:
            if worker.job is None:
                raise RunFailed(f"a Ray worker raised {_first_line(error)}", str(error)) from None
            failed = RemoteError(type(error.cause).__name__, _first_line(error), str(error))
            return worker.finish(Result(worker.job.client, self.site.data.size(worker.job.client), error=failed))
        except (self.cluster.ray.exceptions.RayError, OSError) as error:
            return self._lost(worker, error)
        if isinstance(content, Introduction):
            _check_versions(content)
            self._ships.build(worker, content)
        elif worker.job is None:
            if content is not None:
                raise cannot_load(content)
            worker.ready, self._lost_early = True, 0
        else:
            frames, printed = content
            if printed:
                print(printed, end="", file=sys.stderr, flush=True)
            self._noted["nodes"][worker.node] += 1
            result: Result = from_frames(frames)
            if self.site.device.type != "cpu":
                result = handed_over(result, self.site.device)
            return worker.finish(result)
        return {}

    def _lost(self, worker: _Actor, error: Exception) -> dict[int, Result]:
        """Replace a lost worker; its job is run again, or has failed."""
        number, job = worker.number, worker.job
        why = f"{_place(worker, error)}: {cause(error)}"
        worker.end()
        if not worker.ready:
            self._lost_early += 1
            if self._lost_early > ATTEMPTS + len(self._workers):
                raise RunFailed(f"{self._lost_early} Ray workers were lost while they started, the last on {why}")
        self._workers[self._workers.index(worker)] = self._new_worker()
        if job is None:
            return {}
        losses = self._losses.setdefault(number, [])
        losses.append(why)
        if len(losses) == ATTEMPTS:
            told = "; ".join(dict.fromkeys(losses))
            died = RemoteError("WorkerDied", f"its Ray worker was lost {ATTEMPTS} times ({told})", "")
            return {number: Result(job.client, self.site.data.size(job.client), error=died)}
        self._noted["again"][str(job.client)] = why
        self._again.append((number, job))
        return {}

    def _new_worker(self) -> _Actor:
        return _Actor(self._ships, self._needs)

    def _check_room(self, device: str) -> None:
        """Reject a worker that no node could ever have."""
        for key, resource in (("num_gpus", "GPU"), ("num_cpus", "CPU")):
            needed = self._needs.get(key, 0)
            if needed > self.cluster.largest(resource):
                most = self.cluster.largest(resource)
                setting = "engine.threads" if resource == "CPU" else f'engine.device = "{device}"'
                raise InputError(
                    f"{self.cluster.name} has no node with {needed:g} {resource}, which {setting} needs; the largest "
                    f"has {most:g}"
                )

    def _no_room(self) -> RunFailed:
        needs = " and ".join(f"{value:g} {key.removeprefix('num_').upper()[:3]}" for key, value in self._needs.items())
        return RunFailed(
            f"{self.cluster.name} had no room for a worker ({needs}) within {ROOM_SECONDS:.0f} s; `ray status` shows "
            "what uses it"
        )


class _Shipment:
    """Everything that all workers receive: the recipe of their site, samples and the broadcast, each stored once."""

    def __init__(self, ray: Any, site: Site, recipe: list[Any]):
        self.ray = ray
        self._site = site
        self._recipe = ray.put(as_frames(recipe))
        self._file = SampleFile.at(site.data.file) if site.data.file is not None else None
        self._samples: Any = None
        self._tree: Any = None
        self._broadcast: Any = None
        self._key = 0

    def introduce(self, actor: Any) -> Any:
        """Ask an actor what it has."""
        return actor.introduce.remote([folder or os.getcwd() for folder in sys.path], self._file)

    def build(self, worker: _Actor, told: Introduction) -> None:
        """Let a worker build its site: with the file that its node has, or with samples in the object store."""
        worker.node = told.node
        if not told.has_file and self._samples is None:
            self._samples = self.ray.put(as_arrays(samples_of(self._site.data)))
        file, samples = (self._file, None) if told.has_file else (None, self._samples)
        worker.answer = worker.actor.build.remote(self._recipe, file, samples)

    def do(self, actor: Any, job: Job) -> Any:
        """Send a job to an actor."""
        if job.broadcast is not self._tree:
            self._tree, self._key = job.broadcast, self._key + 1
            self._broadcast = self.ray.put(to_frames(sent_to(torch.device("cpu"), job).broadcast))
        own = sent_to(torch.device("cpu"), replace(job, broadcast={}))
        return actor.do.remote(to_frames(own), self._key, self._broadcast)


class _Actor:
    """A worker in the cluster, the job that it is running, and the answer that it still owes."""

    def __init__(self, ships: _Shipment, needs: dict[str, float]):
        self.job: Job | None = None
        self.number = 0
        self.node = ""
        self.ready = False
        self._ships = ships
        remote = ships.ray.remote(RayWorker)
        self.actor = remote.options(**needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD").remote()
        self.answer: Any = ships.introduce(self.actor)

    def start(self, number: int, job: Job) -> None:
        """Send a job to the worker."""
        self.number, self.job = number, job
        self.answer = self._ships.do(self.actor, job)

    def finish(self, result: Result) -> dict[int, Result]:
        """Return the result by the number of its job, which is over."""
        self.job = None
        return {self.number: result}

    def end(self) -> None:
        """End the worker at once."""
        with contextlib.suppress(Exception):  # it has ended already, or Ray has
            self._ships.ray.kill(self.actor)


def _device(name: str) -> str:
    """Return the device on which workers train."""
    if name not in ("cpu", "cuda"):
        raise InputError(
            f'engine.device = "{name}": with engine.name = "ray" the device is "cpu" or "cuda"; Ray chooses the GPUs'
        )
    return name


def _check_versions(told: Introduction) -> None:
    for name, here in versions().items():
        if told.versions[name] != here:
            raise InputError(
                f"node {told.node} of the Ray cluster has {name} {told.versions[name]}, and this machine has {here}; "
                "install the same version on all nodes"
            )


def _place(worker: _Actor, error: Exception) -> str:
    """Return what messages call the node of a lost worker, which may not have told its name yet."""
    address = re.search(r"\bip[=:] ?([\w.:]+)", str(error))
    name = worker.node or (address[1] if address else "")
    return f"node {name}" if name else "a node"


def _first_line(error: Exception) -> str:
    inner = getattr(error, "cause", None) or error
    lines = str(inner).strip().splitlines() or [""]
    return f"{type(inner).__name__}: {lines[0]}"


def _no_notes() -> dict[str, Any]:
    return {"nodes": Counter(), "again": {}}
