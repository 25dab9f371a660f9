"""A run and its results: metrics, summary and models."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fullrank.config.experiment import Experiment, Recorded
from fullrank.engine.machine import threads
from fullrank.errors import InputError, nearest
from fullrank.federated.site import Stage, stages
from fullrank.files import Damaged, load_tensors
from fullrank.metrics.registry import METRICS, Metric, find_metrics, recorded_metrics
from fullrank.probe.files import read_probes
from fullrank.runs.assemble import Assembly, assemble, federate, without_data
from fullrank.runs.clients import ClientRow, Rows, flat_table, read_clients
from fullrank.runs.directory import RunDirectory, read_json, read_rows
from fullrank.runs.located import located
from fullrank.runs.prediction import Predictor
from fullrank.runs.recorded import check_data, data_facts
from fullrank.runs.summary import summarise
from fullrank.trees import Tensors, moved


@contextmanager
def _with_gradients() -> Iterator[None]:
    """Enable gradients where a model is built or trained, because the calling program may have disabled them."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


class Run:
    """A run, finished or not: its experiment, its metrics and its models. `fullrank.run` and `load_run` return it.

    Attributes:
        experiment: The experiment, with a value for every key.
        metrics: The metrics of each round, a list of dicts.
        path: The run directory; None if nothing was written.

    >>> import fullrank, tempfile
    >>> run = fullrank.run({"train.rounds": 2, "data.clients": 3, "model.name": "mlp"}, out=tempfile.mkdtemp())
    >>> run.complete, len(run.metrics), sorted(run.summary()["accuracy"])
    (True, 2, ['best', 'last', 'last5'])
    """

    def __init__(
        self,
        experiment: Experiment,
        metrics: list[dict[str, Any]],
        path: Path | None = None,
        assembly: Assembly | None = None,
        final: Tensors | None = None,
        ending: Mapping[str, Any] | None = None,
        probes: list[dict[str, Any]] | None = None,
        root: str = "",
        table: list[ClientRow] | None = None,
    ):
        self.experiment = experiment
        self.metrics = metrics
        self.path = path
        self._root = root
        self._assembly = assembly
        self._bare: Assembly | None = None
        """The run's parts with zeros for data."""
        self._final = final
        self._ending = dict(ending or {})
        self._probes = probes
        self._table = table
        self._predictors: dict[tuple[int | None, Stage | None], Predictor] = {}
        self._stripped = False
        """Whether the run was read from a directory without checkpoints, so that the state of the server is not
        known."""

    def __repr__(self) -> str:
        """Describe the run in one line: its experiment, the number of rounds, and its accuracy."""
        from fullrank.runs.display import one_line

        return f"Run({one_line(self)})"

    def _repr_html_(self) -> str:
        """Return the result as tables, which notebooks show."""
        from fullrank.runs.display import one_line, tables_of
        from fullrank.runs.notebook import html_of

        return html_of(one_line(self), tables_of(self))

    @property
    def complete(self) -> bool:
        """Whether all rounds are complete."""
        return bool(self.metrics) and self.metrics[-1]["round"] >= self.experiment.train.rounds

    @property
    def probes(self) -> list[dict[str, Any]]:
        """The probes of the representation (`probe.every`): one dict each, with arrays for spectra and matrices.

        `global` has the global model's measures, `locals` those of some clients' models as trained in that round,
        each with its `client`, and `cka` the similarity of those clients' models by layer.
        """
        if self._probes is None:
            self._probes = read_probes(self.path) if self.path is not None else []
        return self._probes

    def summary(self) -> dict[str, Any]:
        """Return the last value of each metric, its best over rounds, its mean over the last five, and totals.

        A key is missing if the run has no such value; "absent" then has the reason.
        """
        return summarise(self.metrics, self._ending, self.asked)

    def clients(self, by: str = "metric") -> Rows:
        """Return the results of the global model and of every client's own models as a table that pandas reads.

        Args:
            by: "metric" has one row for each client, stage, set and metric; "class" one for each class, with its
                recall; "confusion" one for each label and prediction that occur together.

        Returns:
            A list of dicts with `client` (None for the global model), `site` (its name, where clients are sites),
            `stage` ("global", "received", "local" or "personalised"), `set` ("holdout", or "test" for the test part of
            the client's own site) and `samples`; by metric and class also `value`, and `low` and `high`, the ends of
            its 95 % bootstrap interval over samples, None for a metric without one.

        Raises:
            InputError: If the run has not ended, or an earlier version wrote it.

        >>> import fullrank, tempfile
        >>> settings = {"train.rounds": 1, "data.clients": 3, "data.holdout": 0.2, "model.name": "mlp"}
        >>> rows = fullrank.run(settings, out=tempfile.mkdtemp()).clients()
        >>> [row["client"] for row in rows if row["stage"] == "local" and row["metric"] == "accuracy"]
        [0, 1, 2]
        """
        return flat_table(self._client_rows(), self.classes, by)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self._data_facts()["classes"])

    def kept(self) -> list[ClientRow] | None:
        """Return the rows of the run's table of models, or None if it has no table."""
        try:
            return self._client_rows()
        except Damaged:
            raise
        except InputError:
            return None

    def _client_rows(self) -> list[ClientRow]:
        if self._table is None:
            if self.path is None:
                raise InputError("the run has not ended, so its clients have not been evaluated")
            if not RunDirectory(self.path).result_round():
                raise InputError(
                    f'the run in "{self.path}" has not ended, so its clients have not been evaluated; the command that '
                    "started it continues it"
                )
            self._table = read_clients(self.path)
        return self._table

    @cached_property
    def asked(self) -> Sequence[Metric]:
        """The metrics of the run. Code that only its directory names is not imported."""
        names = self.experiment.evaluate.metrics
        if not isinstance(self.experiment, Recorded):
            return find_metrics(names)
        foreign = any(name not in METRICS.own for name in names)
        file = self.path / "environment.json" if self.path is not None else None
        history = read_json(file) if foreign and file is not None and file.is_file() else {}
        newest = {**history, **(history.get("resumed") or [{}])[-1]}
        return recorded_metrics(names, newest.get("metrics", {}))

    @_with_gradients()
    def model(self) -> nn.Module:
        """Return the trained global model in eval mode.

        A run directory suffices for it: no data are read.

        Returns:
            A module of the class of the model that the user gave, or a network of the library.

        Raises:
            InputError: If there is no complete global model, or its files are missing or damaged.
        """
        assembly = self._without_data()
        if assembly.no_global_model:
            raise InputError(f"there is no complete global model: {assembly.no_global_model}; use client_model(k)")
        return self._module(assembly, self._final_entries(assembly))

    @_with_gradients()
    def trained_parameters(self) -> int:
        """Return the number of parameters that are trained: those of the global model and those that clients keep.

        A run directory suffices for it: no data are read.

        >>> import fullrank, tempfile
        >>> settings = {"train.rounds": 1, "data.clients": 3, "model.name": "mlp", "model.width": 8}
        >>> fullrank.run(settings, tempfile.mkdtemp()).trained_parameters()
        682
        """
        assembly = self._without_data()
        trained = {*assembly.entries.shared, *assembly.entries.personal}
        return sum(tensor.numel() for name, tensor in assembly.network.parameters().items() if name in trained)

    @_with_gradients()
    def client_model(self, client: int, stage: Stage | None = None) -> nn.Module:
        """Return a client's own model in eval mode: the one whose metrics the run reports for that stage.

        It is read from the run directory if `run.keep_personal` is true, and otherwise computed from the client's data
        and the client's state.

        Args:
            client: The client's number.
            stage: "received" (the global model with the client's personal entries), "local" (after local training),
                or "personalised" (by the method); by default the last stage that the method has.

        Returns:
            The module.

        Raises:
            InputError: If there is no such client or stage, or the client's data or state are missing.
        """
        bare = self._without_data()
        chosen = self.stage_of(stage)
        if not 0 <= client < bare.federation.clients:
            raise InputError(f"there is no client {client}; clients are 0 to {bare.federation.clients - 1}")
        if chosen == self.stage_of(None) and (kept := self._kept(client)) is not None:
            return self._module(bare, moved(kept, bare.device))
        if self._stripped and (bare.entries.personal or chosen != "received"):
            raise InputError(
                f'the checkpoints in "{self.path}" are missing, and with them the state of the clients, from which '
                "their own models are computed"
            )
        assembly = self._assembled(f"the model of client {client} needs that client's data")
        server = assembly.server.holding(self._final_entries(assembly))
        job = dataclasses.replace(server.job("personal", client), stage=chosen)
        with threads(self.experiment.engine.threads):
            result = assembly.site.do(job)
        if result.error is not None:
            raise result.error
        return self._module(assembly, result.model)

    def predict(self, x: object, *, client: int | None = None, stage: Stage | None = None) -> torch.Tensor:
        """Return the probability of each class for a batch of samples, (N, C), on the CPU.

        Samples have the form of the run's data, for example uint8 images of the trained size, (N, C, H, W) or
        (N, H, W, C); they are prepared as in the run, without augmentation, and the model is in eval mode. The columns
        are in the order of the classes of the run's data.

        Args:
            x: A tensor or an array of samples.
            client: The number of a client, to predict with the client's own model in place of the global one.
            stage: The stage of the client's model, as in `client_model`.

        Raises:
            InputError: If the samples do not have the shape or the dtype of the run's data, or there is no such model.

        >>> import fullrank, tempfile
        >>> run = fullrank.run({"train.rounds": 1, "data.clients": 3}, tempfile.mkdtemp())
        >>> images = fullrank.data.load_dataset("digits").test.x
        >>> run.predict(images[:5]).shape
        torch.Size([5, 10])
        """
        which = (client, stage)
        if which not in self._predictors:
            self._predictors[which] = Predictor.of(self, client, stage)
        return self._predictors[which](x)

    def stage_of(self, stage: str | None) -> Stage:
        """Return a stage of the clients' own models.

        Args:
            stage: The name of the stage; None for the last stage that the method has.

        Raises:
            InputError: If the method does not have the stage.
        """
        known = stages(self._without_data().composition)
        for one in known:
            if one == (stage or known[-1]):
                return one
        if stage == "personalised":
            label = self.experiment.method_label
            raise InputError(f'the method "{label}" does not personalise; take the stage "received" or "local"')
        raise InputError(f'there is no stage "{stage}" of a client\'s model; {nearest(str(stage), known)}')

    def _kept(self, client: int) -> Tensors | None:
        """Return a client's own model as it was saved at the end of the run."""
        if self.path is None or not self.experiment.run.keep_personal:
            return None
        file = RunDirectory(self.path).personal_file(client)
        ended = RunDirectory(self.path).status(self.experiment.train.rounds).finished
        return self._read(file) if ended and file.is_file() else None

    def _module(self, assembly: Assembly, entries: Tensors) -> nn.Module:
        assembly.network.load(entries)
        assembly.site.restore_constants()
        return copy.deepcopy(assembly.network.module).eval()

    def _final_entries(self, assembly: Assembly) -> Tensors:
        if self._final is None:
            assert self.path is not None
            file = self.path / "model.safetensors"
            if self._stripped and not file.is_file():
                RunDirectory(self.path).check("read the model", self.experiment.train.rounds)
            current = file.is_file() and (self._stripped or RunDirectory(self.path).result_round())
            result = moved(self._read(file), assembly.device) if current else {}
            self._final = {**assembly.server.model, **result}
        return self._final

    def _read(self, file: Path) -> Tensors:
        try:
            return load_tensors(file)
        except Damaged as error:
            assert self.path is not None
            again = RunDirectory(self.path).how_to_repair()
            raise InputError(f'the model in "{file}" is damaged ({error}); {again}') from None

    def _assembled(self, why: str = "") -> Assembly:
        """Return the parts of the run, built from its directory if this process did not run it."""
        if self._assembly is None:
            self._reject_given()
            assert self.path is not None
            lead = f"{why}: " if why else ""
            if read_json(self.path / "partition.json").get("at_sites"):
                raise InputError(
                    f"{lead}the samples of this run are at the sites of a deployment; clients.jsonl has what they "
                    "measured; to evaluate the model here, name other data, as in `fullrank inspect RUN DATA`"
                )
            experiment = self._opened(data=True)
            try:
                federation = federate(experiment)
            except InputError as problem:
                raise InputError(f"{lead}{problem}; give the folder of the run's data with --root (root=)") from None
            assembly = assemble(experiment, federation=federation)
            check_data(self.path, assembly.federation)
            self._assembly = self._restored(assembly)
        return self._assembly

    def _without_data(self) -> Assembly:
        """Return the parts of the run with zeros for data; network, method, entries and server are those of the run."""
        if self._assembly is None and self._bare is None:
            self._reject_given()
            assert self.path is not None
            facts = read_json(self.path / "partition.json")
            if "dtype" not in facts["data"]:  # written before runs recorded what replaces the data
                return self._assembled()
            # Every entry comes from the run, so the file with which it started is not needed.
            experiment = self._opened(data=False).but(model__start="")
            try:
                federation = without_data(facts)
            except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
                raise InputError(f'"{self.path / "partition.json"}" is damaged ({error})') from None
            self._bare = assemble(experiment, federation=federation)
            # A result has every entry of the global model, so that a damaged checkpoint does no harm to it.
            self._stripped = not RunDirectory(self.path).last_round()
            if not RunDirectory(self.path).result_round():
                self._restored(self._bare)
        found = self._assembly or self._bare
        assert found is not None
        return found

    def _data_facts(self) -> dict[str, Any]:
        """Return what is recorded of the run's data, from its directory if the data are not loaded."""
        if self._assembly is not None:
            return data_facts(self._assembly.federation)
        assert self.path is not None
        found: dict[str, Any] = read_json(self.path / "partition.json")["data"]
        return found

    def _opened(self, *, data: bool) -> Experiment:
        """Return the experiment of the run for use in this process."""
        assert self.path is not None
        recorded = self.experiment
        experiment = (
            recorded.opened(data=data, track=False, engine=False) if isinstance(recorded, Recorded) else recorded
        )
        return located(experiment, self.path, read_json(self.path / "partition.json"), self._root)

    def _restored(self, assembly: Assembly) -> Assembly:
        assert self.path is not None
        directory = RunDirectory(self.path)
        directory.restore(assembly.server, assembly.device)
        self._stripped = not directory.last_round()
        return assembly

    def _reject_given(self) -> None:
        if self.experiment.is_given:
            raise InputError(
                f'the model of "{self.path}" was given to fullrank.fit by a program: pass the same module, clients and '
                f'settings to fullrank.fit with out="{self.path}", which returns the run without training it again'
            )


def load_run(path: str | Path, *, trust: bool = False, root: str | Path = "") -> Run:
    """Load a finished or unfinished run from its directory.

    Args:
        path: The directory.
        trust: Whether code outside the library that the directory names (`package.module:object` of a model, method or
            data set) may be imported, which runs it. Metrics, and models of the library's own networks, need none.
        root: The folder of the data, if it is not the one of the run; only a client's own model needs them.

    Returns:
        The run.

    Raises:
        InputError: If the directory is not the directory of a run, or if code outside the library would be imported
            without `trust`.

    >>> import fullrank, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> finished = fullrank.run({"train.rounds": 1, "data.clients": 3, "model.name": "mlp"}, out=folder)
    >>> load_run(folder).metrics == finished.metrics
    True
    """
    path = Path(path)
    if not (path / "experiment.toml").is_file():
        raise InputError(f'"{path}" is not a run directory: it has no experiment.toml')
    experiment = Recorded.by(path, trust)
    rows = read_rows(path)
    current = RunDirectory(path).result_round() == (rows[-1]["round"] if rows else 0)
    ending = read_json(path / "summary.json").get("ending", {}) if rows and current else {}
    return Run(experiment, rows, path, ending=ending, root=str(root))


def run_at(path: str | Path, trust: bool = False, root: str | Path = "") -> Run:
    """Load the run of a directory that a user has named.

    Args:
        path: The directory.
        trust: As in `load_run`.
        root: As in `load_run`.

    Raises:
        InputError: If there is no such directory, or `load_run` rejects it.
    """
    if not Path(path).exists():
        raise InputError(f'there is no run "{path}"')
    return load_run(path, trust=trust, root=root)


def chosen_model(run: Run, client: int | None, stage: Stage | None = None) -> nn.Module:
    """Return the model that options of the command line choose.

    Args:
        run: The run.
        client: The number of a client, for the client's own model; None for the global model.
        stage: The stage of the client's model.

    Raises:
        InputError: If the run has no such model; the message names the options.
    """
    if client is None and stage is not None:
        raise InputError(
            f'the stage "{stage}" is of a client\'s own model: choose the model of client K with --client K (client=K)'
        )
    lacking = run._without_data().no_global_model
    if client is None and lacking:
        raise InputError(
            f"there is no complete global model: {lacking}; choose the model of client K with --client K (client=K)"
        )
    return run.model() if client is None else run.client_model(client, stage)


def check_model(run: Run, use: str) -> None:
    """Check that a run directory has the model of the run.

    Args:
        run: The run; one of this process has its model in any case.
        use: The purpose, a key of `MESSAGES`.

    Raises:
        InputError: If the model is missing.
    """
    if run.path is not None and run._assembly is None and not (run.path / "model.safetensors").is_file():
        RunDirectory(run.path).check(use, run.experiment.train.rounds)
