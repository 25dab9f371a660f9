"""Warnings about a run that is possible, but may not be what the user wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fullrank.data.dataset import DataSet
from fullrank.data.federation import CLASSES_NAMED, site_names
from fullrank.data.registry import SITE_PARTITIONS, is_file
from fullrank.local.plan import last_batch_too_small, smallest_batch

if TYPE_CHECKING:
    from fullrank.runs.assemble import Assembly

CLIENTS_NAMED = 5
FILES_NAMED = 3


def cautions(assembly: Assembly) -> list[str]:
    """Return warnings about a run's method, model and data, one sentence each."""
    parts = assembly.composition.parts
    found = [text for part in parts if (text := part.caution(assembly.site.settings))]
    counts, seen = assembly.federation.class_counts, assembly.federation.seen
    found += [text for part in parts if (text := part.caution_of_data(counts[seen], seen))]
    made_for = (getattr(module, "made_for", "") for module in assembly.network.module.modules())
    wanted = next(filter(None, made_for), "")
    if wanted and wanted not in [part.name for part in parts]:
        found.append(
            f'the network is made for the method "{wanted}", which is missing, so it trains by plain gradients; '
            f'set method.name to it, or add it to the method, as in "scaffold+{wanted}"'
        )
    data = assembly.federation.data
    if assembly.experiment.data.normalise == "auto" and data.images and data.mean is None:
        found.append(
            f'the images of "{data.name}" are only divided by 255, because data.normalise = "auto" has no '
            'statistics of them; give data.normalise = { mean = [...], std = [...] }, or "half", or "none" if this '
            "is meant"
        )
    found += _about_files(data, assembly.federation.untrained)
    # Some authors' partitions lose a few samples, and a single client, as in a search, is a part taken on purpose.
    if assembly.federation.orphaned and assembly.federation.clients > 1:
        found.append(f"the partition leaves data out: {assembly.federation.left_out()}")
    if torn := assembly.federation.shared_groups():
        found.append(
            f"{torn} groups (samples that belong together, such as those of one patient) have samples at several "
            "clients"
        )
    found += _clients_of_file(assembly)
    found += _small_batches(assembly)
    return found


def _clients_of_file(assembly: Assembly) -> list[str]:
    """Warn about named clients in a file of a partition that are not the sites of the data."""
    federation, how = assembly.federation, assembly.experiment.data.partition
    columns = [column for column in SITE_PARTITIONS.values() if site_names(federation.data, column)]
    if not (is_file(how) and federation.names and columns) or federation.validations:
        return []
    kinds = " or ".join({"domain": "domains", "client": "natural clients"}[column] for column in columns)
    return [
        f'the clients of "{how}" are not {kinds} of "{federation.data.name}" by their names and samples, so they are '
        "not evaluated on the test samples of sites"
    ]


def _about_files(data: DataSet, untrained: Sequence[str]) -> list[str]:
    """Warn about files that were left out, and about classes that only the test set has."""
    found = [*data.remarks]
    if data.unreadable:
        first = ", ".join(data.unreadable[:FILES_NAMED]) + (", …" if len(data.unreadable) > FILES_NAMED else "")
        found.append(
            f'{len(data.unreadable)} files of "{data.name}" cannot be read and were left out (partition.json lists '
            f"all of them): {first}"
        )
    if untrained:
        named = ", ".join(untrained[:CLASSES_NAMED]) + (", …" if len(untrained) > CLASSES_NAMED else "")
        found.append(
            f"{len(untrained)} of {data.num_classes} classes have test samples and no training samples: {named}"
        )
    return found


def _small_batches(assembly: Assembly) -> list[str]:
    """Warn about batches that are too small for the network's BatchNorm and are trained on, or left out although
    kept."""
    settings, limit = assembly.site.settings, smallest_batch(assembly.site.settings.batch_size)
    if not assembly.network.has_batch_norm:
        return []
    sizes = {int(client): assembly.federation.size(client) for client in assembly.federation.seen}
    rests = {k: n % settings.batch_size for k, n in sizes.items() if last_batch_too_small(n, settings.batch_size)}
    whole = {k: n for k, n in sizes.items() if 1 < n < limit and n <= settings.batch_size}
    found = []
    if settings.last_batch == "keep" and (few := {k: rest for k, rest in rests.items() if rest > 1}):
        found.append(
            'train.last_batch = "keep" makes a last batch of few samples, whose BatchNorm statistics can ruin the '
            f'model, at {_named(few, sizes)}; "auto" leaves it out, "wrap" fills it up'
        )
    if settings.last_batch == "keep" and (single := {k: rest for k, rest in rests.items() if rest == 1}):
        found.append(
            f"the last batch of {_named(single, sizes)} is left out in each epoch although train.last_batch = "
            '"keep", because BatchNorm cannot be trained on a single sample; "wrap" fills it up'
        )
    if settings.last_batch != "drop" and whole:
        found.append(
            f"the only batch of {_named(whole, sizes)} is too small for good BatchNorm statistics, but is trained on; "
            'train.last_batch = "drop" leaves out all clients with less than a batch'
        )
    return found


def _named(samples: Mapping[int, int], sizes: Mapping[int, int]) -> str:
    """Return clients with the number of samples in their small batch, the smallest first."""
    order = sorted(samples, key=samples.__getitem__)
    named = ", ".join(f"client {k} ({samples[k]} of {sizes[k]} samples)" for k in order[:CLIENTS_NAMED])
    return named + (f" and {len(order) - CLIENTS_NAMED} more" if len(order) > CLIENTS_NAMED else "")
