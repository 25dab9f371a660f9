"""The tables of an experiment: their keys, what each means, its default and what it may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fullrank.errors import nearest
from fullrank.plugins import GIVEN

Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]

PARTITIONS = ("iid", "dirichlet", "pathological", "class-disjoint", "domain")
VARIANTS = {
    "dirichlet": ("balanced", "plain", "fedetf", "fedrepopt"),
    "pathological": ("balanced", "shards", "niid-bench"),
}
LARGEST = 2**53
"""The whole numbers up to here are exact as floating-point numbers too."""


class Table(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _of_a_size_to_compute_with(cls, value: Any) -> Any:
        """Whole numbers that a float cannot count to fail somewhere in the middle of a run."""
        if isinstance(value, int) and abs(value) > LARGEST:
            raise PydanticCustomError("too_large", "must lie within ±2**53")
        return value


class Statistics(Table):
    """Normalisation given as numbers, one per channel."""

    mean: list[float]
    std: list[float]


class Data(Table):
    """Which data, and who has which of them."""

    name: str = "digits"
    """One of digits, mnist, fashion-mnist, cifar10, cifar100, an .npz file, or "package.module:function"."""
    root: str = ""
    """Where it lies; empty: $FULLRANK_DATA, then the usual places."""
    partition: str = "dirichlet"
    """Who has which samples: iid, dirichlet, pathological, class-disjoint, domain, or a saved partition.safetensors."""
    alpha: Annotated[float, Field(gt=0)] = 0.1
    """Of dirichlet: the smaller, the more clients differ; inf: not at all."""
    variant: str = "balanced"
    """Of dirichlet (balanced, plain, fedetf, fedrepopt) and of pathological (balanced, shards, niid-bench)."""
    classes: Annotated[int, Field(ge=1)] = 2
    """Of a client, for pathological and class-disjoint."""
    passes: Literal[1, 2] = 1
    """Of class-disjoint: 2 deals samples out twice over, as FedMR's authors' code does."""
    equal: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Of domain: every client gets this share of the smallest domain's number of samples; 0: all that it has."""
    clients: Annotated[int, Field(ge=1)] = 10
    """How many there are; with domains, as many as there are of these."""
    seed: Annotated[int, Field(ge=-1)] = -1
    """Of the partition; -1: the run's."""
    unseen: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the clients that never train and are judged apart at the end."""
    holdout: Share = 0.0
    """Share of each client's samples on which its own model is judged."""
    validation: Share = 0.0
    """Share of the training set that is kept back to choose settings and rounds by."""
    size: Annotated[int, Field(ge=0)] = 0
    """Short side of images, resized once when they are loaded; 0: as stored."""
    normalise: Literal["auto", "none", "half"] | Statistics = "auto"
    """By the data set's statistics, not at all, to ±1 (half), or { mean = [...], std = [...] }, one per channel."""
    augment: Literal["auto", "none"] | list[str] = "auto"
    """What is usual for the data set, nothing, or a list of crop:4, crop-reflect:4, flip, rotate:15, resized-crop,
    autoaugment, autoaugment:bins (as in FedDecorr's code), randaugment:2,9 and raug:15 (as in FedRepOpt's)."""

    @model_validator(mode="after")
    def _names(self) -> Data:
        if self.partition not in (*PARTITIONS, GIVEN) and not self.partition.endswith(".safetensors"):
            hint = nearest(self.partition, PARTITIONS)
            raise ValueError(f'data.partition = "{self.partition}" is not known; {hint}, or a saved .safetensors file')
        known = VARIANTS.get(self.partition)
        if known and self.variant not in known:
            raise ValueError(
                f'data.variant = "{self.variant}" is not known for {self.partition}; {nearest(self.variant, known)}'
            )
        return self


class Model(Table):
    """Which network; further keys go to it."""

    model_config = ConfigDict(extra="allow")

    name: str = "cnn"
    """A network (`fullrank models` lists them, with the keys that each takes), or "package.module:function"."""
    head: str = ""
    """The classifier of a network of your own, by its name in it; empty: the last nn.Linear that a forward calls."""
    start: str = ""
    """A safetensors file to start from."""
    freeze: list[str] = []
    """Entries that do not train, by patterns of their names; a norm layer named whole keeps its statistics as well."""

    @property
    def options(self) -> dict[str, Any]:
        """The keys that go to the network."""
        return dict(self.model_extra or {})


class MethodTable(Table):
    """Which method; one table of hyper-parameters per method."""

    model_config = ConfigDict(extra="allow")

    name: str = "fedavg"
    """A method or several, as in "fedprox+feddecorr" (`fullrank methods` lists them); or "package.module:Class"."""

    @field_validator("name")
    @classmethod
    def _without_spaces(cls, name: str) -> str:
        return "+".join(piece.strip() for piece in name.split("+"))

    @property
    def tables(self) -> dict[str, Any]:
        """Hyper-parameters by method."""
        return dict(self.model_extra or {})


class Train(Table):
    """Rounds, participation, and how a client trains."""

    rounds: Annotated[int, Field(ge=1, le=10**9)] = 10
    """How many are played."""
    participation: int | float = 1.0
    """In each round: a share of the clients, as in 0.5, or a number of them, as in 5."""
    epochs: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Of a client in a round."""
    steps: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Of a client in a round, in place of epochs; 0: by epochs."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Of a client's steps."""
    last_batch: Literal["keep", "drop", "wrap"] = "keep"
    """If it is smaller: keep it, drop it, or fill it up from the start."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Of a client."""
    lr: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] = 0.01
    """The learning rate of a client, before any schedule."""
    lr_schedule: Literal["constant", "cosine", "step", "exponential"] = "constant"
    """How it goes on after the warm-up."""
    lr_schedule_by: Literal["round", "step"] = "round"
    """Whether it changes from round to round only, or from step to step too."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Rounds in which the learning rate grows to its full size."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    """The factor of step, every `decay_every` rounds, and of exponential, every round."""
    decay_every: Annotated[int, Field(ge=0)] = 0
    """Rounds of the schedule step."""
    momentum: Share = 0.9
    """Of sgd."""
    nesterov: bool = False
    """Momentum in Nesterov's form."""
    weight_decay: NotNegative = 0.0
    """Times an entry, added to its gradient (adamw: apart from it)."""
    decay_on: str | list[str] = "all"
    """What decays: all, matrices (entries of two dimensions or more), or patterns of names."""
    clip_norm: NotNegative = 0.0
    """The most that a gradient's norm may be; 0: no limit."""
    label_smoothing: Share = 0.0
    """Share of the target that all classes have in common."""
    optimizer_state: Literal["fresh", "keep"] = "fresh"
    """Whether a client's optimizer starts anew in each round or goes on."""
    buffers: Literal["average", "local"] = "average"
    """Statistics of BatchNorm: averaged like weights, or each client's own."""

    @model_validator(mode="after")
    def _goes_together(self) -> Train:
        if self.lr_schedule == "step" and not self.decay_every:
            raise ValueError('train.decay_every = 0: the schedule "step" needs a number of rounds, 1 at least')
        if self.nesterov and not (self.momentum and self.optimizer == "sgd"):
            raise ValueError("train.nesterov = true: needs sgd with momentum above 0")
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
    """Where clients train."""

    name: Literal["auto", "serial", "processes", "vectorised", "cuda"] = "auto"
    """How clients are trained: one by one, several processes, groups at once, or captured graphs on a GPU."""
    workers: Annotated[int, Field(ge=0, le=4096)] = 0
    """Processes or GPUs; 0: one per core or GPU."""
    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """Of each process."""
    device: str = ""
    """cpu, cuda or cuda:1; empty: cpu."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """Of training; auto: bfloat16 for float32 networks on the cuda engine, else float32."""
    slots: Annotated[int, Field(ge=0, le=4096)] = 0
    """Clients at a time on a GPU; 0: as many as pay."""
    compile: Literal["auto", "on", "off"] = "auto"
    """The network's forward on a GPU; auto: where a run is long enough for it to pay."""


class Evaluate(Table):
    """When the model is judged."""

    every: Annotated[int, Field(ge=1)] = 1
    """Rounds between two tests of the global model; the last is always tested."""
    personal: Literal["never", "end", "every"] = "end"
    """When clients' own models are judged, on their hold-outs."""
    metrics: list[
        Literal["accuracy", "loss", "balanced-accuracy", "macro-f1", "auroc", "top5", "calibration", "per-class"]
    ] = ["accuracy", "loss"]
    """What is measured."""


class ProbeTable(Table):
    """When the representation is looked at, and of how many clients beside the global model."""

    every: Annotated[int, Field(ge=0)] = 0
    """Rounds between two looks, the last round always among them; 0: never."""
    clients: Annotated[int, Field(ge=0)] = 2
    """Beside the global model."""


class RunTable(Table):
    """What is kept on disk, and what happens when a client fails."""

    checkpoint_every: Annotated[int, Field(ge=1)] = 1
    """Rounds between two checkpoints."""
    keep: Annotated[int, Field(ge=1)] = 1
    """Checkpoints, the newest."""
    keep_personal: bool = False
    """Whether each client's own model is written at the end (`personal/000003.safetensors`), so that reading it needs
    no data."""
    on_client_error: Literal["stop", "skip"] = "stop"
    """Whether a client that fails ends the run or is left out of the round."""
