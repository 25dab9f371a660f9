"""The reading of a page: sentences about what its figures show and whether to believe them.

Each sentence is written by one rule, a small function with a threshold that has a name. A rule returns nothing for runs
of which its sentence would not be true.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fullrank.comparison.printed import difference_text, format_of, p_text
from fullrank.files import tensor_names
from fullrank.local.plan import last_batch_too_small
from fullrank.metrics.details import dense
from fullrank.metrics.evaluate import DYING, dying
from fullrank.report.page.clients import member_rows
from fullrank.report.page.costs import bytes_of, mean_of, seconds_of
from fullrank.report.page.predictions import whole_test
from fullrank.report.page.representation import course_of, of_clients, of_global
from fullrank.report.page.setup import machines
from fullrank.report.page.subject import COMPLETE, RUNNING, Cohort, Group, Member, Subject, accuracy_label
from fullrank.runs.client_tables import STAGES
from fullrank.runs.display import counted

# Thresholds. Those of accuracies are in points of per cent.

LEARNED = 5.0
"""How far above guessing an accuracy must be for a run to have learned."""
WINDOW = 5
"""The number of evaluations in a mean of the last ones."""
RISING = 1.0
"""The rise between two windows from which a curve is still rising, if it is more than their standard deviation."""
FALLEN = 2.0
"""The distance of the last round below the best from which it matters which one is quoted."""
DROP = 10.0
"""The fall of the accuracy within one evaluation that is a sudden drop."""
GROWN = 3.0
"""How many times its least value the last loss must be for a run to have diverged, if it is worse than guessing."""
FAR_ROUNDS = 0.05
"""The share of rounds with one client far outside the others from which this is reported."""
CLIPPED = 0.5
"""The share of local epochs with a mean norm of the gradient above `train.clip_norm` from which this is reported."""
ENOUGH_SEEDS = 3
"""The fewest seeds with which a difference between methods can be believed."""
SIGNIFICANT = 0.05
"""The corrected p-value up to which a difference is called clear."""
WIDE = 2.0
"""The half width of an interval of the test accuracy from which the test set is called small."""
PERSONAL = 2.0
"""The change of clients' mean accuracy by local training from which it is reported."""
UNEQUAL = 15.0
"""How far the worst tenth of clients must be below the mean for clients to be served unequally."""
CONFUSED = 0.2
"""The share of a class that is predicted as one other class from which the pair is reported."""
FEWEST = 10
"""The fewest test samples of a class about which a sentence is written."""
MISCALIBRATED = 5.0
"""The distance between mean confidence and accuracy from which a model is too confident, or not enough."""
COLLAPSED = 0.5
"""The share of C − 1, the rank of C separated class means, below which the effective rank is called low."""
RANK_LOST = 0.7
"""The share of its highest value below which the effective rank has fallen."""
GAP = -0.5
"""The mean gap R below which clients' spectra lie clearly below that of the global model."""
UNLIKE = 0.5
"""The mean CKA of clients' classifiers below which clients disagree."""
DIFFERENT = 1.0
"""The mean distance of clients to the distribution of all from which they differ strongly (0 equal, 2 disjoint)."""
DEARER, SLOWER = 1.2, 1.5
"""How many times the least communication, or the least time, of any method is reported."""
EARLY = 0.25
"""The share of the evaluations at the beginning in which sudden drops are usual."""
MOST_SENTENCES = 50
"""The largest number of sentences of one rule."""


@dataclass(frozen=True)
class Rule:
    """A rule: the level of its sentences, and the function that writes them for each run, group, cohort or page."""

    name: str
    level: str
    of: type
    write: Callable[[Any], Iterable[str]]


RULES: list[Rule] = []
"""All rules, in the order of their sentences within a level."""


def rule(level: str, of: type) -> Callable[[Callable[[Any], Iterable[str]]], Callable[[Any], Iterable[str]]]:
    """Return a decorator that adds a function to the rules."""

    def add(write: Callable[[Any], Iterable[str]]) -> Callable[[Any], Iterable[str]]:
        RULES.append(Rule(write.__name__, level, of, write))
        return write

    return add


def read(subject: Subject) -> list[dict[str, Any]]:
    """Return the sentences about runs, warnings first: one for each rule, with further ones of the same rule."""
    found = [item for each in RULES for item in _written(each, subject)]
    order = ("warn", "good", "note")
    return sorted(found, key=lambda item: order.index(item["level"]))


def _written(each: Rule, subject: Subject) -> Iterator[dict[str, Any]]:
    items = list(_items(each.of, subject))
    said: dict[str, list[str]] = {}
    for name, item in items:
        for sentence in each.write(item):
            said.setdefault(sentence, []).append(name)
    of_all = f"all {len(items)} runs" if each.of is Member else f"all {len(items)} methods"
    first, *more = [
        _about([of_all] if len(names) == len(items) > 2 else names, sentence)
        for sentence, names in list(said.items())[:MOST_SENTENCES]
    ] or [""]
    if first:
        yield {"level": each.level, "rule": each.name, "text": first, "more": more}


def _about(names: list[str], sentence: str) -> str:
    """Return a sentence that begins with what it is about, where a page has several runs."""
    known = [name for name in names if name]
    if not known:
        return sentence[0].upper() + sentence[1:]
    listed = ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")
    return f"{listed}: {sentence}"


def _items(of: type, subject: Subject) -> Iterator[tuple[str, Any]]:
    if of is Subject:
        yield "", subject
    for cohort in subject.cohorts:
        where = f" on {cohort.title}" if cohort.title else ""
        if of is Cohort:
            yield cohort.title, cohort
        for group in cohort.groups:
            alone = len(subject.groups) == 1
            if of is Group and group.shown:
                yield "" if alone else f"{group.label}{where}", group
            for member in group.members if of is Member else ():
                seed = "" if len(group.members) == 1 else f"seed {member.seed}"
                name = "" if alone else f"{group.label}{where}"
                yield ", ".join(filter(None, (name, seed))), member


def _points(value: float) -> str:
    return f"{value:.1f} points"


def _per_cent(value: float) -> str:
    return f"{value:.1f} %"


def _accuracies(group: Group) -> dict[int, float]:
    """Return the mean accuracy of a group by round, in per cent."""
    spread = group.over_rounds(lambda member: member.course(member.accuracy_key))
    return {round: 100 * value for round, value in zip(spread["x"], spread["y"], strict=True)}


def guessing(member: Member) -> tuple[float, str]:
    """Return the accuracy in per cent of a model that always predicts the most frequent class of the test set.

    Where the labels of the test set are not known, it is that of guessing one of the classes at random.

    Returns:
        The accuracy, and the words for it.
    """
    row = whole_test(member)
    if row is None:
        number = max(1, len(member.classes))
        return 100 / number, f"guessing one of {number} classes"
    counts: Counter[int] = Counter()
    for label, _, count in row["confusion"]:
        counts[label] += count
    return 100 * max(counts.values()) / max(1, counts.total()), "guessing the most frequent class"


def _share(rounds: int, of: int) -> str:
    return f"{rounds} of {counted(of, 'round')}"


# Whether to believe it


@rule("warn", Member)
def not_complete(member: Member) -> Iterator[str]:
    """Report a run that is running, was stopped, or ended early."""
    rounds = _share(len(member.rows), member.run.experiment.train.rounds)
    if member.state == RUNNING:
        yield f"the run is still running ({rounds}), so everything here is preliminary."
    elif member.state != COMPLETE and member.reason:
        yield f"the run stopped after {rounds}: {member.reason.rstrip('.')}."
    elif member.state != COMPLETE:
        yield f"the run is not finished ({rounds}); the command that started it continues it."


@rule("warn", Subject)
def failed(subject: Subject) -> Iterator[str]:
    """Report a run of a comparison that failed before it had a directory."""
    for name, reason in subject.failed.items():
        yield f"The run of {name} failed: {reason.rstrip('.')}."


@rule("warn", Member)
def diverged(member: Member) -> Iterator[str]:
    """Report a loss that is not finite, or that has grown far beyond its least value and that of guessing."""
    broken = [row["round"] for row in member.rows if "loss" in row and row["loss"] is None]
    losses = list(member.course("loss").values())
    chance = math.log(len(member.classes)) if len(member.classes) > 1 else math.inf
    if broken:
        yield f"the loss is not finite from round {broken[0]} on: the run has diverged; lower train.lr."
    elif "not finite" in member.reason:
        yield "training diverged: what a client sent was not finite; lower train.lr or set train.clip_norm."
    elif len(losses) > 1 and losses[-1] > max(chance, GROWN * min(losses)):
        yield f"the test loss has grown from {min(losses):.3g} to {losses[-1]:.3g}, which is worse than guessing."


@rule("warn", Subject)
def too_few_seeds(subject: Subject) -> Iterator[str]:
    """Report methods that are compared over fewer than three seeds each, or a single run."""
    fewest = min((len({member.seed for member in group.shown}) for group in subject.groups), default=0)
    if not 0 < fewest < ENOUGH_SEEDS:
        return
    says = "One seed says nothing about the spread" if fewest == 1 else "Two seeds say little about the spread"
    yield f"{says} between runs; three or more are needed before a difference can be believed."


@rule("warn", Subject)
def different_data(subject: Subject) -> Iterator[str]:
    """Report runs on different data or partitions."""
    if len(subject.cohorts) > 1:
        named = "; ".join(cohort.title for cohort in subject.cohorts[:5]) + (" …" if len(subject.cohorts) > 5 else "")
        yield (
            f"The runs are on {len(subject.cohorts)} different data sets or partitions ({named}), so they have "
            "separate charts and are never in one line or one difference."
        )


@rule("warn", Group)
def not_learned(group: Group) -> Iterator[str]:
    """Report an accuracy that is not clearly above that of guessing."""
    values = group.values(lambda member: member.result)
    guess, words = guessing(group.first)
    if values and 100 * statistics.fmean(values) < guess + LEARNED:
        reached = _per_cent(100 * statistics.fmean(values))
        yield f"the accuracy of {reached} is hardly above that of {words}, {_per_cent(guess)}."


@rule("warn", Member)
def sudden_drops(member: Member) -> Iterator[str]:
    """Report evaluations at which the accuracy is far below that of the one before."""
    course = list(member.course(member.accuracy_key).items())
    late = course[int(EARLY * len(course)) :]
    falls = {
        now: (100 * before, 100 * after)
        for (_, before), (now, after) in itertools.pairwise(late)
        if 100 * (before - after) > DROP
    }
    if not falls:
        return
    worst = max(falls, key=lambda round: falls[round][0] - falls[round][1])
    far = set(member.far)
    cause = (
        f"; in {len(far & set(falls))} of them one client moved far more than the others" if far & set(falls) else ""
    )
    yield (
        f"the accuracy fell by more than {DROP:.0f} points {_times(len(falls))} (most in round {worst}, from "
        f"{_per_cent(falls[worst][0])} to {_per_cent(falls[worst][1])}){cause}."
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


@rule("warn", Member)
def far_clients(member: Member) -> Iterator[str]:
    """Report one client whose weights moved more than twice as far as any other's, in a share of the rounds."""
    found = list(member.far.values())
    if len(found) <= FAR_ROUNDS * len(member.rows):
        return
    (client, times), *_ = Counter(each["client"] for each in found).most_common()
    most = max(found, key=lambda each: each["drift"] / each["next"])
    yield (
        f"in {_share(len(found), len(member.rows))} one client moved more than twice as far as any other, most often "
        f"{member.client_name(client)} ({_times(times)}); at most {most['drift']:.3g} against {most['next']:.3g}."
    )


@rule("warn", Member)
def tiny_last_batches(member: Member) -> Iterator[str]:
    """Report clients whose last batch is kept although it has too few samples for BatchNorm."""
    train, sizes = member.run.experiment.train, member.partition.get("sizes", [])
    few = {k: n % train.batch_size for k, n in enumerate(sizes) if last_batch_too_small(n, train.batch_size)}
    normed = _has_batch_norm(member)
    if train.last_batch != "keep" or not few or normed is False:
        return
    client = min(few, key=few.__getitem__)
    known = "" if normed else " if the network has BatchNorm"
    yield (
        f'train.last_batch = "keep" leaves {counted(len(few), "client")} with a last batch of few samples '
        f'({member.client_name(client)}: {few[client]}), which can throw the model off{known}; "auto" leaves it out.'
    )


def _has_batch_norm(member: Member) -> bool | None:
    """Return whether the model has running statistics; None if no model is there."""
    path = member.run.path
    files = [path / "model.safetensors", *sorted((path / "checkpoints").glob("server-*"))] if path is not None else []
    for file in files:
        if file.is_file():
            return any(name.endswith("running_mean") for name in tensor_names(file))
    return None


@rule("warn", Member)
def skipped_clients(member: Member) -> Iterator[str]:
    """Report clients that were left out of rounds, or had no batch to train on."""
    left = [(client, why) for row in member.rows for client, why in row.get("skipped", {}).items()]
    if left:
        client, why = left[0]
        name, reason = member.client_name(int(client)), str(why).rstrip(".")
        yield f"clients were left out {_times(len(left))}, first {name}: {reason}."
    idle = Counter(client for row in member.rows for client in row.get("idle", []))
    if idle:
        client, times = idle.most_common(1)[0]
        yield (
            f"{counted(len(idle), 'client')} had no batch to train on and sent nothing, most often "
            f"{member.client_name(client)} ({_times(times)})."
        )


@rule("note", Member)
def clipped(member: Member) -> Iterator[str]:
    """Report gradients whose mean norm is above the limit in most local epochs."""
    limit = member.run.experiment.train.clip_norm
    norms = [
        epoch["grad_norm"]
        for row in member.rows
        for client in row.get("clients", [])
        for epoch in client.get("epochs", [])
        if epoch.get("grad_norm") is not None
    ]
    share = sum(norm > limit for norm in norms) / len(norms) if norms and limit else 0.0
    if share >= CLIPPED:
        yield f"the mean norm of gradients is above train.clip_norm = {limit:g} in {100 * share:.0f} % of local epochs."


@rule("warn", Member)
def dead_features(member: Member) -> Iterator[str]:
    """Report features of the global model that became the same for every sample."""
    shares = list(member.course("dead_features").values())
    if shares and max(shares) >= DYING and any(dying(shares[:last]) for last in range(1, len(shares) + 1)):
        yield (
            f"{100 * shares[-1]:.0f} % of the features are dead, the same for every sample (at best "
            f"{100 * min(shares):.0f} %); lower the weight of the method's added loss, or train.lr."
        )


@rule("warn", Member)
def recorded_warnings(member: Member) -> Iterator[str]:
    """Report warnings that the run itself has recorded and that no other rule reports."""
    known = ("not finite", "features are dead", "last batch")
    for text in dict.fromkeys(text for row in member.rows for text in row.get("cautions", [])):
        if not any(part in text for part in known):
            yield f"the run warned: {text.rstrip('.')}."


@rule("note", Cohort)
def small_test_set(cohort: Cohort) -> Iterator[str]:
    """Report a test set so small that its accuracy is uncertain by some points."""
    rows = [row for member in cohort.members if (row := whole_test(member))]
    ends = [row["intervals"].get("accuracy", (None, None)) for row in rows]
    halves = [100 * (high - low) / 2 for low, high in ends if low is not None and high is not None]
    if halves and statistics.fmean(halves) > WIDE:
        yield (
            f"the test set of {rows[0]['samples']:,} samples leaves the accuracy of a run uncertain by about "
            f"± {statistics.fmean(halves):.0f} points."
        )


@rule("note", Cohort)
def different_software(cohort: Cohort) -> Iterator[str]:
    """Report runs that are compared although different versions or machines made them."""
    everything = [each for member in cohort.members for each in machines(member)]
    versions = {(each.get("fullrank"), each.get("git_commit"), each.get("torch")) for each in everything}
    places = {(each.get("cpu"), each.get("gpu"), each.get("threads")) for each in everything}
    if len(versions) > 1:
        yield f"the runs were made with {len(versions)} different versions of fullrank or torch."
    if len(places) > 1:
        yield f"the runs were made on {len(places)} different machines or numbers of threads: times are not comparable."


# What it shows


@rule("good", Group)
def learned(group: Group) -> Iterator[str]:
    """Report an accuracy that is clearly above that of guessing."""
    values = group.values(lambda member: member.result)
    guess, words = guessing(group.first)
    if values and 100 * statistics.fmean(values) >= guess + LEARNED:
        has_rounds = any(member.course(member.accuracy_key) for member in group.shown)
        label = accuracy_label([group.first]) if has_rounds else "Clients' accuracy"
        reached = _per_cent(100 * statistics.fmean(values))
        yield f"{label.lower()} of {reached} at the end; {words} has {_per_cent(guess)}."


@rule("good", Cohort)
def clear_difference(cohort: Cohort) -> Iterator[str]:
    """Report methods that the seeds tell from the reference."""
    for row, text in _differences(cohort):
        if row.difference.p_holm is not None and row.difference.p_holm <= SIGNIFICANT:
            better = "above" if row.difference.mean > 0 else "below"
            seeds = counted(len(row.difference.values), "seed")
            yield (
                f"over {seeds}, {row.method} is {better} {row.difference.to}: {text} points (95 % interval), corrected "
                f"p {p_text(row)}."
            )


@rule("note", Cohort)
def no_difference(cohort: Cohort) -> Iterator[str]:
    """Report methods that the seeds do not tell from the reference."""
    for row, text in _differences(cohort):
        enough = len(row.difference.values) >= ENOUGH_SEEDS
        if enough and (row.difference.p_holm is None or row.difference.p_holm > SIGNIFICANT):
            number = counted(len(row.difference.values), "seed")
            yield f"{number} do not tell {row.method} from {row.difference.to}: {text} points (95 % interval)."


def _differences(cohort: Cohort) -> Iterator[tuple[Any, str]]:
    if cohort.comparison is None:
        return
    show = format_of(cohort.comparison)
    for row in cohort.compared:
        if row.difference is not None:
            yield row, difference_text(row, show)


@rule("note", Group)
def still_rising(group: Group) -> Iterator[str]:
    """Report an accuracy that rose between the last two windows."""
    values = list(_accuracies(group).values())
    if len(values) < 2 * WINDOW:
        return
    rise = statistics.fmean(values[-WINDOW:]) - statistics.fmean(values[-2 * WINDOW : -WINDOW])
    if rise > max(RISING, statistics.stdev(values[-2 * WINDOW :])):
        yield f"the accuracy was still rising, by {_points(rise)} over the last {2 * WINDOW} evaluations: train longer."


@rule("note", Group)
def best_not_last(group: Group) -> Iterator[str]:
    """Report a last round that is clearly below the best one."""
    course = _accuracies(group)
    if not course or group.first.chosen_by:
        return
    best, last = max(course, key=course.__getitem__), max(course)
    if course[best] - course[last] > FALLEN:
        yield (
            f"the last round has {_per_cent(course[last])}, the best one, round {best}, {_per_cent(course[best])}; the "
            "best is chosen on the test set and too good to be quoted, so choose rounds by data.validation."
        )


@rule("note", Group)
def personal_gain(group: Group) -> Iterator[str]:
    """Report what training on a client's own samples changes for the client."""
    before = group.values(lambda member: member.personal("received"))
    for stage, words in (("local", "local training"), ("personalised", "the method's personalisation")):
        after = group.values(partial(Member.personal, stage=stage))
        if not before or not after:
            continue
        change = 100 * (statistics.fmean(after) - statistics.fmean(before))
        if abs(change) > PERSONAL:
            verb = "raises" if change > 0 else "lowers"
            yield (
                f"{words} {verb} the clients' mean accuracy on their own samples from "
                f"{_per_cent(100 * statistics.fmean(before))} to {_per_cent(100 * statistics.fmean(after))}."
            )


@rule("note", Group)
def unequal_clients(group: Group) -> Iterator[str]:
    """Report clients that are served far worse than the mean."""
    stages = group.first.summary.get("personal", {})
    stage = next((each for each in reversed(list(STAGES)) if each in stages), None)
    if stage is None:
        return
    found = stages[stage]
    low, mean = found.get("worst_decile"), found.get("mean")
    if low is None or mean is None or 100 * (mean - low) <= UNEQUAL:
        return
    worst = min(member_rows(group.first, stage), key=lambda row: row["metrics"].get("accuracy") or 0.0, default=None)
    named = f" (lowest: {group.first.client_name(worst['client'])})" if worst and worst["client"] is not None else ""
    yield (
        f"clients are served unequally: the worst tenth has {_per_cent(100 * low)}, the mean {_per_cent(100 * mean)}, "
        f"of {STAGES[stage]}{named}."
    )


@rule("warn", Group)
def ignored_classes(group: Group) -> Iterator[str]:
    """Report classes of which no test sample is recognised."""
    row = whole_test(group.first)
    if row is None:
        return
    sizes = _label_counts(row)
    lost = [k for k, value in enumerate(row["recall"]) if value == 0 and sizes[k] >= FEWEST]
    if lost:
        names = ", ".join(group.first.classes[k] for k in lost[:6])
        names += f" and {len(lost) - 6} more" if len(lost) > 6 else ""
        number = "one class" if len(lost) == 1 else f"{len(lost)} classes"
        yield f"the global model recognises no sample of {number}: {names}."


def _label_counts(row: Mapping[str, Any]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for label, _, count in row["confusion"]:
        counts[label] += count
    return counts


@rule("note", Group)
def confused_classes(group: Group) -> Iterator[str]:
    """Report pairs of classes of which one is often taken for the other."""
    row, classes = whole_test(group.first), group.first.classes
    if row is None:
        return
    table = dense(row["confusion"], len(classes))
    sums = table.sum(axis=1)
    pairs = [
        (table[k, m] / sums[k], k, m)
        for k in range(len(classes))
        for m in range(len(classes))
        if k != m and sums[k] >= FEWEST and table[k, m] >= CONFUSED * sums[k]
    ]
    if pairs:
        named = ", ".join(
            f"{classes[k]} as {classes[m]} ({100 * share:.0f} %)" for share, k, m in sorted(pairs)[::-1][:3]
        )
        yield f"the global model often takes one class for another: {named}."


@rule("note", Group)
def miscalibrated(group: Group) -> Iterator[str]:
    """Report a mean confidence that differs from the accuracy."""
    row = whole_test(group.first)
    if row is None or "calibration" not in row:
        return
    bins = row["calibration"]
    counts = bins["counts"]
    total = sum(counts)
    gap = (
        100
        * sum(n * (c - a) for n, c, a in zip(counts, bins["confidence"], bins["accuracy"], strict=True) if n)
        / max(1, total)
    )
    if abs(gap) > MISCALIBRATED:
        which = "too confident" if gap > 0 else "not confident enough"
        yield f"the global model is {which}: mean confidence and accuracy differ by {_points(abs(gap))}."


@rule("warn", Group)
def low_rank(group: Group) -> Iterator[str]:
    """Report a representation with far fewer effective dimensions than separated classes need."""
    classes = len(group.first.classes)
    course = course_of(group.first, "effective_rank", of_global)
    if course and classes > 2 and course[max(course)] < COLLAPSED * (classes - 1):
        yield (
            f"the representation has collapsed: its effective rank is {course[max(course)]:.1f}, and {classes} "
            f"separated classes need about {classes - 1}."
        )


@rule("note", Group)
def rank_falls(group: Group) -> Iterator[str]:
    """Report an effective rank that fell during the run."""
    course = course_of(group.first, "effective_rank", of_global)
    if len(course) > 2 and course[max(course)] < RANK_LOST * max(course.values()):
        top = max(course, key=course.__getitem__)
        yield f"the effective rank fell from {course[top]:.1f} in round {top} to {course[max(course)]:.1f} at the end."


@rule("note", Group)
def local_collapse(group: Group) -> Iterator[str]:
    """Report clients' spectra far below that of the global model."""
    course = course_of(group.first, "gap", of_clients)
    if course and course[max(course)] < GAP:
        yield (
            "clients' representations have collapsed further than the global model's: the mean gap R of their spectra "
            f"is −{-course[max(course)]:.2f} in the last probe."
        )


@rule("note", Group)
def unlike_clients(group: Group) -> Iterator[str]:
    """Report clients whose classifiers disagree."""
    found = course_of(group.first, "", lambda probe, _: probe.get("cka_by_layer", {}).get("classifier"))
    if found and found[max(found)] < UNLIKE:
        alike = f"{found[max(found)]:.2f}"
        yield f"the probed clients disagree: the CKA of their classifiers is {alike} on average (1: alike)."


@rule("note", Cohort)
def different_clients(cohort: Cohort) -> Iterator[str]:
    """Report clients whose labels are distributed very differently."""
    found = [member.partition["emd"]["mean"] for member in cohort.members if member.partition.get("emd")]
    if found and statistics.fmean(found) > DIFFERENT:
        yield (
            "the clients differ strongly: the mean distance of their labels to those of all is "
            f"{statistics.fmean(found):.2f} (0 equal, 2 disjoint)."
        )


@rule("note", Cohort)
def costs(cohort: Cohort) -> Iterator[str]:
    """Report methods that send or take much more than the cheapest one."""
    for of, most, verb in ((bytes_of, DEARER, "sends"), (seconds_of, SLOWER, "takes")):
        known = {group.label: value for group in cohort.groups if (value := mean_of(group, of))}
        if len(known) < 2:
            continue
        least = min(known, key=known.__getitem__)
        dear = {label: value / known[least] for label, value in known.items() if value > most * known[least]}
        if dear:
            label = max(dear, key=dear.__getitem__)
            what = "bytes" if verb == "sends" else "time"
            yield f"compared with {least}, {label} {verb} {dear[label]:.1f} times the {what}."
