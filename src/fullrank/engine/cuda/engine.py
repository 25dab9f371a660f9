"""The engine `cuda`, which trains several clients at a time, each on its own stream, by steps replayed from graphs.

A step of a deep network is a thousand short kernels. Launching them from Python takes longer than running them, so a
whole step (gather, augmentation, forward, criterion, method terms, backward, corrections, optimiser) is captured once
for each kind of fit and replayed. No kernel fills the device, so several clients train at the same time.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fullrank.engine.base import Engine, EngineOptions
from fullrank.engine.cuda.capture_lock import CaptureLock
from fullrank.engine.cuda.compiled import Compiled, Forward
from fullrank.engine.cuda.mixed_precision import HalfWeights, order_of
from fullrank.engine.cuda.odd_batches import PaddedBatches, can_be_padded, count_samples_
from fullrank.engine.cuda.replay import StepRecorder
from fullrank.engine.cuda.slots import Slots
from fullrank.engine.transfer import handed_over, sent_to
from fullrank.errors import InputError
from fullrank.federated.site import Job, Result, Site
from fullrank.local.step import Bound, State, Step
from fullrank.metrics.evaluate import at_once
from fullrank.models.net import Net, Output
from fullrank.models.network import Network
from fullrank.randomness import disable_seeding, seeded
from fullrank.trees import Tree, clone, copy_, vectors

WARM_UP = 3
"""The number of eager steps before a capture, in which libraries choose their kernels and allocate their memory."""
SLOTS = 6
"""The default number of clients that train at the same time on one device. More are not faster on an H200."""
Record: TypeAlias = Callable[[Callable[[], None], Any], Callable[[], None]]
"""A function that records a step in a memory pool and returns its replay. The caller restores what the step changed."""


class Cuda(Engine):
    """An engine with slots on one or more devices, each of which has its own copy of the network.

    Args:
        site: The site that has the clients.
        options: `workers` is the number of devices, 0 for all of them; `slots` is the number of slots.
        record: A function that turns a step into its replay; by default a CUDA graph is captured.
        devices: Devices to use instead of CUDA's; they need a function `record`.

    Raises:
        InputError: If the site is not on a CUDA device, or there are fewer devices than `workers`.
    """

    def __init__(
        self,
        site: Site,
        options: EngineOptions,
        *,
        record: Record | None = None,
        devices: Sequence[torch.device] = (),
    ):
        if record is None and site.device.type != "cuda":
            raise InputError('engine.name = "cuda" needs engine.device = "cuda"')
        devices = devices or devices_of(site.device, options.workers)
        slots, compile, clients = options.slots, options.compile, options.clients
        self.site = site
        self._noted = 0.0
        self._flags = _Flags(exact=site.network.half is None)
        number = slots or (1 if draws_numbers(site) else SLOTS * len(devices))
        self.device_contexts = [DeviceContext(site, device, record) for device in devices]
        self.workers = [
            StreamWorker(self.device_contexts[index % len(devices)], compile, concurrent=number > 1)
            for index in range(min(number, clients))
        ]
        self.slots = Slots([worker.do for worker in self.workers])
        site.forward = RecordedForward(site.network, self.device_contexts[0].record_on_default_stream)

    @property
    def reasons(self) -> list[str]:
        """The reasons why steps could not be recorded and ran eagerly."""
        return sorted({reason for worker in self.workers for reason in worker.recorder.reasons})

    @property
    def setup_seconds(self) -> float:
        """The time spent so far on compiling and recording steps."""
        return sum(context.seconds for context in self.device_contexts)

    def notes(self) -> dict[str, Any]:
        """Return the seconds that compiling and recording took in the round, and the reasons why steps ran eagerly."""
        new, self._noted = self.setup_seconds - self._noted, self.setup_seconds
        return {"setup_seconds": new, **({"not_recorded": self.reasons} if self.reasons else {})}

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Run jobs.

        Args:
            jobs: The jobs.

        Returns:
            The results in the order of the jobs, on the server's device.

        Raises:
            InputError: If several clients would train at the same time and local steps draw random numbers.
        """
        before = _generators()
        for result in self.slots.run(jobs):
            yield handed_over(result, self.site.device)
        if len(self.workers) > 1 and not all(map(torch.equal, before, _generators())):
            raise InputError(
                "the model or the method draws random numbers in its local steps, which differ from run to run if "
                "clients train at the same time; set engine.slots = 1"
            )

    def close(self) -> None:
        """Stop the threads, and restore torch's settings."""
        self.slots.close()
        for worker in self.workers:
            worker.close()
        for context in self.device_contexts:
            context.close()
        self.site.forward = self.site.network
        self._flags.restore()


def devices_of(device: torch.device, workers: int) -> list[torch.device]:
    """Return the CUDA devices on which clients train, the site's own first.

    Args:
        device: The site's device. If it has a number, it is the only one.
        workers: The number of devices; 0 means all.

    Raises:
        InputError: If there are fewer devices.
    """
    first = torch.cuda.current_device() if device.index is None else device.index
    others: list[int] = [] if device.index is not None else [k for k in range(torch.cuda.device_count()) if k != first]
    if workers > 1 + len(others):
        raise InputError(f"engine.workers = {workers}: there are only {1 + len(others)} CUDA devices to work on")
    chosen = [first, *others][: workers or None]
    return [device if index == first else torch.device("cuda", index) for index in chosen]


class DeviceContext:
    """A device: the site whose data its slots share, and the thread in which steps are recorded.

    Everything that calls the network outside a replay does so in that thread, because libraries such as cuDNN keep
    their plans for a shape by thread.

    Args:
        site: The site.
        device: The device.
        record: A function that turns a step into its replay; by default a CUDA graph is captured.
    """

    def __init__(self, site: Site, device: torch.device, record: Record | None = None):
        self.site = site if device == site.device else site.twin(device)
        self.away = device != site.device
        """Whether the server is on another device."""
        self.device = device
        self.lock = CaptureLock()
        self.seconds = 0.0
        self.forwards: dict[str, Forward] = {}
        self._record = record or self._captured
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="fullrank-recorder")
        self.width = min(site.settings.batch_size, site.data.largest)
        site.data.pipeline.place(device, site.network.dtype)

    def record(self, step: Callable[[], None], changed: list[Tree], pool: Any = None) -> Callable[[], None]:
        """Record a step. No other thread starts work on the device meanwhile.

        Args:
            step: The step.
            changed: The trees that the step changes, which have their former values afterwards.
            pool: The memory pool of the graph.

        Returns:
            The replay of the step.
        """
        with self.lock.exclusive():
            start = time.monotonic()
            with _unchanged(changed, self.device):
                replay: Callable[[], None] = self.eagerly(lambda: self._record(step, pool))
            self.seconds += time.monotonic() - start
        return replay

    def record_on_default_stream(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record a step that changes no state, and return its replay for the device's default stream."""
        with self.lock.shared():
            if (stream := _stream(self.device)) is None:
                return self.record(step, [])
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                replay = self.record(step, [])
            torch.cuda.current_stream(self.device).wait_stream(stream)
            return replay

    def eagerly(self, work: Callable[[], Any]) -> Any:
        """Call a function that uses the network, in the thread for that, on the stream of the calling thread."""
        if self.device.type != "cuda":
            return self._builder.submit(work).result()
        stream = torch.cuda.current_stream(self.device)

        def there() -> Any:
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                return work()

        return self._builder.submit(there).result()

    def _captured(self, step: Callable[[], None], pool: Any) -> Callable[[], None]:
        """Capture a step in a graph on the current stream. Graphs of one pool never run at the same time."""
        for _ in range(WARM_UP):
            step()
        torch.cuda.current_stream(self.device).synchronize()
        graph = torch.cuda.CUDAGraph()
        with nothing_collected():
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # the capture has failed; the exception that made it fail is raised
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay

    def forward(self, stats: str) -> Forward:
        """Return the compiled network for a mode of the norm layers."""
        if stats not in self.forwards:
            self.forwards[stats] = Forward(self.site.network, stats)
        return self.forwards[stats]

    def close(self) -> None:
        """Stop the thread."""
        self._builder.shutdown()


class StreamWorker:
    """The resources of one slot: a copy of the network, a stream, and the steps recorded for them.

    Args:
        device_context: The device.
        compile: Whether the network is compiled.
        concurrent: Whether other slots work at the same time, so that a separate stream is needed.
    """

    def __init__(self, device_context: DeviceContext, compile: bool, concurrent: bool):
        self.device_context = device_context
        self.site = device_context.site.twin(device_context.device)
        self.stream = _stream(device_context.device)
        self.recorder = StepRecorder(self, self._backend)
        self.site.stepper_of = self.recorder.stepper
        self.site.forward = RecordedForward(self.site.network, lambda step: self.record(step, []))
        self._concurrent = concurrent
        self._pool: Any = None
        network, entries = self.site.network, self.site.entries
        self._compile = compile and isinstance(network.module, Net)
        self._paddable = can_be_padded(network)
        count_samples_(network)
        parameters = network.parameters()
        classes = [
            [n for n in names if n in parameters] for names in (entries.shared, entries.personal, entries.frozen)
        ]
        network.flatten_([name for names in classes for name in order_of(network, names)])

    def do(self, job: Job) -> Result:
        """Run one job on this slot's stream, and return its result when the stream has finished."""
        if self._concurrent:
            disable_seeding()
        with self.device_context.lock.shared():
            if self.stream is None:
                return self._with_uploads_copied(self.site.do(job))
            with torch.cuda.device(self.device_context.device), torch.cuda.stream(self.stream):
                self.stream.wait_stream(torch.cuda.default_stream(self.device_context.device))
                result = self._with_uploads_copied(
                    self.site.do(sent_to(self.device_context.device, job) if self.device_context.away else job)
                )
                with self.released():
                    self.wait()
        return result

    def _with_uploads_copied(self, result: Result) -> Result:
        """Copy uploads of methods that are the network's own tensors, because the next client overwrites those."""
        further = [parts for space, parts in result.upload.items() if space]
        own = {_storage(tensor) for tensor in self.site.network.tensors().values()} if further else set()
        for parts in further:
            for name, part in parts.items():
                if any(_storage(tensor) in own for tensor in vectors(part.tree)):
                    parts[name] = dataclasses.replace(part, tree=clone(part.tree))
        return result

    def record(self, step: Callable[[], None], changed: list[Tree]) -> Callable[[], None]:
        """Record a step in this slot's memory, and return its replay."""
        if self._pool is None and self.stream is not None:
            self._pool = torch.cuda.graph_pool_handle()
        return self.device_context.record(step, changed, self._pool)

    def eagerly(self, work: Callable[[], Any]) -> Any:
        """Call a function that uses the network outside a recorded step."""
        return self.device_context.eagerly(work)

    def released(self) -> AbstractContextManager[None]:
        """Let other slots record steps inside the block, in which this slot only replays."""
        return self.device_context.lock.released()

    def wait(self) -> None:
        """Wait until this slot's stream has finished its work."""
        if self.stream is not None:
            self.stream.synchronize()

    def close(self) -> None:
        """Free the recorded steps and their memory on the device."""
        self.recorder.static_buffers.clear()
        self.site.forward = self.site.network

    def _backend(self, step: Step, state: State, size: int) -> Bound:
        width = self.device_context.width
        if size == width and self._compile:
            return Compiled(self.site.network, state.trained, self.device_context.forward(step.stats))
        if size < width and self._paddable:
            return PaddedBatches(self.site.network, state.trained, width)
        return HalfWeights(self.site.network, state.trained)


class RecordedForward:
    """Runs the network in evaluation mode by replays of one recorded forward pass.

    Batches are padded to the size of that pass. Larger batches, and those in training mode, run eagerly.

    Args:
        network: The network.
        record: A function that turns a step into its replay.
    """

    def __init__(self, network: Network, record: Callable[[Callable[[], None]], Callable[[], None]]):
        self._network, self._record = network, record
        self._replay: Callable[[], None] | None = None
        self._x = torch.empty(0)
        self._out: Output | None = None

    def __call__(self, x: Tensor) -> Output:
        """Return scores and representation of prepared inputs."""
        width = at_once(x.device)
        if self._network.module.training or len(x) > width:
            return self._network(x)
        if self._replay is None:
            self._x = x.new_zeros(width, *x.shape[1:])
            try:
                self._replay = self._record(self._step)
            except RuntimeError:  # a user's forward that cannot be captured
                self._replay = self._step
        self._x[: len(x)].copy_(x)
        self._replay()
        assert self._out is not None
        logits, z, extras = self._out
        live = slice(len(x))
        return Output(logits[live].clone(), z[live].clone(), {name: t[live].clone() for name, t in extras.items()})

    @torch.no_grad()
    def _step(self) -> None:
        self._out = self._network(self._x)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@torch.no_grad()
def draws_numbers(site: Site) -> bool:
    """Return whether a training forward of the site's network draws random numbers.

    For the library's networks this follows from their layers; a user's network is tried on a few samples.
    """
    network = site.network
    if isinstance(network.module, Net) or network.has_dropout:
        return network.has_dropout
    client = max(site.data.clients, key=site.data.size)
    samples = site.samples(client)
    x, _ = samples.batch(torch.arange(min(2, len(samples)), device=samples.index.device), None, network.dtype)
    if network.has_batch_norm and len(x) < 2:
        return False
    with seeded(0, "trial", device=site.device), network.mode(train=True):
        before = _generators()
        network.at(clone(network.tensors()), x)
        return not all(map(torch.equal, before, _generators()))


def _generators() -> list[Tensor]:
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(index) for index in devices)]


@contextmanager
def _unchanged(trees: list[Tree], device: torch.device) -> Iterator[None]:
    """Restore these trees and the device's random generator at the end of the block."""
    saved = [clone(tree) for tree in trees]
    generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        for tree, before in zip(trees, saved, strict=True):
            copy_(tree, before)
        if generator is not None:
            torch.cuda.set_rng_state(generator, device)


_COLLECTOR = threading.Lock()
"""The lock of the thread that has disabled the garbage collector."""


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Disable Python's garbage collector inside the block.

    Garbage may include CUDA graphs of an engine that was closed, and freeing a graph would make a capture in progress
    fail.
    """
    with _COLLECTOR:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


class _Flags:
    """Disables TF32 in the exact modes, and restores torch's settings afterwards."""

    def __init__(self, exact: bool):
        self._before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        if exact:
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def restore(self) -> None:
        """Restore the settings."""
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = self._before
