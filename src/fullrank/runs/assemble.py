"""Building the parts of a run from its experiment: divided data, network, site, server, and the engine's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fullrank import methods
from fullrank.config.experiment import Experiment
from fullrank.config.schema import Statistics
from fullrank.data import DataSet, Pipeline, Split, load_dataset
from fullrank.data.columns import Column
from fullrank.data.federation import Federation, divide, keep_unseen, table_statistics
from fullrank.data.hosted import HostedData
from fullrank.engine.facts import facts_about
from fullrank.engine.machine import find_device
from fullrank.engine.resolve import CHOICES, Resolved, resolve_engine
from fullrank.errors import InputError
from fullrank.federated.sampling import ClientSampler, participants
from fullrank.federated.server import Server
from fullrank.federated.site import Site
from fullrank.federated.uploads import ExpectedUploads, SyntheticClient
from fullrank.local.client import decayed
from fullrank.local.settings import Schedule, Settings
from fullrank.methods import Composition, Method
from fullrank.metrics.registry import find_metrics
from fullrank.models.entries import Entries, classify, select
from fullrank.models.network import Network
from fullrank.plugins import GIVEN, SITES, collecting_files
from fullrank.runs.evaluation import GlobalEvaluator
from fullrank.runs.network import build_network, set_up_for
from fullrank.runs.starting import StartReport, start_from


@dataclass(frozen=True)
class Assembly:
    """The parts of one run."""

    experiment: Experiment
    """The experiment that the run records: in place of `auto` its table `[engine]` has what was chosen."""
    engine: Resolved
    """The complete table `[engine]`, and the reason for each choice."""
    federation: Federation
    network: Network
    composition: Composition
    entries: Entries
    server: Server
    site: Site
    evaluator: GlobalEvaluator
    device: torch.device
    no_global_model: str | None = None
    """Why there is no complete global model, or None."""
    start: StartReport | None = None
    """Which entries of the file of `model.start` fitted the model, if the experiment names a file."""
    files_read: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that a user's model function read, by path."""


def assemble(
    experiment: Experiment,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
    head: str | None = None,
    engines: Sequence[str] = CHOICES,
    own_precision: str = "",
    start: Path | None = None,
) -> Assembly:
    """Build the parts of a run.

    Args:
        experiment: The experiment. Its table `[engine]` is resolved after the method has shaped the network.
        federation: Divided data in place of those that the experiment names.
        module: A module in place of the model that the experiment names.
        method: A method in place of the one that the experiment names.
        head: Name of the module's classifier.
        engines: The engines that `auto` may choose.
        own_precision: The precision that `auto` keeps on a GPU.
        start: A file with all initial weights in place of that of `model.start`.

    Raises:
        InputError: If the experiment does not fit the data, the model, the method or the machine.

    Returns:
        The parts of the run.
    """
    experiment = Experiment.of(experiment)
    device = find_device(experiment.engine.device, experiment.engine.name)
    federation = federation or federate(experiment)
    with collecting_files() as files_read:
        site, engine, started = _site(
            experiment,
            federation,
            federation.hosted(),
            device,
            module,
            method,
            head,
            engines=engines,
            own_precision=own_precision,
            start=start,
        )
    common: dict[str, Any] = {"network": site.network, "composition": site.composition, "entries": site.entries}
    server = Server(
        **common,
        sampler=ClientSampler(
            federation.size,
            federation.clients,
            federation.unseen,
            participation=experiment.train.participation,
            seed=experiment.seed,
        ),
        weights=_weights(experiment, federation),
        expected=ExpectedUploads(site.composition, SyntheticClient(site)),
        aggregator=experiment.train.aggregator,
        on_client_error=experiment.run.on_client_error,
        min_clients=experiment.run.min_clients,
        personal_travels=module is not None or bool(experiment.model.start),
    )
    no_global_model = _why_no_global_model(**common)
    return Assembly(
        experiment=experiment.but(engine=dict(engine.recorded)) if engine.recorded else experiment,
        engine=engine,
        federation=federation,
        **common,
        server=server,
        site=site,
        evaluator=GlobalEvaluator(
            site, federation, no_global_model, samples=experiment.evaluate.samples, seed=experiment.seed
        ),
        device=device,
        no_global_model=no_global_model,
        start=started,
        files_read=files_read,
    )


def _why_no_global_model(network: Network, composition: Composition, entries: Entries) -> str | None:
    """Return why the server's model lacks entries that a prediction needs, as a clause, or None if it is complete."""
    client_only = select(network, [selector for part in composition.parts for selector in part.client_only])
    own = [name for name in entries.personal if name not in client_only]
    return f"{len(own)} entries of the model are each client's own ({own[0]} …)" if own else None


def assemble_site(
    experiment: Experiment,
    facts: Mapping[str, Any],
    data: HostedData,
    *,
    module: nn.Module | None = None,
    method: Method | None = None,
) -> Site:
    """Build a site for the clients whose data are here, without the data of any other client.

    On a CPU it gives the same results for these clients as the site of a simulation, to the bit.

    Args:
        experiment: The experiment that the federation runs.
        facts: What is recorded of the federation in `partition.json`, as `federation_facts` returns it.
        data: The hosted clients' samples, as `hosted_data` returns them.
        module: The model, in place of the one that the experiment names.
        method: The method, in place of the one that the experiment names.
    """
    experiment = Experiment.of(experiment)
    device = find_device(experiment.engine.device, experiment.engine.name)
    return _site(experiment, without_data(facts), data, device, module, method)[0]


def hosted_data(
    experiment: Experiment, facts: Mapping[str, Any], clients: Mapping[int, Sequence[Split | None]]
) -> HostedData:
    """Return the data of clients in the form in which a site takes them.

    Args:
        experiment: The experiment, which says how inputs are prepared.
        facts: What is recorded of the federation in `partition.json`.
        clients: The training samples, the hold-out and, where it has one, the test part of each client, by its id.
    """
    shape = without_data(facts)
    prepare = dataclasses.replace(
        Pipeline.build(shape.data, "none", experiment.data.augment), statistics=shape.pipeline.statistics
    )
    return HostedData.of(clients, prepare, shape.data.num_classes, shape.seen)


def _site(
    experiment: Experiment,
    shape: Federation,
    data: HostedData,
    device: torch.device,
    module: nn.Module | None = None,
    method: Method | None = None,
    head: str | None = None,
    *,
    engines: Sequence[str] = CHOICES,
    own_precision: str = "",
    start: Path | None = None,
) -> tuple[Site, Resolved, StartReport | None]:
    """Return a site with these data, its engine, and what of its initial weights fitted, if a file has them.

    The network's size follows from the shape of the samples. Precision and memory layout do not depend on the samples,
    so that a site of a few clients chooses them as all do.
    """
    table, train, schedule = experiment.method, experiment.train, _schedule(experiment)
    composition = Composition(method or methods.build(table.name, **table.tables), experiment.train.criterion)
    network = build_network(experiment, shape, composition, module, head or experiment.model.head or None, device)
    given = experiment.model.start
    started = start_from(network, start or given, experiment.model.start_partial and not start) if given else None
    facts = facts_about(
        network,
        composition,
        shape,
        schedule,
        device,
        clients=participants(train.participation, len(shape.seen)),
        epochs=train.epochs,
        steps=train.steps,
        batch_size=train.batch_size,
        allowed=engines,
        own_precision=own_precision,
    )
    engine = resolve_engine(experiment.engine, facts)
    set_up_for(network, engine)
    entries = classify(network, composition.personal, experiment.model.freeze, experiment.train.buffers)
    if not any(name in entries.shared or name in entries.personal for name in network.parameter_names):
        raise InputError("model.freeze: every parameter of the model is frozen, so there is nothing to train")
    settings = _settings(experiment)
    decayed(network, settings)  # rejects selectors that name nothing before any client would
    site = Site(
        network,
        composition,
        entries,
        dataclasses.replace(data, count_holdouts=_counts_holdouts(experiment)),
        settings,
        schedule,
        keep_optimiser=experiment.train.optimizer_state == "keep",
        seed=experiment.seed,
        device=device,
        metrics=find_metrics(experiment.evaluate.metrics),
    )
    return site, engine, started


def _counts_holdouts(experiment: Experiment) -> bool:
    """Return whether a client's weight in a mean counts its hold-out too."""
    return experiment.train.weight_by == "all"


def _weights(experiment: Experiment, federation: Federation) -> Callable[[int], int]:
    """Return a function that returns the number of samples by which a client is weighted."""
    if not _counts_holdouts(experiment):
        return federation.size
    return lambda client: federation.size(client) + federation.held_out(client)


def federate(experiment: Experiment, data: DataSet | None = None) -> Federation:
    """Divide a data set among the clients of an experiment.

    Args:
        experiment: The experiment.
        data: A data set in place of the one that the experiment names.

    Raises:
        InputError: If the data cannot be loaded or divided.
    """
    experiment = Experiment.of(experiment)
    table = experiment.data
    if table.name == SITES:
        raise InputError(
            f'data.name = "{SITES}" stands for samples that the sites of a deployment have; "fullrank flower new" '
            "writes an app that runs there"
        )
    if GIVEN in (table.name, table.partition):
        raise InputError(
            f'data.name and data.partition = "{GIVEN}" stand for data that a program passes to fullrank.fit'
        )
    data = data or load_dataset(table.name, table.root, seed=experiment.seed, **table.reading)
    seed = experiment.seed if table.seed < 0 else table.seed
    keys = {**table.model_dump(exclude={"partition_options"}), "seed": seed}
    divided = divide(data, pipeline(experiment, data), table.partition, keys, table.partition_options)
    federation = keep_unseen(divided, table.unseen, seed)
    if not data.columns or table.normalise != "auto":
        return federation
    return dataclasses.replace(federation, pipeline=Pipeline(table_statistics(federation)))


def without_data(facts: Mapping[str, Any]) -> Federation:
    """Return a federation of the shape that a run recorded, with zeros for inputs."""
    described = facts["data"]
    zeros = torch.zeros(2, *described["input_shape"], dtype=getattr(torch, described["dtype"]))
    columns = tuple(map(Column.of, described.get("columns", ())))
    train = Split(zeros, torch.zeros(2, dtype=torch.int64), missing=bool(columns))
    usual = tuple(described.get("augment", ()))
    data = DataSet(described["name"], train, None, tuple(described["classes"]), augment=usual, columns=columns)
    statistics = (tuple(described["mean"]), tuple(described["std"])) if described["mean"] is not None else None
    nothing = np.empty(0, np.int64)
    parts = [nothing] * facts["clients"]
    crop = described.get("crop")
    prepare = Pipeline(statistics, crop=tuple(crop) if crop else None)
    return Federation(data, parts, parts, nothing, prepare, np.array(facts["unseen"], np.int64))


def pipeline(experiment: Experiment, data: DataSet) -> Pipeline:
    """Return the pipeline that prepares batches of an experiment's data."""
    normalise = experiment.data.normalise
    numbers = normalise.model_dump() if isinstance(normalise, Statistics) else normalise
    return Pipeline.build(data, numbers, experiment.data.augment)


def _settings(experiment: Experiment) -> Settings:
    table = experiment.train.model_dump()
    values = {field.name: table[field.name] for field in dataclasses.fields(Settings) if field.name in table}
    if not isinstance(values["decay_on"], str):
        values["decay_on"] = tuple(values["decay_on"])
    return Settings(**values)


def _schedule(experiment: Experiment) -> Schedule:
    table = experiment.train
    return Schedule(table.lr_schedule, table.rounds, table.warmup, table.decay, table.decay_every, table.lr_schedule_by)
