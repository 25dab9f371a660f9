"""Writes what-leaves-a-site.md from the methods' declarations: `python docs/write_what_leaves.py`.

A test compares the page with what this program returns, and the declarations with the messages of every method.
"""

from __future__ import annotations

from pathlib import Path

from fullrank import methods
from fullrank.cli.methods import facts, leaving
from fullrank.methods import Method

PAGE = Path(__file__).parent / "what-leaves-a-site.md"
WHEN = {"start": "before the first round", "round": "after each round", "end": "after the last round"}
START = """# What leaves a site

This page is generated from the declarations of the methods (`python docs/write_what_leaves.py`). A test runs every
method over a channel that records all messages, and finds exactly what is listed here.

In a deployment ([flower.md](flower.md)) a site has one client's samples. No sample, no label and no state of the client
leaves it, and no statistic of a class that is made of a single sample, as long as `min_count` is at least 2 (see
below). What was sent is in the log of the site, `sent.jsonl`.

## With every method

**When a site joins**, it tells the server its name and number, its release of fullrank, the numbers of its training,
hold-out and test samples, and the form of its samples: the names of the classes, the shape and type of one sample, the
usual normalisation and augmentation of a public data set. With `allow.class_counts` in its `site.toml`, also the number
of training samples of each class of which it has at least `allow.min_count`.

**After each round**, it sends

- the uploads of the method, in the tables below: `w` are the shared weights after local training, `buffers` the
  statistics of BatchNorm;
- the numbers of samples, steps and skipped batches;
- for each local epoch the terms of the loss, the norm of the gradient and the drift, each a mean over the epoch;
- a receipt of the client's state: the number of the round and a random number. The state itself stays at the site.

**Where models are evaluated at the site** (`evaluate.personal`), it sends, for the hold-out and the test part, the
metrics of the experiment and the number of samples. At the end of the run also 95 % intervals, the recall of each
class and the confusion matrix: counts of samples by class and prediction. With `allow.min_count` these two are left
out if a class has some samples, but fewer.

**If its code fails**, it sends the class of the exception. Messages and tracebacks can quote data, so they go into the
log of the site, unless `allow.tracebacks` is set.

**The client's own model** is sent only with `allow.models`, if the experiment probes models or keeps them.

What weights say about samples is another matter: the server process receives the upload of each site, and an attacker
there can learn something of the samples from it. Methods see sums and means only. Hiding single uploads from the server
is secure aggregation; [flower.md](flower.md) says why Flower's does not fit, and which noise a method can add.

## By method

C is the number of classes, d the width of the representation. A Mean includes its weight, which is the number of
samples unless the method sets another. `fullrank methods show NAME` prints the same of a method of your own.

| method | uploads after each round | a client keeps |
|---|---|---|
"""
FURTHER = """
## What the further uploads are

| upload | when | what |
|---|---|---|
"""
COUNTED = "; nothing of a class of which it has fewer than `min_count` samples"
ASKED = """
## With `train.criterion = "weighted"`

Before the first round, a site sends `criterion/counts`, its number of training samples of each class. With
`allow.min_count`, a site withholds it if a class has some samples, but fewer.
"""


def page() -> str:
    """Return the text of the page."""
    rows, further = [], []
    for name, cls in methods.available().items():
        known, found = facts(cls), leaving(methods.build(name))
        uploads = ", ".join(f"`{what}`" for what in found["round"])
        personal = f" (never sent: {', '.join(known['personal'])})" if known["personal"] else ""
        rows.append(f"| {name} | {uploads} | {known['keeps']}{personal} |\n")
        for when in WHEN:
            further += [extra(cls, what, when, words) for what, words in found[when].items() if "/" in what]
    return "".join([START, *rows, FURTHER, *further, ASKED])


def extra(cls: type[Method], what: str, when: str, words: str) -> str:
    """Return the row of an upload besides those of the model."""
    counted = COUNTED if "min_count" in methods.check_fields(cls, {}) else ""
    return f"| `{what}` | {WHEN[when]} | {cls.uploads[what.partition('/')[2]]}{counted} ({words}) |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
