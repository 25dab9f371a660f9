"""From an experiment to everything a run needs: data divided, network built, server and site ready."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fullrank import methods, models
from fullrank.config.experiment import Experiment
from fullrank.config.schema import EngineTable, Statistics
from fullrank.data import DataSet, Pipeline, Split, load_dataset, resized
from fullrank.data.federation import Federation, divide, keep_unseen
from fullrank.data.hosted import HostedData
from fullrank.errors import InputError
from fullrank.federated.sampling import ClientSampler
from fullrank.federated.server import Server
from fullrank.federated.site import Site
from fullrank.federated.uploads import ExpectedUploads, Rehearsal
from fullrank.files import Damaged, load_tensors
from fullrank.local.client import decayed
from fullrank.local.settings import Schedule, Settings
from fullrank.methods import Composition, Method
from fullrank.metrics.evaluate import FeatureRange, evaluate
from fullrank.metrics.measures import find_metrics
from fullrank.models.entries import Entries, classify, select
from fullrank.models.findhead import find_head
from fullrank.models.net import Net
from fullrank.models.network import Network, takes_channels_last
from fullrank.plugins import GIVEN, collecting_files, hooked
from fullrank.randomness import seeded
from fullrank.runs.directory import read_json
from fullrank.runs.sources import fingerprints
from fullrank.trees import Tensors

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass
class Assembly:
    """The parts of one run, put together."""

    experiment: Experiment
    federation: Federation
    network: Network
    composition: Composition
    entries: Entries
    server: Server
    site: Site
    device: torch.device
    files_read: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files that a model function of the user's read, by path."""

    @property
    def no_global_model(self) -> str | None:
        """Why there is no complete global model, or None."""
        aside = select(self.network, [selector for part in self.composition.parts for selector in part.aside])
        own = [name for name in self.entries.personal if name not in aside]
        return f"{len(own)} entries of the model are each client's own ({own[0]} …)" if own else None

    def cautions(self) -> list[str]:
        """What a user must know of a run that can be made, but is not what a method or the network promises."""
        parts = self.composition.parts
        said = [text for part in parts if (text := part.caution(self.site.settings))]
        counts, seen = self.federation.class_counts, self.federation.seen
        said += [text for part in parts if (text := part.caution_of_data(counts[seen], seen))]
        made_for = (getattr(module, "made_for", "") for module in self.network.module.modules())
        wanted = next(filter(None, made_for), "")
        if wanted and wanted not in [part.name for part in parts]:
            said.append(
                f'the network is made for the method "{wanted}", which is missing, so it trains by plain gradients; '
                "name it in method.name, alone or with others (+)"
            )
        data = self.federation.data
        if self.experiment.data.normalise == "auto" and data.images and data.mean is None:
            said.append(
                f'the images of "{data.name}" are only divided by 255, because data.normalise = "auto" knows no '
                'statistics of them; give data.normalise = { mean = [...], std = [...] }, or "half", or "none" if this '
                "is meant"
            )
        # Some authors' partitions lose a few samples, and one client alone, as in a search, is a part taken on purpose.
        if self.federation.orphaned and self.federation.clients > 1:
            said.append(f"the partition leaves data out: {self.federation.left_out()}")
        if torn := self.federation.shared_groups():
            said.append(
                f"{torn} groups (samples that belong together, such as those of one patient) have samples at several "
                "clients"
            )
        return said

    def facts(self) -> dict[str, Any]:
        """What is recorded of the data and their division, and where relative paths of the experiment start."""
        return {"data": self.data_facts(), **self.federation.describe(), "working_directory": os.getcwd()}

    def data_facts(self) -> dict[str, Any]:
        """What is recorded of the data: enough to build the network and to prepare inputs without them."""
        data, statistics = self.federation.data, self.federation.pipeline.statistics
        return {
            "name": data.name,
            "fingerprint": data.fingerprint(),
            "train": len(data.train),
            "test": len(data.test) if data.test is not None else 0,
            "classes": list(data.classes),
            "input_shape": list(data.input_shape),
            "dtype": str(data.train.x.dtype).removeprefix("torch."),
            "mean": list(statistics[0]) if statistics else None,
            "std": list(statistics[1]) if statistics else None,
            "augment": list(data.augment),
        }

    def check_data(self, path: Path) -> None:
        """Reject data or a division other than those with which the run in a directory was started."""
        recorded, federation = read_json(path / "partition.json"), self.federation
        for what, before, after in (
            ("the data set's content", recorded["data"]["fingerprint"], federation.data.fingerprint()),
            ("the partition", recorded["hash"], federation.hash),
        ):
            if before != after:
                raise InputError(
                    f'{what} is not what it was when "{path}" was started ({before[:12]}… is now {after[:12]}…)'
                )

    def files(self) -> dict[str, str]:
        """SHA-256 of the files that the experiment's model comes from, by key."""
        table = self.experiment.model
        named = {"model.start": table.start, "model.scales": table.options.get("scales")}
        found = {
            key: hashlib.sha256(Path(name).read_bytes()).hexdigest()
            for key, name in named.items()
            if isinstance(name, str) and Path(name).is_file()
        }
        return {**found, **{f"model.name ({path})": digest for path, digest in self.files_read.items()}}

    def sources(self) -> dict[str, str]:
        """Return the fingerprints of the user's own code that the run uses."""
        names = [name for named in self.experiment.import_paths().values() for name in named.split("+")]
        return fingerprints(names, [*self.network.module.modules(), *self.composition.parts])

    def check_files(self, path: Path, recorded: Mapping[str, str]) -> None:
        """Reject files other than those with which the run in a directory was started."""
        now = self.files()
        for key, before in recorded.items():
            if key in now and now[key] != before:
                raise InputError(
                    f'the file of {key} is not what it was when "{path}" was started; choose another --out'
                )

    def evaluate(self, model: Tensors) -> dict[str, Any]:
        """Evaluate a global model on the test set and on the validation set, if there are any."""
        if self.no_global_model:
            return {}
        self.network.load(model)
        self.site.restore_constants()
        measured: dict[str, Any] = {}
        for prefix, split in self._evaluated:
            features = FeatureRange()
            with self.network.mode(train=False):
                scores = evaluate(
                    partial(self._scores, features),
                    split.x,
                    split.y,
                    self.federation.pipeline,
                    self.network.dtype,
                    self.site.metrics,
                    split.domain,
                )
            measured |= {f"{prefix}{name}": self._by_name(value) for name, value in scores.items()}
            if "dead_features" not in measured:  # on the test set, where there is one
                measured["dead_features"] = features.dead_share()
        return measured

    def _by_name(self, value: Any) -> Any:
        """Return values by the names of the domains in place of their numbers; other values unchanged."""
        names = self.federation.data.domains
        return {names[int(k)]: inner for k, inner in value.items()} if names and isinstance(value, dict) else value

    def _scores(self, features: FeatureRange, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        out = self.site.forward(x)
        features.add(out.z)
        return out.logits

    @cached_property
    def _evaluated(self) -> list[tuple[str, Split]]:
        data, kept_back = self.federation.data, torch.from_numpy(self.federation.validation)
        sets = [("", data.test)] if data.test is not None else []
        if len(kept_back):
            sets.append(("validation_", Split(data.train.x[kept_back], data.train.y[kept_back])))
        return [(prefix, _on(split, self.device)) for prefix, split in sets]


def _on(split: Split, device: torch.device) -> Split:
    domain = split.domain.to(device) if split.domain is not None else None
    return dataclasses.replace(split, x=split.x.to(device), y=split.y.to(device), domain=domain)


def assemble(
    experiment: Experiment,
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
    head: str | None = None,
) -> Assembly:
    """Put a run together; what is given replaces what the experiment would name."""
    experiment = Experiment.of(experiment)
    device = find_device(experiment.engine)
    federation = federation or federate(experiment)
    with collecting_files() as files_read:
        site = _site(experiment, federation, federation.hosted(), device, module, method, head)
    common: dict[str, Any] = {"network": site.network, "composition": site.composition, "entries": site.entries}
    return Assembly(
        experiment=experiment,
        federation=federation,
        device=device,
        files_read=files_read,
        site=site,
        server=Server(
            **common,
            sampler=ClientSampler(
                federation.size,
                federation.clients,
                federation.unseen,
                participation=experiment.train.participation,
                seed=experiment.seed,
            ),
            expected=ExpectedUploads(site.composition, Rehearsal(site)),
            aggregator=experiment.train.aggregator,
            on_client_error=experiment.run.on_client_error,
            personal_travels=module is not None or bool(experiment.model.start),
        ),
        **common,
    )


def assemble_site(
    experiment: Experiment,
    facts: Mapping[str, Any],
    data: HostedData,
    *,
    module: nn.Module | None = None,
    method: Method | None = None,
) -> Site:
    """Return a site for the clients whose data are here, without the data of any other client.

    It does the same as the site of a simulation does for these clients, to the bit on a CPU.

    Args:
        experiment: The experiment that the federation runs.
        facts: What is recorded of the federation in `partition.json`, as `Assembly.facts` returns it.
        data: The hosted clients' samples, as `hosted_data` returns them.
        module: The model, in place of the one that the experiment names.
        method: The method, in place of the one that the experiment names.
    """
    experiment = Experiment.of(experiment)
    return _site(experiment, without_data(facts), data, find_device(experiment.engine), module, method)


def hosted_data(
    experiment: Experiment, facts: Mapping[str, Any], clients: Mapping[int, tuple[Split | None, Split | None]]
) -> HostedData:
    """Return the data of clients in the form in which a site takes them.

    Args:
        experiment: The experiment, which says how inputs are prepared.
        facts: What is recorded of the federation in `partition.json`.
        clients: The training samples and the hold-out of each client, by its id.
    """
    shape = without_data(facts)
    operations = Pipeline.build(shape.data, "none", experiment.data.augment).operations
    prepare = Pipeline(shape.pipeline.statistics, operations)
    return HostedData.of(clients, prepare, shape.data.num_classes, shape.seen)


def _site(
    experiment: Experiment,
    shape: Federation,
    data: HostedData,
    device: torch.device,
    module: nn.Module | None = None,
    method: Method | None = None,
    head: str | None = None,
) -> Site:
    """Return a site with these data; the network's size follows from the shape of the federation's samples."""
    table = experiment.method
    composition = Composition(method or methods.build(table.name, **table.tables), experiment.train.criterion)
    network = _network(experiment, shape, composition, module, head or experiment.model.head or None, device)
    entries = classify(network, composition.personal, experiment.model.freeze, experiment.train.buffers)
    if not any(name in entries.shared or name in entries.personal for name in network.parameter_names):
        raise InputError("model.freeze: every parameter of the model is frozen, so there is nothing to train")
    settings = _settings(experiment)
    decayed(network, settings)  # rejects selectors that name nothing before any client would
    return Site(
        network,
        composition,
        entries,
        data,
        settings,
        _schedule(experiment),
        keep_optimiser=experiment.train.optimizer_state == "keep",
        seed=experiment.seed,
        device=device,
        metrics=find_metrics(experiment.evaluate.metrics),
    )


def federate(experiment: Experiment, data: DataSet | None = None) -> Federation:
    """Divide the data set of an experiment, or the one given, among its clients."""
    experiment = Experiment.of(experiment)
    table = experiment.data
    if GIVEN in (table.name, table.partition):
        raise InputError(
            f'data.name and data.partition = "{GIVEN}" stand for data that a program hands over to fullrank.fit'
        )
    data = data or resized(load_dataset(table.name, table.root, seed=experiment.seed), table.size)
    seed = experiment.seed if table.seed < 0 else table.seed
    keys = {**table.model_dump(exclude={"partition_options"}), "seed": seed}
    divided = divide(data, pipeline(experiment, data), table.partition, keys, table.partition_options)
    return keep_unseen(divided, table.unseen, seed)


def without_data(facts: Mapping[str, Any]) -> Federation:
    """A federation of the shape that a run recorded, with zeros for inputs: enough to build its network and server."""
    described = facts["data"]
    zeros = torch.zeros(2, *described["input_shape"], dtype=getattr(torch, described["dtype"]))
    train = Split(zeros, torch.zeros(2, dtype=torch.int64))
    usual = tuple(described.get("augment", ()))
    data = DataSet(described["name"], train, None, tuple(described["classes"]), augment=usual)
    statistics = (tuple(described["mean"]), tuple(described["std"])) if described["mean"] is not None else None
    nothing = np.empty(0, np.int64)
    parts = [nothing] * facts["clients"]
    return Federation(data, parts, parts, nothing, Pipeline(statistics), np.array(facts["unseen"], np.int64))


def pipeline(experiment: Experiment, data: DataSet) -> Pipeline:
    """How batches of an experiment's data are prepared."""
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


def _network(
    experiment: Experiment,
    federation: Federation,
    composition: Composition,
    module: nn.Module | None,
    head: str | None,
    device: torch.device,
) -> Network:
    data, seed = federation.data, experiment.seed
    with seeded(seed, "model"):
        if module is None:
            module = models.build(experiment.model.name, data.num_classes, data.in_channels, **experiment.model.options)
        else:
            module = copy.deepcopy(module)
        if experiment.engine.precision in DTYPES:
            if experiment.engine.precision == "float64" and any(map(nn.parameter.is_lazy, module.parameters())):
                find_head(module, _example(federation, module), head)  # draws their weights before the conversion
            module = module.to(DTYPES[experiment.engine.precision])
        example = _example(federation, module)
        network = Network.of(module, example, data.num_classes, head)
    with seeded(seed, "method"):
        network = apply_method(network, composition, example)
    if experiment.model.start:
        _start_from(network, Path(experiment.model.start))
    network.module.to(device)
    _set_precision(network, experiment.engine, device)
    _set_layout(network, experiment.engine, device)
    return network


def _set_precision(network: Network, table: EngineTable, device: torch.device) -> None:
    """Forwards in bfloat16 where that is asked for, or where `auto` means it: float32 models on the `cuda` engine."""
    able = device.type == "cuda" and table.name in ("auto", "cuda") and torch.cuda.get_device_capability(device)[0] >= 8
    auto = table.precision == "auto" and able and network.dtype == torch.float32
    if table.precision == "bfloat16" or auto:
        network.half = torch.bfloat16


def _set_layout(network: Network, table: EngineTable, device: torch.device) -> None:
    """Images with their channels last where convolutions are faster so: in bfloat16 on a GPU, in float32 on a CPU.

    On a GPU the weights lie so too. On a CPU that would gain little more, and whoever looks at them would have to know.
    """
    on_a_gpu = device.type == "cuda" and network.half is not None
    on_a_cpu = device.type == "cpu" and network.dtype == torch.float32 and table.name != "vectorised"
    network.channels_last = (on_a_gpu or on_a_cpu) and takes_channels_last(network)
    if network.channels_last and on_a_gpu:
        network.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _example(federation: Federation, module: nn.Module) -> torch.Tensor:
    kinds = [p.dtype for p in module.parameters() if not nn.parameter.is_lazy(p) and p.is_floating_point()]
    lazy = [p.dtype for p in module.parameters() if nn.parameter.is_lazy(p)]
    dtype = (kinds or lazy or [torch.get_default_dtype()])[0]
    return federation.pipeline(federation.data.train.x[:2], None, dtype)


def apply_method(network: Network, composition: Composition, example: torch.Tensor) -> Network:
    """The network as the methods want it: another body, a fresh head if its width changed, another head."""
    width = network.feature_dim
    for part in composition.defined("model"):
        network = hooked(part, "model", network)
        network.module.to(network.dtype)
        with torch.no_grad(), network.mode(train=False):
            network.feature_dim = _z(network, example).shape[1]
    if network.feature_dim != width:
        # drawn before it is converted, so that every precision starts from the same numbers
        network.head = nn.Linear(network.feature_dim, network.num_classes).to(network.dtype)
    for part in composition.defined("head"):
        network.head = hooked(part, "head", network)
    if composition.defined("model") or composition.defined("head"):
        network.module.to(network.dtype)
        with torch.no_grad(), network.mode(train=False):
            logits = network(example).logits
        if logits.shape != (len(example), network.num_classes):
            raise InputError(
                f"the method's network gives scores of shape {tuple(logits.shape)}, not (samples, classes)"
            )
    if isinstance(network.module, Net):
        network.module.feature_dim = network.feature_dim
    return network


def _z(network: Network, example: torch.Tensor) -> torch.Tensor:
    """The representation, although the head may not fit it yet."""
    if isinstance(network.module, Net):
        return network.module.features(example)
    caught: list[torch.Tensor] = []
    part = network.module.get_submodule(network.z_name)
    handle = part.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    try:
        network.module(example)
    except RuntimeError:
        if not caught:
            raise
    finally:
        handle.remove()
    return caught[0]


def _start_from(network: Network, path: Path) -> None:
    if not path.is_file():
        raise InputError(f'model.start: there is no file "{path}"')
    try:
        given = load_tensors(path)
    except Damaged as error:
        raise InputError(f'model.start: "{path}" is not a safetensors file or is damaged ({error})') from None
    own = network.tensors()
    wrong = [f"{name} is missing" for name in own if name not in given]
    wrong += [f"{name} is not in the model" for name in given if name not in own]
    wrong += [
        f"{name} has shape {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    if wrong:
        raise InputError(f'model.start: "{path}" does not fit the model: {"; ".join(wrong)}')
    network.load(given)


def find_device(table: EngineTable) -> torch.device:
    """The device that is asked for, if this machine has it."""
    name = table.device
    try:
        device = torch.device(name or "cpu")
    except RuntimeError:
        raise InputError(f'engine.device = "{name}" is not a device; known are cpu, cuda, cuda:0 …') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f'engine.device = "{name}": this machine has no CUDA device that torch can use')
    if table.name == "cuda" and device.type != "cuda":
        raise InputError(f'engine.name = "cuda" needs engine.device = "cuda", not "{device}"; on a CPU take "auto"')
    if device.type == "cuda":
        # Read when CUDA starts: by default streams share eight queues, in which one waits for another without need.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    return device


def is_given(experiment: Experiment) -> bool:
    """Whether the experiment's data or model came from a program, so that its file alone cannot repeat it."""
    return GIVEN in (experiment.data.name, experiment.model.name) or experiment.method.name.startswith(f"{GIVEN}:")
