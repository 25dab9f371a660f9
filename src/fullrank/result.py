"""A run read back: its metrics, its summary, its models."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .assemble import Assembly, assemble, is_given
from .config import Experiment, Recorded
from .errors import Refusal
from .files import Damaged, load_tensors
from .probe.files import read_probes
from .rundir import RunDirectory, read_json, read_rows
from .summary import summarise
from .trees import Tensors, moved


class Run:
    """A run, finished or not: its experiment, its metrics, its models."""

    def __init__(
        self,
        experiment: Experiment,
        metrics: list[dict[str, Any]],
        path: Path | None = None,
        assembly: Assembly | None = None,
        final: Tensors | None = None,
        ending: Mapping[str, Any] | None = None,
        probes: list[dict[str, Any]] | None = None,
    ):
        self.experiment = experiment
        self.metrics = metrics
        self.path = path
        self._assembly = assembly
        self._final = final
        self._ending = dict(ending or {})
        self._probes = probes
        self._stripped = False
        """Put together again from a directory without checkpoints: nothing is known of what the server had."""

    @property
    def complete(self) -> bool:
        """Whether all rounds have been played."""
        return bool(self.metrics) and self.metrics[-1]["round"] >= self.experiment.train.rounds

    @property
    def probes(self) -> list[dict[str, Any]]:
        """The looks at the representation (`probe.every`): a dict each, with arrays for spectra and matrices.

        `global` has the global model's measures, `locals` those of some clients' models as trained in that round,
        each with its `client`, and `cka` by layer how alike those clients are.
        """
        if self._probes is None:
            self._probes = read_probes(self.path) if self.path is not None else []
        return self._probes

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers: each measure's last value, its best over rounds, its mean over the last five."""
        return summarise(self.metrics, self._ending)

    def model(self) -> nn.Module:
        """The trained global model, in eval mode; the user's own class where the user gave one."""
        assembly = self._assembled()
        if assembly.no_global_model:
            raise Refusal(f"there is no complete global model: {assembly.no_global_model}; use client_model(k)")
        return self._module(self._final_entries())

    def client_model(self, client: int) -> nn.Module:
        """A client's own model: the global one with the client's personal entries, personalised by the method."""
        assembly = self._assembled()
        if not 0 <= client < assembly.federation.clients:
            raise Refusal(f"there is no client {client}; clients are 0 to {assembly.federation.clients - 1}")
        if self._stripped and (assembly.entries.personal or assembly.composition.defined("personalise")):
            raise Refusal(
                f'what clients keep in "{self.path}" is gone with its checkpoints, and so are their own models'
            )
        job = assembly.server.holding(self._final_entries()).job("personal", client)
        with threads(self.experiment.engine.threads):
            result = assembly.site.do(job)
        if result.error is not None:
            raise result.error
        return self._module(result.model)

    def _module(self, entries: Tensors) -> nn.Module:
        network = self._assembled().network
        network.load(entries)
        self._assembled().site.restore_constants()
        return copy.deepcopy(network.module).eval()

    def _final_entries(self) -> Tensors:
        assembly = self._assembled()
        if self._final is None:
            assert self.path is not None
            file = self.path / "model.safetensors"
            if self._stripped and not file.is_file():
                raise Refusal(f'there is no model in "{self.path}": neither a checkpoint nor model.safetensors')
            current = file.is_file() and (self._stripped or RunDirectory(self.path).result_round())
            result = moved(self._read(file), assembly.device) if current else {}
            self._final = {**assembly.server.model, **result}
        return self._final

    def _read(self, file: Path) -> Tensors:
        try:
            return load_tensors(file)
        except Damaged as error:
            again = how_to_have_it_again(file.parent)
            raise Refusal(f'the model in "{file}" is damaged ({error}); {again}') from None

    def _assembled(self) -> Assembly:
        """The run's parts, put together again from the directory if this process did not run it."""
        if self._assembly is None:
            assert self.path is not None
            if is_given(self.experiment):
                raise Refusal(
                    f'the model or data of "{self.path}" came from a program; call fullrank.fit with them again'
                )
            self._assembly = assemble(self.experiment)
            self._assembly.check_data(self.path)
            directory = RunDirectory(self.path)
            directory.restore(self._assembly.server, self._assembly.device)
            self._stripped = not directory.last_round()
        return self._assembly


def how_to_have_it_again(path: Path) -> str:
    """What to do about a run's model that is lost or damaged."""
    if RunDirectory(path).last_round():
        return "the command that started the run writes it again from the last checkpoint"
    return "run the same experiment in another directory to have it again"


def load_run(path: str | Path) -> Run:
    """A finished or unfinished run directory."""
    path = Path(path)
    if not (path / "experiment.toml").is_file():
        raise Refusal(f'"{path}" is not a run directory: it has no experiment.toml')
    experiment = Recorded.by(path)
    rows = read_rows(path)
    current = RunDirectory(path).result_round() == (rows[-1]["round"] if rows else 0)
    ending = read_json(path / "summary.json").get("ending", {}) if rows and current else {}
    return Run(experiment, rows, path, ending=ending)


def run_here(path: str | Path) -> Run:
    """A run directory, its models to be used on this machine: on the CPU where the run's GPU is missing."""
    if not Path(path).exists():
        raise Refusal(f'there is no run "{path}"')
    run = load_run(path)
    table = run.experiment.engine
    if table.device.startswith("cuda") and not torch.cuda.is_available():
        # What was trained on a GPU is often wanted where there is none, and bfloat16 is for GPUs.
        precision = "float64" if table.precision == "float64" else "float32"
        engine = {"device": "", "name": "serial", "precision": precision}
        run.experiment = run.experiment.but(**{f"engine__{key}": value for key, value in engine.items()})
    return run


def chosen_model(run: Run, client: int | None) -> nn.Module:
    """The global model or a client's own, for a user who may be at a command line."""
    lacking = run._assembled().no_global_model
    if client is None and lacking:
        raise Refusal(f"there is no complete global model: {lacking}; choose client K's with --client K (client=K)")
    return run.model() if client is None else run.client_model(client)


def refuse_lost_model(run: Run) -> None:
    """Of a run that this process did not make and that has all its rounds, if its directory no longer has the model."""
    if run.path is None or run._assembly is not None or (run.path / "model.safetensors").is_file():
        return
    directory, rounds = RunDirectory(run.path), run.experiment.train.rounds
    # One that was stopped between its last round and its end still has a checkpoint, and can go on.
    if run.complete and (directory.finished(rounds) or not directory.last_round()):
        raise Refusal(
            f'the run in "{run.path}" has all its rounds ({rounds}), but no model.safetensors: it was not kept; '
            f"{how_to_have_it_again(run.path)}"
        )


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many of torch's threads inside, as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
