"""Engines run client jobs. `serial` defines what is correct; every other must reproduce it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ..site import Job, Result, Site
from .serial import Serial

__all__ = ["Engine", "Serial", "choose", "open_engine"]


class Engine(Protocol):
    """What the server asks of an engine."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """Do the jobs, in whatever order and place; give the results in the jobs' order."""

    def close(self) -> None:
        """Give back whatever the engine holds."""


def choose(name: str) -> str:
    """The engine that `auto` stands for. The rule is written here and never depends on timing."""
    return "serial" if name == "auto" else name


def open_engine(name: str, site: Site) -> Engine:
    """An engine by its name."""
    return {"serial": Serial}[name](site)
