"""The reading of a page: each rule writes its sentence where it is true, and is silent where it is not."""

from __future__ import annotations

import pytest

from fullrank.report.page.reading import RULES, guessing, read
from recorded_runs import CLASSES, HEALTHY, member, own, probe, row, rows, seeds, subject, whole


def written(of):
    """The sentences about a subject by rule."""
    return {item["rule"]: [item["text"], *item["more"]] for item in read(of)}


def drifting(rounds):
    far = {"far_client": {"client": 2, "drift": 9.0, "next": 1.3}}
    return rows(HEALTHY, dict.fromkeys(rounds, far))


def methods(tmp_path, second, number=3):
    """FedAvg at 88 % and FedProx with other last accuracies, by seed."""
    found = []
    for seed in range(number):
        own_path = tmp_path / f"fedprox-{seed}"
        curve = [*HEALTHY[:-5], *[second(seed)] * 5]
        found += [
            member(seed, tmp_path / f"fedavg-{seed}", metrics=rows([*HEALTHY[:-5], *[0.86 + 0.01 * seed] * 5])),
            member(seed, own_path, metrics=rows(curve), **{"method.name": "fedprox"}),
        ]
    return subject(*found)


def confused(share):
    """Class 0 is taken for class 1 in this share of its thousand samples."""
    right = [[k, k, 1000] for k in range(1, CLASSES)]
    return whole([[0, 0, round(1000 * (1 - share))], [0, 1, round(1000 * share)], *right])


PERSONAL = {"received": {"mean": 0.80, "worst_decile": 0.7}, "local": {"mean": 0.90, "worst_decile": 0.85}}
UNEQUAL = {"local": {"mean": 0.90, "worst_decile": 0.60}}
BATCHES = {"train.last_batch": "keep", "train.batch_size": 32}

CASES = {
    # rule: runs of which its sentence is true, a part of the sentence, and runs of which it is nearly true
    "not_complete": (
        lambda _: seeds(state="stopped", reason="client 2: out of paint", metrics=rows(HEALTHY[:5])),
        "stopped after 5 of 16 rounds: client 2: out of paint.",
        lambda _: seeds(),
    ),
    "failed": (
        lambda _: subject(*(member(k) for k in range(3)), failed={"moon, seed 1": "it burnt"}),
        "The run of moon, seed 1 failed: it burnt.",
        lambda _: seeds(),
    ),
    "diverged": (
        lambda _: seeds(metrics=[*rows(HEALTHY[:-1]), row(16, 0.1, loss=None)]),
        "not finite from round 16 on",
        lambda _: seeds(metrics=[*rows(HEALTHY[:-1]), row(16, 0.88, loss=0.3)]),
    ),
    "too_few_seeds": (lambda _: seeds(2), "Two seeds say little", lambda _: seeds(3)),
    "different_data": (
        lambda _: subject(*(member(k, **{"data.alpha": a}) for k in range(3) for a in (0.1, 0.5))),
        "2 different data sets or partitions (alpha = 0.1; alpha = 0.5)",
        lambda _: subject(*(member(k, **{"train.lr": a}) for k in range(3) for a in (0.1, 0.5))),
    ),
    "not_learned": (
        lambda _: seeds(metrics=rows([0.14] * 16)),
        "hardly above that of guessing the most frequent class, 10.0 %",
        lambda _: seeds(metrics=rows([0.16] * 16)),
    ),
    "sudden_drops": (
        lambda _: seeds(metrics=rows([*HEALTHY[:-2], 0.70, 0.88])),
        "once (most in round 15, from 88.0 % to 70.0 %)",
        lambda _: seeds(metrics=rows([0.5, 0.3, *HEALTHY[2:-2], 0.79, 0.88])),  # early, or 9 points
    ),
    "far_clients": (
        lambda _: seeds(metrics=drifting([3, 4])),
        "in 2 of 16 rounds one client moved more than twice as far as any other, most often client 2",
        lambda _: seeds(metrics=[*drifting([16]), *[row(r, 0.88) for r in range(17, 21)]]),
    ),
    "tiny_last_batches": (
        lambda _: seeds(partition={"sizes": [64, 65, 64, 64]}, **BATCHES),
        "1 client with a last batch of few samples (client 1: 1)",
        lambda _: seeds(partition={"sizes": [64, 65, 64, 64]}, **{**BATCHES, "train.last_batch": "drop"}),
    ),
    "skipped_clients": (
        lambda _: seeds(metrics=rows(HEALTHY, {4: {"skipped": {"3": "it fell asleep."}}})),
        "left out once, first client 3: it fell asleep.",
        lambda _: seeds(),
    ),
    "clipped": (
        lambda _: seeds(**{"train.clip_norm": 0.4}),
        "above train.clip_norm = 0.4 in 100 % of local epochs",
        lambda _: seeds(**{"train.clip_norm": 0.6}),
    ),
    "dead_features": (
        lambda _: seeds(metrics=rows(HEALTHY, {r: {"dead_features": 0.9} for r in range(8, 17)})),
        "90 % of the features are dead",
        lambda _: seeds(metrics=rows(HEALTHY, {r: {"dead_features": 0.05} for r in range(8, 17)})),
    ),
    "recorded_warnings": (
        lambda _: seeds(metrics=rows(HEALTHY, {1: {"cautions": ["the images are upside down"]}})),
        "the run warned: the images are upside down.",
        lambda _: seeds(metrics=rows(HEALTHY, {1: {"cautions": ["round 1: the loss is not finite"]}})),
    ),
    "small_test_set": (
        lambda _: seeds(table=[whole(intervals={"accuracy": [0.85, 0.91]})]),
        "uncertain by about ± 3 points",
        lambda _: seeds(table=[whole(intervals={"accuracy": [0.861, 0.899]})]),
    ),
    "different_software": (
        lambda _: subject(*(member(k, environment={"torch": f"2.{k}", "cpu": "one"}) for k in range(3))),
        "3 different versions",
        lambda _: subject(*(member(k, environment={"torch": "2.1", "cpu": "one"}) for k in range(3))),
    ),
    "learned": (lambda _: seeds(), "88.0 % at the end", lambda _: seeds(metrics=rows([0.14] * 16))),
    "clear_difference": (
        lambda path: methods(path, lambda seed: 0.93 + 0.01 * seed + 0.0001 * seed**2),
        "fedprox is above fedavg: +7.0",
        lambda path: methods(path, lambda seed: (0.90, 0.84, 0.88)[seed]),
    ),
    "no_difference": (
        lambda path: methods(path, lambda seed: (0.90, 0.84, 0.88)[seed]),
        "3 seeds do not tell fedprox from fedavg",
        lambda path: methods(path, lambda seed: 0.93 + 0.01 * seed + 0.0001 * seed**2),
    ),
    "still_rising": (
        lambda _: seeds(metrics=rows([0.5 + 0.02 * r for r in range(16)])),
        "still rising, by 10.0 points",
        lambda _: seeds(metrics=rows([*[0.8] * 8, 0.8, 0.6, 0.8, *[0.8] * 5])),  # a drop in the first window
    ),
    "best_not_last": (
        lambda _: seeds(metrics=rows([*HEALTHY[:-1], 0.85])),
        "The last round has 85.0 %, the best one, round 7, 88.0 %",
        lambda _: seeds(metrics=rows([*HEALTHY[:-1], 0.87])),
    ),
    "personal_gain": (
        lambda _: seeds(ending={"personal": PERSONAL}),
        "Local training raises the clients' mean accuracy on their own samples from 80.0 % to 90.0 %",
        lambda _: seeds(ending={"personal": {**PERSONAL, "local": {"mean": 0.81}}}),
    ),
    "unequal_clients": (
        lambda _: seeds(ending={"personal": UNEQUAL}, table=[whole(), own(0, "local", 0.9), own(1, "local", 0.5)]),
        "the worst tenth has 60.0 %, the mean 90.0 %, of models after local training (lowest: client 1)",
        lambda _: seeds(ending={"personal": {"local": {"mean": 0.90, "worst_decile": 0.76}}}),
    ),
    "ignored_classes": (
        lambda _: seeds(table=[confused(1.0)]),
        "recognises no sample of one class: class 0",
        lambda _: seeds(table=[confused(0.99)]),
    ),
    "confused_classes": (
        lambda _: seeds(table=[confused(0.25)]),
        "class 0 as class 1 (25 %)",
        lambda _: seeds(table=[confused(0.15)]),
    ),
    "miscalibrated": (
        lambda _: seeds(table=[whole(calibration={"counts": [10], "confidence": [0.95], "accuracy": [0.85]})]),
        "too confident: mean confidence and accuracy differ by 10.0 points",
        lambda _: seeds(table=[whole(calibration={"counts": [10], "confidence": [0.89], "accuracy": [0.85]})]),
    ),
    "low_rank": (
        lambda _: seeds(probes=[probe(16, rank=3.0)]),
        "its effective rank is 3.0, and 10 separated classes need about 9",
        lambda _: seeds(probes=[probe(16, rank=5.0)]),
    ),
    "rank_falls": (
        lambda _: seeds(probes=[probe(5, 12.0), probe(10, 9.0), probe(16, 8.0)]),
        "fell from 12.0 in round 5 to 8.0",
        lambda _: seeds(probes=[probe(5, 12.0), probe(10, 10.0), probe(16, 9.0)]),
    ),
    "local_collapse": (
        lambda _: seeds(probes=[probe(16, gap=-0.8)]),
        "the mean gap R of their spectra is −0.80",
        lambda _: seeds(probes=[probe(16, gap=-0.4)]),
    ),
    "unlike_clients": (
        lambda _: seeds(probes=[probe(16, cka=0.3)]),
        "the CKA of their classifiers is 0.30",
        lambda _: seeds(probes=[probe(16, cka=0.6)]),
    ),
    "different_clients": (
        lambda _: seeds(partition={"emd": {"mean": 1.5}}),
        "is 1.50 (0 equal, 2 disjoint)",
        lambda _: seeds(partition={"emd": {"mean": 0.9}}),
    ),
    "costs": (
        lambda _: subject(
            *(member(k) for k in range(3)),
            *(
                member(k, metrics=[{**r, "bytes_up": 3000} for r in rows()], **{"method.name": "scaffold"})
                for k in range(3)
            ),
        ),
        "Compared with fedavg, scaffold sends 2.0 times the bytes.",
        lambda _: subject(*(member(k, **{"method.name": name}) for k in range(3) for name in ("fedavg", "scaffold"))),
    ),
}


def test_every_rule_has_a_case():
    assert list(CASES) == [rule.name for rule in RULES]


def test_a_healthy_run_has_a_good_sentence_and_no_other():
    assert list(written(seeds())) == ["learned"]


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_writes_what_is_true(rule, tmp_path):
    make, part, _ = CASES[rule]
    found = written(make(tmp_path))
    assert part in "\n".join(found[rule])


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_silent_otherwise(rule, tmp_path):
    *_, make = CASES[rule]
    assert rule not in written(make(tmp_path))


def test_guessing_is_the_share_of_the_most_frequent_class():
    table = [whole([[0, 0, 60], [1, 0, 30], [2, 2, 10]])]
    assert guessing(member(table=table)) == (pytest.approx(60.0), "guessing the most frequent class")
    assert guessing(member(table=[])) == (pytest.approx(10.0), "guessing one of 10 classes")


def test_a_run_whose_loss_grows_beyond_guessing_has_diverged():
    grown = [*rows(HEALTHY[:-1]), row(16, 0.1, loss=9.0)]
    assert "grown from 0.128 to 9" in written(seeds(metrics=grown))["diverged"][0]


def test_a_sentence_of_many_runs_is_written_once():
    stopped = [member(k, state="unfinished", metrics=rows(HEALTHY[:4])) for k in range(5)]
    (text,) = written(subject(*stopped))["not_complete"]
    assert text.startswith("all 5 runs: the run is not finished (4 of 16 rounds)")
    (text,) = written(subject(*stopped, member(5)))["not_complete"]
    assert text.startswith("seed 0, seed 1, seed 2 and 2 more: the run is not finished (4 of 16 rounds)")


def test_warnings_come_first():
    found = read(seeds(1, metrics=rows([*HEALTHY[:-1], 0.5])))
    levels = [item["level"] for item in found]
    assert levels == sorted(levels, key=("warn", "good", "note").index)
    assert levels[0] == "warn"
