"""The connection of this process to Ray: to a cluster, or to a local Ray that is started for the purpose."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from fullrank.errors import InputError

RUNNING = "auto"
"""The address that means the cluster of which this machine is a node, as it does for Ray."""
REACH_SECONDS = 5.0
"""The number of seconds in which a cluster must accept a connection. Ray waits for minutes."""
SHOWN_DIGITS = 8
"""The number of digits of a node's id in messages."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to the makers of Ray
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it every start prints a warning
}
LOCAL = {**QUIET, "RAY_worker_niceness": "0"}
"""Environment variables of a local Ray. Its workers have the priority of other processes, not a lower one."""


class Cluster:
    """A connection to Ray, which `close` ends, and with it a Ray that was started here.

    If the process is connected to Ray already, because the user's program is, that connection is used and stays.

    Args:
        address: The address of a cluster as "host:port", "auto" for the one of which this machine is a node, or "" for
            a local Ray that is started now.
        cpus: The number of CPUs of a local Ray.
        key: The key or argument with the address, which errors mention.
        asked: What asked for Ray, which the error mentions if it is not installed.

    Raises:
        InputError: If Ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self, address: str = "", cpus: int = 1, key: str = "engine.address", asked: str = 'engine.name = "ray"'
    ):
        self.ray = _imported(asked)
        self.address = address
        self._key = key
        self._own = not self.ray.is_initialized()
        if self._own:
            with _signal_handlers_kept():
                self._connect(cpus)
        elif address and address != RUNNING:
            self._check_same()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        """End the connection."""
        self.close()

    @property
    def name(self) -> str:
        """The name of the cluster in errors."""
        return f'the Ray cluster at "{self.address}"' if self.address not in ("", RUNNING) else "the Ray cluster"

    def total(self, resource: str) -> float:
        """Return how much of a resource, such as "CPU" or "GPU", all nodes have together."""
        return float(self.ray.cluster_resources().get(resource, 0.0))

    def largest(self, resource: str) -> float:
        """Return how much of a resource the node has that has most of it."""
        nodes = (node for node in self.ray.nodes() if node["Alive"])
        return max((float(node["Resources"].get(resource, 0.0)) for node in nodes), default=0.0)

    def close(self) -> None:
        """End the connection; a Ray that was started for it ends too."""
        if self._own and self.ray.is_initialized():
            self.ray.shutdown()

    def _connect(self, cpus: int) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        if not self.address:
            with _environment(LOCAL):
                self.ray.init(address="local", num_cpus=cpus, include_dashboard=False, **common)
        else:
            address = self._checked_address()
            try:
                with _environment(QUIET):
                    self.ray.init(address=address, **common)
            except Exception as error:
                raise InputError(f'{self._key} = "{self.address}": {_why_not(error)}') from None
        # Ray prints events of other processes to standard output; this library reports those that matter.
        printing: Any = importlib.import_module("ray._private.worker")
        printing._worker_logs_enabled = False

    def _checked_address(self) -> str:
        """Return the address of the cluster as "host:port", once it accepts connections."""
        address = _running_here(self._key) if self.address == RUNNING else self.address
        if "://" in address:
            raise InputError(
                f'{self._key} = "{address}": connections through Ray Client are not possible; start the command on a '
                f'node of the cluster, and give its address as "host:port" or "{RUNNING}"'
            )
        host, colon, port = address.rpartition(":")
        if not colon or not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 2**16:
            raise InputError(f'{self._key} = "{address}": must be "host:port", as in "10.0.0.1:6379", or "{RUNNING}"')
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except OSError as error:
            raise InputError(
                f'{self._key} = "{address}": no Ray cluster answers there ({error.strerror or error}); `ray status` on '
                "its head node says whether it is running"
            ) from None
        return address

    def _check_same(self) -> None:
        connected = self.ray.get_runtime_context().gcs_address
        if self._checked_address() != connected:
            raise InputError(
                f'{self._key} = "{self.address}": this process is connected to the Ray cluster at "{connected}"; call '
                "ray.shutdown() first"
            )


def _imported(asked: str) -> Any:
    try:
        with _environment(QUIET):
            return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise InputError(f"{asked} needs Ray; pip install 'fullrank[ray]'") from None


def _running_here(key: str) -> str:
    """Return the address of the cluster of which this machine is a node."""
    services = importlib.import_module("ray._private.services")
    try:
        return str(services.canonicalize_bootstrap_address(RUNNING))  # RAY_ADDRESS, or what runs here
    except (ConnectionError, ValueError):
        raise InputError(
            f'{key} = "{RUNNING}": no Ray cluster is running on this machine; start one with `ray start --head`, or '
            'give the address of another as "host:port"'
        ) from None


def _why_not(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"the cluster has other versions than this process ({text[:300]}); install the same on all nodes"
    return (
        f"Ray could not connect ({text[:300]}); the command must be started on a node of the cluster, which `ray start "
        "--address=HOST:PORT` makes of this machine"
    )


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block where the user has not set them."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Restore the handlers of signals after the block, in which Ray sets handlers that end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def node_name(address: str, identity: str) -> str:
    """Return what messages call a node: its address, and the first digits of its id, as `ray list nodes` shows it."""
    return f"{address} ({identity[:SHOWN_DIGITS]})"


def cause(error: Exception) -> str:
    """Return why Ray lost a worker, as a clause."""
    text = str(error)
    if "No module named" in text:
        module = re.search(r"No module named '?([\w.]+)", text)
        return f"the module {module[1] if module else ''} is not installed there"
    if "OutOfMemory" in type(error).__name__ or "memory monitor" in text or "running low on memory" in text:
        return "its memory ran out"
    if "node has died" in text or "node was terminated" in text or "NodeDied" in type(error).__name__:
        return "the node was lost"
    if "unavailable" in text or "Unavailable" in type(error).__name__:
        return "the connection to it was lost"
    return "its process died"
