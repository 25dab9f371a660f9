"""The tables of an experiment: the keys of each, with their meanings, defaults and allowed values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fullrank.data.augment.registry import AUGMENTATIONS
from fullrank.data.registry import COLUMNS, PARTITIONS, SITE_PARTITIONS, VARIANTS, is_file
from fullrank.data.sources.registry import DATA_SETS
from fullrank.engine import ENGINES
from fullrank.engine.resolve import AUTO
from fullrank.errors import nearest
from fullrank.federated.registry import AGGREGATORS
from fullrank.metrics.registry import METRICS
from fullrank.objectives.registry import CRITERIA, CROSS_ENTROPY
from fullrank.plugins import GIVEN, Registry

Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]

LARGEST = 2**53
"""Integers up to this one are exact as floating-point numbers as well."""


@dataclass(frozen=True)
class NameIn:
    """Marks a string of an experiment as a name of a registry; `fullrank keys` lists the names of the registry."""

    registry: Registry[Any]


class Table(BaseModel):
    """Base class of the tables of an experiment file.

    The docstring under an attribute is the description that `fullrank keys` prints.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _of_a_size_to_compute_with(cls, value: Any) -> Any:
        """Reject integers that a float cannot represent exactly: they would fail in the middle of a run."""
        if isinstance(value, int) and abs(value) > LARGEST:
            raise PydanticCustomError("too_large", "must lie within ±2**53")
        return value


class Statistics(Table):
    """Mean and standard deviation for normalising inputs, one number per channel."""

    mean: list[float]
    std: list[float]


class Data(Table):
    """The data set, and how its samples are divided among clients."""

    name: Annotated[str, NameIn(DATA_SETS)] = "digits"
    """Data set, the path of an .npz, .csv or .parquet file, or "hub:NAME" for a data set of the Hugging Face hub. A
    function takes root and seed and returns arrays, torch Datasets or a data set."""
    root: str = ""
    """Folder of the data set. If empty, fullrank searches $FULLRANK_DATA, ./data and its own cache."""
    partition: Annotated[str, NameIn(PARTITIONS)] = "dirichlet"
    """How samples are divided among clients, or the path of a saved partition.safetensors or of a .csv with the columns
    sample and client. A function gets those of labels, domains, groups, natural (clients) and the keys of this table
    that its arguments name, and returns one list of samples per client."""
    partition_options: dict[str, Any] = {}
    """Further arguments of a partition function of your own."""
    alpha: Annotated[float, Field(gt=0)] = 0.1
    """Concentration of the Dirichlet partition. Smaller values make clients differ more; inf gives an IID split."""
    variant: str = "balanced"
    """Variant of the partition: {variants}."""  # `fullrank keys` puts those of the registry in its place
    classes: Annotated[int, Field(ge=1)] = 2
    """Classes per client in the pathological and class-disjoint partitions."""
    passes: Literal[1, 2] = 1
    """How often the class-disjoint partition divides the data. 2 reproduces the code released with FedMR."""
    equal: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Samples per client in the domain partition, as a fraction of the size of the smallest domain. 0 gives each
    client all samples of its domain."""
    clients: Annotated[int, Field(ge=0)] = 10
    """Number of clients. 0 gives as many as there are domains or natural clients in the data, or clients in the file of
    a partition, which is the default of the domain and natural partitions and of such files."""
    seed: Annotated[int, Field(ge=-1)] = -1
    """Seed of the partition. -1 uses the seed of the run."""
    unseen: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the clients that never train. They are evaluated separately at the end of the run."""
    holdout: Share = 0.0
    """Fraction of each client's samples that is held out to evaluate the client's own model."""
    validation: Share = 0.0
    """Fraction of the training set that is held out as a validation set, to choose settings or the best round."""
    size: Annotated[int, Field(ge=0)] | Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] = 0
    """Length of the short side of images in pixels, or [height, width]; images are resized once, on loading. Images of
    different proportions are resized to the short side and cut to the square in the middle. 0 keeps the stored size,
    which must then be the same for all."""
    unreadable: Literal["stop", "skip"] = "stop"
    """Whether image files that cannot be read stop the run or are left out and listed."""
    label: str = ""
    """Column or array of the labels, where the data set is a file with columns."""
    image: str = ""
    """Column of the paths of images, where the data set is a table that names images."""
    client: str = ""
    """Column or array of the natural client of each sample, such as a hospital or a writer."""
    group: str = ""
    """Column or array of the group of each sample, such as a patient. The samples of a group are never divided between
    training, hold-out, validation and test."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the training samples that is used, for quick trials: that fraction of each class, drawn from the
    seed. The other samples are left out before the rest is divided."""
    normalise: Literal["auto", "none", "half"] | Statistics = "auto"
    """Normalisation of inputs: with the statistics of the data set (auto), none, to the range -1 to 1 (half), or with
    { mean = [...], std = [...] }, one number per channel, or per feature of a table. auto standardises the columns of a
    table over the clients' training samples."""
    augment: Literal["auto", "none"] | list[Annotated[str, NameIn(AUGMENTATIONS)]] = "auto"
    """Augmentation of training images: the usual one for the data set (auto), none, or a list. Arguments follow a
    colon, as in crop:4 (pixels of the border), random-crop:200 (a window of that size, for which the model is built;
    evaluation takes the one in the middle), rotate:15 (degrees), randaugment:2,9, autoaugment:bins (as in the code of
    FedDecorr), raug:15 (as in the code of FedRepOpt) or mine:Cutout:8."""

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_there_are(cls, values: Any) -> Any:
        """Let the number of clients follow from the data, where they say it and it was not given."""
        how = values.get("partition") if isinstance(values, dict) else None
        if isinstance(how, str) and (how in SITE_PARTITIONS or is_file(how)):
            return {"clients": 0, **values}
        return values

    @property
    def reading(self) -> dict[str, Any]:
        """The keys that say how the files of the data set are read, as `load_dataset` takes them."""
        from fullrank.data.sources.load import READING

        return {name: getattr(self, name) for name in READING}

    @model_validator(mode="after")
    def _names(self) -> Data:
        """Check the names and the options of the library's own partitions; nothing outside it is imported for that."""
        own = self.partition in PARTITIONS.own
        if not own and (self.partition == GIVEN or is_file(self.partition)):
            if self.partition_options:
                raise ValueError(f'data.partition_options: data.partition = "{self.partition}" takes no options')
        elif not own and ":" not in self.partition:
            PARTITIONS.find(self.partition)
        elif own and self.partition_options:
            from fullrank.data.named_partitions import check_options

            check_options(self.partition, (*COLUMNS, *type(self).model_fields), self.partition_options)
        known = VARIANTS.get(self.partition)
        if known and self.variant not in known:
            raise ValueError(
                f'data.variant = "{self.variant}" is not known for {self.partition}; {nearest(self.variant, known)}'
            )
        return self


class Model(Table):
    """The network. Further keys of this table are options of the network."""

    model_config = ConfigDict(extra="allow")

    name: str = "cnn"
    """Network, or "package.module:function". `fullrank models` lists the networks and the options of each."""
    head: str = ""
    """Name of the classifier layer in your own network. If empty, the last nn.Linear that the forward pass calls."""
    start: str = ""
    """Initial weights: a safetensors file, a state dict that torch.save wrote (.pt, .pth), or the directory of a run,
    whose final global model is taken. If empty, weights are initialised at random."""
    start_partial: bool = False
    """Whether entries of model.start that do not fit the model are left out, such as a classifier of other classes, and
    what they do not fill keeps its initial values. Otherwise they are an error."""
    freeze: list[str] = []
    """Patterns of the names of parameters and buffers that are not trained. A normalisation layer whose parameters are
    all frozen keeps its statistics as well."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the network."""
        return dict(self.model_extra or {})


class MethodTable(Table):
    """The federated method. Each method has a table of hyper-parameters, such as [method.fedprox]."""

    model_config = ConfigDict(extra="allow")

    name: str = "fedavg"
    """Method, several methods joined by +, as in "fedprox+feddecorr", or "package.module:Class". `fullrank methods`
    lists the methods."""

    @field_validator("name")
    @classmethod
    def _without_spaces(cls, name: str) -> str:
        return "+".join(piece.strip() for piece in name.split("+"))

    @property
    def tables(self) -> dict[str, Any]:
        """The hyper-parameters of each method."""
        return dict(self.model_extra or {})


class Train(Table):
    """Communication rounds, participation of clients, and local training."""

    rounds: Annotated[int, Field(ge=1, le=10**9)] = 10
    """Number of communication rounds."""
    participation: int | float = 1.0
    """Clients per round: a float is a fraction of all clients (0.5), an integer is a number of clients (5)."""
    epochs: Annotated[int, Field(ge=1, le=10**6)] = 5
    """Local epochs per client and round."""
    steps: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Local steps per client and round, instead of epochs. 0 trains for `epochs`."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Samples per local step."""
    last_batch: Literal["auto", "keep", "drop", "wrap"] = "auto"
    """Treatment of an incomplete last batch of an epoch: keep it, drop it, or fill it with samples from the start
    of the epoch (wrap). auto keeps it, but with BatchNorm drops one of fewer than 16 samples and than half a batch,
    unless it is the only batch of a client. With BatchNorm, a batch of a single sample is left out in any case."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of local training."""
    lr: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] = 0.1
    """Initial learning rate of local training."""
    lr_schedule: Literal["constant", "cosine", "step", "exponential"] = "constant"
    """Schedule of the learning rate over rounds, after the warm-up."""
    lr_schedule_by: Literal["round", "step"] = "round"
    """Whether the schedule changes the learning rate once per round or at every local step."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Number of rounds over which the learning rate increases linearly to `lr`."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor by which the learning rate is multiplied: every `decay_every` rounds by the step schedule, every round
    by the exponential schedule."""
    decay_every: Annotated[int, Field(ge=0)] = 0
    """Number of rounds between two decays of the step schedule."""
    momentum: Share = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Whether SGD uses Nesterov momentum."""
    weight_decay: NotNegative = 0.0
    """Weight decay: an L2 penalty for sgd and adam, decoupled from the gradient for adamw."""
    decay_on: str | list[str] = "all"
    """Parameters to which weight decay applies: all, matrices (parameters with two or more dimensions), or patterns of
    their names."""
    clip_norm: NotNegative = 0.0
    """Maximum norm of the gradient; larger gradients are clipped. 0 disables clipping."""
    criterion: Annotated[str, NameIn(CRITERIA)] = ""
    """Loss of local training in place of cross-entropy. focal is the focal loss with γ = 2. weighted is the
    cross-entropy with class weights S / (C n_c), where n_c of the S training samples of all clients are of class c and
    C classes occur; for that, each client sends its number of samples of each class once, before the first round. A
    function takes logits (N, C) and labels (N,) and returns a scalar tensor. If empty, the criterion of the method, by
    default cross-entropy. The loss of an evaluation is always the cross-entropy."""
    label_smoothing: Share = 0.0
    """Label smoothing of the cross-entropy, as in torch.nn.CrossEntropyLoss."""
    optimizer_state: Literal["fresh", "keep"] = "fresh"
    """Whether the optimizer state of a client is reset at the start of each round (fresh) or kept between rounds."""
    buffers: Literal["average", "local"] = "average"
    """Running statistics of BatchNorm: averaged over clients like weights, or kept by each client (local)."""
    weight_by: Literal["training", "all"] = "training"
    """Samples that a client's weight in the mean counts: those on which it trains (training), or its hold-out as well
    (all), as in the code of FedETF."""
    aggregator: Annotated[str, NameIn(AGGREGATORS)] = "mean"
    """How the server combines what clients send: by weighted means and sums (mean), or as a subclass of
    fullrank.Aggregator does it."""

    @model_validator(mode="after")
    def _goes_together(self) -> Train:
        if isinstance(self.decay_on, str) and "," in self.decay_on:
            written = json.dumps([piece.strip() for piece in self.decay_on.split(",")])
            raise ValueError(f'train.decay_on = "{self.decay_on}": several patterns are written as a list: {written}')
        if self.lr_schedule == "step" and not self.decay_every:
            raise ValueError('train.decay_every = 0: the schedule "step" needs a number of rounds, 1 at least')
        if self.nesterov and not (self.momentum and self.optimizer == "sgd"):
            raise ValueError("train.nesterov = true: needs sgd with momentum above 0")
        if self.label_smoothing and self.criterion not in CROSS_ENTROPY:
            raise ValueError(
                f"train.label_smoothing = {self.label_smoothing}: smooths the labels of cross-entropy, which "
                f'train.criterion = "{self.criterion}" replaces; set one of them only'
            )
        return self

    @model_validator(mode="after")
    def _share_or_number(self) -> Train:
        share = isinstance(self.participation, float)
        if self.participation <= 0 or (share and not self.participation <= 1):
            raise ValueError(
                f"train.participation = {self.participation}: must be a share of the clients, above 0.0 and up to 1.0, "
                "or a whole number of clients from 1 on"
            )
        return self


class EngineTable(Table):
    """The engine that trains the clients, with its processes, device and precision."""

    name: Annotated[str, NameIn(ENGINES)] = AUTO
    """Engine that trains clients: one after the other (serial), in several processes (processes), in groups with one
    vectorised step (vectorised), with CUDA graphs on a GPU (cuda), or on a Ray cluster (ray). auto chooses for the
    experiment and the machine, never ray. A class takes a site and options, and has run, notes and close."""
    workers: Annotated[int, Field(ge=0, le=4096)] = 0
    """Number of worker processes or GPUs. 0 uses one process per core, or all GPUs; with ray those of the cluster."""
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of threads per worker process."""
    device: str = ""
    """Device: cpu, cuda or cuda:1. If empty, cpu."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """Precision of training. auto is bfloat16 for float32 networks on the cuda engine, otherwise float32."""
    slots: Annotated[int, Field(ge=0, le=4096)] = 0
    """Number of clients that train at the same time on one GPU. 0 chooses the number; with ray it is 1."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch.compile compiles the forward pass on a GPU. auto compiles if the run is long enough to profit."""
    address: str = ""
    """Address of the cluster of the ray engine: host:port, or auto for the cluster of which this machine is a node. If
    empty, a Ray is started on this machine and ended with the run."""

    @field_validator("name")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        if name not in (AUTO, *ENGINES.own) and ":" not in name and name not in ENGINES.names():
            ENGINES.find(name)  # raises
        return name

    @model_validator(mode="after")
    def _address_is_used(self) -> EngineTable:
        if self.address and self.name != "ray" and ":" not in self.name:
            raise ValueError(f'engine.address = "{self.address}": only engine.name = "ray" has an address')
        return self


class Evaluate(Table):
    """The evaluation of models: its rounds and its metrics."""

    every: Annotated[int, Field(ge=1)] = 1
    """Number of rounds between two evaluations of the global model. The last round is always evaluated."""
    personal: Literal["never", "end", "every"] = "end"
    """When the clients' own models are evaluated on their hold-outs (`data.holdout`) and, where clients are sites
    (the partitions domain and natural), on the test part of their site: never, at the end, or in every round."""
    metrics: list[Annotated[str, NameIn(METRICS)]] = ["accuracy", "loss"]
    """Metrics of every evaluation; accuracy and loss are always computed. A function takes scores (N, C) and labels
    (N,) and returns a number, a list of numbers or None. Results have its name, and its attributes lower_is_better and
    is_share describe them. A class of torchmetrics is named in the same way, as in
    torchmetrics.classification:MulticlassCohenKappa."""
    samples: Annotated[int, Field(ge=0)] = 0
    """Number of test samples on which the global model is evaluated, drawn from the seed with classes in proportion. 0
    uses all."""


class ProbeTable(Table):
    """Probes, which measure the representation (spectra, effective rank, neural collapse) during a run."""

    every: Annotated[int, Field(ge=0)] = 0
    """Number of rounds between two probes. The last round is always probed. 0 disables probes."""
    clients: Annotated[int, Field(ge=0)] = 2
    """Number of clients whose local models are probed as well."""
    embed: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of test samples of which each probe keeps two coordinates and the label, for a map of the features. They
    are the same samples in every probe, of each class its share. Set it only where the run directory may contain
    something about single samples. 0 keeps none."""


class RunTable(Table):
    """Checkpoints, saved models, and what happens when a client fails."""

    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    """Number of rounds between two checkpoints."""
    keep: Annotated[int, Field(ge=1)] = 1
    """Number of checkpoints to keep; older ones are deleted."""
    keep_personal: bool = False
    """Whether the own model of each client is saved at the end, for example as personal/000003.safetensors. It can
    then be loaded without the data."""
    track: list[str] = []
    """Callbacks that follow the run: tensorboard, mlflow or wandb (Weights & Biases, without a connection unless
    WANDB_MODE is online), which receive the metrics of each round and need `fullrank[track]`; `package.module:Class`, a
    subclass of `fullrank.Callback` that needs no arguments; or a name that an installed package declares."""
    on_client_error: Literal["stop", "skip"] = "stop"
    """Whether the failure of a client stops the run, or the round continues without that client (skip)."""
    min_clients: Annotated[int, Field(ge=1)] = 1
    """Number of clients of a round that must succeed, with on_client_error = "skip"; with fewer, the run stops."""
    client_timeout: NotNegative = 0.0
    """Seconds within which a client of a deployment must answer; one that does not has failed. 0 waits for an hour. In
    a simulation clients have no limit."""
