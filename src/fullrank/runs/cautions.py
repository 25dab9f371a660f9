"""What a user should know about a run that is possible but may not be what is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullrank.runs.assemble import Assembly


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
            "name it in method.name, alone or with others (+)"
        )
    data = assembly.federation.data
    if assembly.experiment.data.normalise == "auto" and data.images and data.mean is None:
        found.append(
            f'the images of "{data.name}" are only divided by 255, because data.normalise = "auto" knows no '
            'statistics of them; give data.normalise = { mean = [...], std = [...] }, or "half", or "none" if this '
            "is meant"
        )
    # Some authors' partitions lose a few samples, and one client alone, as in a search, is a part taken on purpose.
    if assembly.federation.orphaned and assembly.federation.clients > 1:
        found.append(f"the partition leaves data out: {assembly.federation.left_out()}")
    if torn := assembly.federation.shared_groups():
        found.append(
            f"{torn} groups (samples that belong together, such as those of one patient) have samples at several "
            "clients"
        )
    return found
