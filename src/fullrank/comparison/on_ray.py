"""The runs of a comparison on the nodes of a Ray cluster, each in its own process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.comparison.parallel import Failure, Lines, Place, RunProcess, Task, failure, written
from fullrank.config.schema import EngineTable
from fullrank.engine.ray.cluster import Cluster, cause, node_name
from fullrank.errors import InputError
from fullrank.local import interrupt

POLL = 0.2
PAUSE = 0.5
"""The number of seconds for which a node waits for the next line of a run before it says that there is none."""
ATTEMPTS = 3
"""How often a run is started before the loss of its node counts as its failure."""
PR_SET_PDEATHSIG = 1


class RayPlace(Place):
    """A Ray cluster on which runs are made.

    Args:
        address: The address of the cluster, as `engine.address` takes it, but not empty.

    Raises:
        InputError: If Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str):
        self.cluster = Cluster(address, key="ray", asked="--ray (ray=)")
        self._marks: dict[Path, Path] = {}

    def room(self, tasks: Sequence[Task]) -> int:
        """Return how many runs like these fit into the cluster at the same time.

        Raises:
            InputError: If a run fits on no node.
        """
        fitting = []
        for task in tasks:
            for key, amount in self.needs(task).items():
                resource = key.removeprefix("num_")[:3].upper()
                if amount > (largest := self.cluster.largest(resource)):
                    raise InputError(
                        f"{task.name} needs {amount:g} {resource}, and {self.cluster.name} has no node with more than "
                        f"{largest:g}; `ray status` shows its nodes"
                    )
                fitting.append(int(self.cluster.total(resource) // amount))
        return min(fitting, default=1)

    def needs(self, task: Task) -> dict[str, float]:
        """Return the resources that a run takes of its node, by the names of Ray's options.

        Args:
            task: The run.

        Raises:
            InputError: If the run itself uses Ray, or names one GPU.
        """
        table: EngineTable = task.experiment.engine
        if table.name == "ray":
            raise InputError(
                f'{task.name}: engine.name = "ray" is for a run that trains on several nodes; with --ray (ray=) '
                "each run is made on one node, so take another engine"
            )
        workers = 1
        if table.name == "processes":
            workers = table.workers or max(1, int(self.cluster.largest("CPU")) // table.threads)
        needs: dict[str, float] = {"num_cpus": table.threads * workers}
        if table.device.startswith("cuda"):
            if table.device != "cuda":
                raise InputError(f'engine.device = "{table.device}": Ray chooses the GPU; give "cuda"')
            needs["num_gpus"] = table.workers or 1
        return needs

    def start(self, task: Task, lines: Lines) -> RunProcess:
        """Start a run on a node that has room for it, as soon as one has."""
        return _RemoteRun(self, task, lines)

    def mark(self, folder: Path) -> Path:
        """Return a file in a folder by which a node recognises it."""
        if folder not in self._marks:
            self._marks[folder] = folder / f".ray-{uuid.uuid4().hex}"
            self._marks[folder].touch()
        return self._marks[folder]

    def close(self) -> None:
        """End the connection to the cluster."""
        for mark in self._marks.values():
            mark.unlink(missing_ok=True)
        self.cluster.close()


@contextlib.contextmanager
def place_of(ray: str) -> Iterator[RayPlace | None]:
    """Connect to the cluster at an address inside the block; None stands for this machine if the address is empty."""
    if not ray:
        yield None
        return
    place = RayPlace(ray)
    try:
        yield place
    finally:
        place.close()


@dataclass(frozen=True)
class _Order:
    """Everything that a node needs to know about a run."""

    command: tuple[str, ...]
    mark: Path
    """A file that the machine that ordered the run has written next to it."""
    folder: str
    """The working directory."""
    path: tuple[str, ...]
    """Where that machine finds modules."""


class RunActor:
    """Makes one run on a node, in a child process, and passes on its lines. Ray makes an actor of it."""

    def __init__(self) -> None:
        interrupt.leave_to_parent()

    def start(self, order: _Order) -> tuple[str, bool]:
        """Start the run.

        Args:
            order: The run, as the machine that ordered it describes it.

        Returns:
            The name of the node, and whether it can see the folder of the run; if it cannot, nothing is started.
        """
        import ray

        node = node_name(ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id())
        if not order.mark.exists():
            return node, False
        path = os.pathsep.join([*order.path, *(folder for folder in sys.path if folder)])
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *order.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=order.folder if os.path.isdir(order.folder) else None,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            preexec_fn=_die_with_parent(),
            text=True,
            errors="replace",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        return node, True

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def more(self) -> tuple[list[str], int | None, str]:
        """Return what the run has printed since the last call.

        Returns:
            The lines; the exit status, or None before the end; and at the end the text on standard error.
        """
        found: list[str] = []
        try:
            line = self._lines.get(timeout=PAUSE)
            while line is not None:
                found.append(line)
                line = self._lines.get_nowait()
        except queue.Empty:
            return found, None, ""
        status = self._process.wait()
        self._errors.seek(0)
        return found, status, self._errors.read()

    def terminate(self) -> None:
        """Ask the run to save its state and end."""
        self._process.terminate()


class _RemoteRun(RunProcess):
    """A run on a node. If the node is lost, the run continues on another from the last round that was saved."""

    def __init__(self, place: RayPlace, task: Task, lines: Lines):
        self.task = task
        self._ray = place.cluster.ray
        self._needs = place.needs(task)
        file = written(task)
        command = ("-m", "fullrank", "run", os.path.abspath(file), "--out", os.path.abspath(task.path), "--json")
        mark = Path(os.path.abspath(place.mark(file.parent)))
        self._order = _Order(command, mark, os.getcwd(), tuple(path or os.getcwd() for path in sys.path))
        self._lines = lines
        self._actor: Any = None
        self._stopping = threading.Event()
        self._killed = threading.Event()
        self._outcome: Failure | InputError | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> Failure | None:
        """Return the failure of the run if it failed; called when it has ended."""
        interrupt.check()
        if isinstance(self._outcome, InputError):
            raise self._outcome
        return self._outcome

    def terminate(self) -> None:
        """Ask the run to save its state and end."""
        self._stopping.set()

    def wait(self) -> None:
        """Wait until the run has ended."""
        while self._thread.is_alive():
            self._thread.join(POLL)

    def kill(self) -> None:
        """End the run at once."""
        self._stopping.set()
        self._killed.set()
        self._drop()

    def _follow(self) -> None:
        losses: list[str] = []
        try:
            while not self._stopping.is_set():
                where = "a node"
                try:
                    self._actor = self._new_actor()
                    answer = self._get(self._actor.start.remote(self._order))
                    if answer is None:
                        return
                    where = f"node {answer[0]}"
                    if not answer[1]:
                        self._outcome = InputError(
                            f'{where} of the Ray cluster cannot see "{self._order.mark.parent.parent}"; put the runs '
                            "into a folder that all nodes share, with --out (out=)"
                        )
                        return
                    self._outcome = self._pass_on()
                    return
                except self._ray.exceptions.RayError as error:
                    if self._stopping.is_set():
                        return
                    losses.append(f"{where}: {cause(error)}")
                    if len(losses) == ATTEMPTS:
                        told = "; ".join(dict.fromkeys(losses))
                        self._outcome = Failure(f"it was lost {ATTEMPTS} times ({told}); the rounds before are saved")
                        return
                    self._lines.put((self, f"{losses[-1]}; the run continues on another worker"))
                finally:
                    self._drop()
        except Exception as error:
            self._outcome = Failure(f"the connection to the Ray cluster failed ({type(error).__name__}: {error})")
        finally:
            self._lines.put((self, None))

    def _pass_on(self) -> Failure | None:
        """Pass on the lines of the run until its end, and return its failure, if it failed."""
        asked = False
        while True:
            if self._stopping.is_set() and not asked:
                self._actor.terminate.remote()
                asked = True
            found = self._get(self._actor.more.remote(), patiently=True)
            if found is None:
                return None
            lines, status, text = found
            for line in lines:
                self._lines.put((self, line))
            if status is not None:
                return failure(status, text)

    def _get(self, answer: Any, patiently: bool = False) -> Any:
        """Return an answer, or None if the run is stopped before it is there, `patiently` only if it is killed."""
        while not self._ray.wait([answer], timeout=POLL)[0]:
            if self._killed.is_set() or (self._stopping.is_set() and not patiently):
                return None
        return self._ray.get(answer)

    def _new_actor(self) -> Any:
        options = {**self._needs, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(RunActor).options(**options).remote()

    def _drop(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(Exception):  # it has ended already, or Ray has
                self._ray.kill(self._actor)


def _die_with_parent() -> Any:
    """Return a function that lets a child process be killed as soon as this process is gone, where the system can."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
