"""The resolution of `auto` in the table `[engine]`, by pure functions. No other module interprets `auto`;
that of `engine.address` is Ray's own word.

A choice that can change a bit of the result (vectorised or not, precision, memory layout, compilation) depends on the
experiment, the model and the device only. The cores of the machine and `engine.workers` choose between `serial` and
`processes`, which give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fullrank.engine.base import EngineOptions

AUTO = "auto"
CHOICES = ("serial", "processes", "vectorised", "cuda")
"""The engines that `auto` chooses from."""
WORTH_PROCESSES = 2e10
"""The number of parameters × samples of a run from which on worker processes are worth the seconds that they need to
start."""
SMALL_CLIENT = 2**20
"""The size in bytes of weights and one batch up to which Python takes longer to start a step than a processor to
compute it."""
SEVERAL_CLIENTS = 8
"""The number of clients per round from which on vectorised steps save a third of the time or more."""
WORTH_COMPILING = 200_000
"""The number of client steps of a run from which on compiling the network, which takes minutes, saves time: a third of
a millisecond per step."""
BFLOAT16_CAPABILITY = 8
"""The compute capability from which on CUDA devices compute in bfloat16."""


class EngineKeys(Protocol):
    """The keys of the table `[engine]`."""

    name: Any
    workers: int
    threads: int
    device: str
    precision: Any
    slots: int
    compile: Any
    address: str


@dataclass(frozen=True)
class Facts:
    """Everything that the choice of an engine depends on, except for the table `[engine]`.

    Args:
        parameters: Number of parameters of the model.
        dtype: Floating-point type of the parameters, such as "float32".
        library_model: Whether the model is one of the library's networks, which can be compiled.
        dense: Whether all entries of the model belong to dense layers.
        client_bytes: Bytes of the weights and of one batch of a client.
        obstacle: Why clients can never be trained as a group, as a clause; empty if they can.
        clients: Number of clients per round.
        samples: Number of samples on which the clients of a round train, each counted once per epoch.
        rounds: Number of rounds.
        batch_size: Samples per local step.
        cores: Number of cores of the machine.
        capability: Major number of the CUDA device's compute capability; 0 on a CPU.
        allowed: The engines that `auto` may choose; `serial` is always allowed.
        own_precision: The precision of a program's own model, which `auto` keeps on a GPU; empty for other models.
    """

    parameters: int
    dtype: str
    library_model: bool
    dense: bool
    client_bytes: int
    obstacle: str
    clients: int
    samples: float
    rounds: int
    batch_size: int
    cores: int
    capability: int = 0
    allowed: tuple[str, ...] = CHOICES
    own_precision: str = ""


@dataclass(frozen=True)
class Resolved:
    """A complete `[engine]` table without `auto`, and the reason for each choice."""

    name: str
    workers: int
    threads: int
    device: str
    precision: str
    """The floating-point type in which the model computes."""
    slots: int
    compile: bool
    autocast: bool
    """Whether forward passes compute in bfloat16 where that is safe, and in the model's own precision elsewhere."""
    channels_last: bool
    """Whether images are laid out with their channels last, if the model can take them so."""
    address: str
    """The address of a Ray cluster. Its `auto` is Ray's own word: the cluster of which this machine is a node."""
    recorded: Mapping[str, str]
    """The choices that a run directory records in place of `auto`. The other keys mean the same in any resume."""
    reasons: Mapping[str, str]
    """For each choice the reason, as a sentence."""

    def options(self, clients: int, last_row: Mapping[str, Any] | None = None) -> EngineOptions:
        """Return the options with which the engine is made.

        Args:
            clients: Number of clients per round.
            last_row: The metrics of the round before, if the run continues.
        """
        return EngineOptions(
            workers=self.workers,
            threads=self.threads,
            slots=self.slots,
            compile=self.compile,
            clients=clients,
            address=self.address,
            device=self.device,
            last_row=last_row or {},
        )

    def facts(self) -> dict[str, Any]:
        """Return what a run directory records: each choice, and the reasons."""
        return {
            "name": self.name,
            "precision": self.precision,
            "compile": self.compile,
            "channels_last": self.channels_last,
            "reasons": dict(self.reasons),
        }


def resolve_engine(table: EngineKeys, facts: Facts) -> Resolved:
    """Replace every `auto` in the table `[engine]` by a choice.

    Args:
        table: The table of the experiment.
        facts: What the choice depends on.

    Returns:
        The complete table, and the reasons.
    """
    reasons: dict[str, str] = {}
    name, reasons["name"] = _name(table, facts)
    autocast, precision, reasons["precision"] = _precision(table, facts, name)
    compile, reasons["compile"] = _compile(table, facts, name)
    channels_last, reasons["channels_last"] = _layout(table, facts, name, autocast)
    recorded = {}
    if table.name == AUTO:
        recorded["name"] = name
    if name == "cuda":
        if table.precision == AUTO and (autocast or _keeps_its_own(table, facts)):
            recorded["precision"] = precision
        if table.compile == AUTO:
            recorded["compile"] = "on" if compile else "off"
    return Resolved(
        name=name,
        workers=table.workers,
        threads=table.threads,
        device=table.device,
        precision=precision,
        slots=table.slots,
        compile=compile,
        autocast=autocast,
        channels_last=channels_last,
        address=table.address,
        recorded=recorded,
        reasons=reasons,
    )


def _name(table: EngineKeys, facts: Facts) -> tuple[str, str]:
    if table.name != AUTO:
        return table.name, f'The experiment says engine.name = "{table.name}".'
    if _on_cuda(table):
        if "cuda" in facts.allowed:
            return "cuda", f'The device is "{table.device}".'
        return "serial", "Only the serial engine is allowed here."
    if "vectorised" in facts.allowed and not (against := _against_groups(table, facts)):
        return "vectorised", "All layers are dense, the clients are small, and at least eight take part in a round."
    against_groups = against if "vectorised" in facts.allowed else "the vectorised engine is not allowed here"
    if "processes" in facts.allowed and not (against := _against_processes(table, facts)):
        return "processes", f"The work is worth starting worker processes, and {against_groups}."
    against_processes = against if "processes" in facts.allowed else "worker processes are not allowed here"
    return "serial", f"{against_groups[:1].upper()}{against_groups[1:]}, and {against_processes}."


def _against_groups(table: EngineKeys, facts: Facts) -> str:
    """Return a clause that says why `auto` does not train clients in groups, or an empty string."""
    if not _on_cpu(table):
        return f'the device is "{table.device}"'
    if not facts.dense:
        return "the model has layers that are not dense"
    if facts.client_bytes > SMALL_CLIENT:
        return f"the weights and a batch take {facts.client_bytes} bytes, more than {SMALL_CLIENT}"
    if facts.clients < SEVERAL_CLIENTS:
        return f"fewer than {SEVERAL_CLIENTS} clients take part in a round"
    return facts.obstacle


def _against_processes(table: EngineKeys, facts: Facts) -> str:
    """Return a clause that says why `auto` does not start worker processes, or an empty string."""
    if table.device not in ("", "cpu"):
        return f'the device is "{table.device}"'
    if facts.clients <= 1:
        return "only one client takes part in a round"
    if facts.parameters * facts.samples * facts.rounds <= WORTH_PROCESSES:
        return "the run is too short to be worth starting worker processes"
    if table.workers == 1:
        return "engine.workers is 1"
    if facts.cores <= 1:
        return "the machine has one core"
    return ""


def _precision(table: EngineKeys, facts: Facts, name: str) -> tuple[bool, str, str]:
    """Return whether forward passes are autocast, the precision, and the reason."""
    if table.precision != AUTO:
        said = f'The experiment says engine.precision = "{table.precision}".'
        return table.precision == "bfloat16", table.precision, said
    if name == "cuda" and _keeps_its_own(table, facts):
        return False, facts.own_precision, "A model that a program passes is trained in its own precision."
    if name != "cuda" or not _on_cuda(table):
        return (
            False,
            facts.dtype,
            f"The model is {facts.dtype}, and `auto` changes that on the cuda engine only.",
        )
    if facts.dtype != "float32":
        return False, facts.dtype, f"The model is {facts.dtype}, and only float32 models are shortened."
    if facts.capability < BFLOAT16_CAPABILITY:
        return False, facts.dtype, "The device does not compute in bfloat16."
    return True, "bfloat16", "The model is float32, and the cuda engine computes faster in bfloat16."


def _keeps_its_own(table: EngineKeys, facts: Facts) -> bool:
    return table.name == AUTO and bool(facts.own_precision)


def _compile(table: EngineKeys, facts: Facts, name: str) -> tuple[bool, str]:
    if table.compile != AUTO:
        return table.compile == "on", f'The experiment says engine.compile = "{table.compile}".'
    if name != "cuda":
        return False, "Only the cuda engine compiles."
    if not facts.library_model:
        return False, "Only the library's own networks are compiled."
    steps = facts.samples * facts.rounds / facts.batch_size
    if steps < WORTH_COMPILING:
        return False, f"The run has {steps:.0f} local steps, and compiling pays from {WORTH_COMPILING} on."
    return True, f"The run has {steps:.0f} local steps, so that compiling pays."


def _layout(table: EngineKeys, facts: Facts, name: str, autocast: bool) -> tuple[bool, str]:
    """Return whether images have their channels last: in bfloat16 on a GPU, and in float32 on a CPU."""
    if _on_cuda(table):
        return autocast, f"On a GPU convolutions are {'faster' if autocast else 'not faster'} so in this precision."
    if name == "vectorised":
        return False, "The vectorised engine stacks images of several clients."
    if not _on_cpu(table) or facts.dtype != "float32":
        return False, "Convolutions are faster so in float32 on a CPU only."
    return True, "On a CPU convolutions in float32 are faster so."


def _on_cuda(table: EngineKeys) -> bool:
    return table.device.startswith("cuda")


def _on_cpu(table: EngineKeys) -> bool:
    return table.device.partition(":")[0] in ("", "cpu")


# What several parts of the library need to know about a table that is not resolved yet


def as_recorded(table: EngineKeys, recorded: EngineKeys, foreign: bool = False) -> dict[str, str]:
    """Return the values with which a run continues: `auto` means what it meant when the run was started.

    Args:
        table: The table with which the run is to continue.
        recorded: The table that the run directory records.
        foreign: Whether the recorded engine is not part of the library. Such an engine has to be named again, since a
            run directory must not import it.
    """
    keys = ("precision", "compile") if foreign else ("name", "precision", "compile")
    return {key: getattr(recorded, key) for key in keys if getattr(table, key) == AUTO}


def runs_at_once(table: EngineKeys, cores: int) -> int:
    """Return how many runs are made at the same time: one if a run uses a GPU or several processes.

    Args:
        table: The table of the experiments.
        cores: The number of cores.
    """
    if table.name not in (AUTO, "serial") or table.device not in ("", "cpu"):
        return 1
    return max(1, cores // table.threads)


def alongside_others(table: EngineKeys) -> dict[str, Any]:
    """Return the changes of a table for a run alongside others: where `auto` may choose processes, it does not.

    The run has the same bits in the serial engine, which `auto` then chooses.
    """
    return {"workers": 1} if table.name == AUTO else {}
