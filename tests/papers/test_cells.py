"""The cells of the published tables can be run: each is built on a tiny data set of its shape, and takes one step."""

import math
import random
from functools import cache

import pytest
import torch

from fullrank import papers
from fullrank.comparison.measured import measured
from fullrank.config.experiment import Experiment, merged
from fullrank.data import DataSet, Split
from fullrank.data.sources.registry import DATA_SETS
from fullrank.errors import InputError
from fullrank.models import build
from fullrank.models.reparam.scales import write_scales
from fullrank.runs.assemble import assemble, federate
from fullrank.runs.result import Run

SHAPES = {
    "cifar10": (10, 3, 32),
    "cifar100": (100, 3, 32),
    "fashion-mnist": (10, 1, 28),
    "svhn": (10, 3, 32),
    "tiny-imagenet": (200, 3, 64),
    "office-caltech10": (10, 3, 256),
    "domainnet": (10, 3, 256),
    "isic2019": (8, 3, 224),
}
"""Classes, channels and pixels of each data set."""
DOMAINS = {
    "office-caltech10": ("amazon", "caltech", "dslr", "webcam"),
    "domainnet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    "isic2019": ("BCN", "vidir_molemax", "vidir_modern", "rosendahl", "MSK", "vienna_dias"),
}
LARGE = ("alexnet-bn", "wrn-28-10", "repvgg-b1")
ALL = [
    *(("feddecorr", name) for name in ("cifar10", "cifar100", "tiny-imagenet", "office-caltech10", "domainnet")),
    *(("fedetf", name) for name in ("cifar10", "cifar100", "tiny-imagenet")),
    *(("fedmr", name) for name in ("fashion-mnist", "svhn", "cifar10", "cifar100", "isic2019")),
    ("fedrepopt", "tiny-imagenet"),
]
"""The beginnings of the papers' names with their data sets."""
OF_PARTITIONS = (
    *(f"data.{key}" for key in ("partition", "variant", "alpha", "classes", "clients", "seed", "passes")),
    "train.participation",
    "train.rounds",
)
"""Keys of which a step of one client does not depend, except for the samples that the client has."""
ONE_STEP = {
    "seed": 0,
    "train": {"rounds": 1, "epochs": 1, "steps": 1, "batch_size": 4},
    "engine": {"name": "serial"},
    "probe": {"every": 0},
}


@cache
def tiny(name: str, clients: int = 100) -> DataSet:
    """Return a data set of the shape of another: noise, with as few samples as its partitions allow."""
    classes, channels, side = SHAPES[name]
    domains = DOMAINS.get(name, ())
    samples = 40 * len(domains) or (4000 if clients > 10 or classes > 10 else 600)
    x = torch.randint(256, (samples, channels, side, side), dtype=torch.uint8, generator=torch.Generator())
    y = torch.arange(samples) % classes
    domain = torch.arange(samples) // 40 if domains else None
    mean = (0.5,) * channels
    return DataSet(name, Split(x, y, domain), None, tuple(map(str, range(classes))), domains, mean=mean, std=mean)


def scales_in(folder, model: str) -> str:
    """Return a file with the scales with which a search starts."""
    path = folder / f"{model}.safetensors"
    if not path.exists():
        write_scales(path, build(model, 10, mode="csla"), model)
    return str(path)


def shortened(experiment: Experiment, folder) -> Experiment:
    """Return an experiment of one step; networks whose scales must be searched get those with which a search starts."""
    values = merged(experiment.model_dump(), ONE_STEP)
    if "scales" in values["model"]:
        values["model"]["scales"] = scales_in(folder, experiment.model.name)
    if "fedrep" in values["method"]:
        values["method"]["fedrep"]["head_epochs"] = 0
    return Experiment(**values)


def take_one_step(experiment: Experiment, name: str) -> None:
    """Build all parts of an experiment, and train the smallest client that has a whole batch for one step."""
    federation = federate(experiment, tiny(experiment.data.name, experiment.data.clients))
    assembly = assemble(experiment, federation=federation)
    sizes = {federation.size(client): client for client in range(federation.clients)}
    client = sizes[min((size for size in sizes if size >= experiment.train.batch_size), default=max(sizes))]
    result = assembly.site.do(assembly.server.job("train", client))
    assert result.error is None, f"{name}: {result.error}"
    assert result.steps >= 1, name
    assert all(math.isfinite(epoch["criterion"]) for epoch in result.metrics["epochs"]), name


def runnable(name: str) -> list[papers.Cell]:
    """Return the cells of a table that can be run."""
    return [cell for cell in papers.load_table(name).cells if not cell.impossible]


def small(name: str) -> list[papers.Cell]:
    """Return the cells of a table that can be run and have no large network."""
    return [cell for cell in runnable(name) if cell.parts[0]["model"]["name"] not in LARGE]


def test_every_cell_names_a_data_set_of_the_library():
    names = [*papers.available(), *papers.figures()]
    named = {part["data"]["name"] for name in names for cell in papers.load_table(name).cells for part in cell.parts}
    assert named == set(SHAPES)
    assert named <= set(DATA_SETS.names())


@pytest.mark.parametrize("name", [name for name in papers.available() if small(name)])
def test_a_cell_of_each_table_takes_a_step(name, tmp_path):
    cell = random.Random(name).choice(small(name))
    take_one_step(shortened(cell.experiments(seed=0)[0], tmp_path), cell.name)


@pytest.mark.slow
@pytest.mark.parametrize(("papers_of", "data"), ALL)
def test_all_partitions_are_made_and_all_else_takes_a_step(papers_of, data, tmp_path):
    partitions, steps = {}, {}
    names = [name for name in (*papers.available(), *papers.figures()) if name.startswith(papers_of)]
    for cell in (cell for name in names for cell in runnable(name) if cell.parts[0]["data"]["name"] == data):
        for experiment in cell.experiments(seed=0):
            short = shortened(experiment, tmp_path)
            partitions.setdefault(short.data.model_dump_json(), (short, cell.name))
            rest = {key: value for key, value in short.flat().items() if key not in OF_PARTITIONS}
            steps.setdefault(str(rest), (short, cell.name))
    assert partitions
    for experiment, name in partitions.values():
        federation = federate(experiment, tiny(data))
        assert federation.clients == experiment.data.clients or len(DOMAINS[data]), name
        assert max(map(federation.size, range(federation.clients))) >= 2, name
    for experiment, name in steps.values():
        take_one_step(experiment, name)


@pytest.mark.parametrize("model", ["repghost-0.5", pytest.param("repvgg-b1", marks=pytest.mark.slow)])
def test_trained_parameters_are_those_that_fedrepopt_prints(model, tmp_path):
    for cell in papers.load_table("fedrepopt/table-1").select([f"metric=parameters,model={model}"]):
        [experiment] = cell.experiments(seed=0)
        assembly = assemble(shortened(experiment, tmp_path), federation=federate(experiment, tiny("tiny-imagenet")))
        number, _ = measured(Run(experiment, [], assembly=assembly), cell.measure, cell.value)
        in_millions = papers.UNITS[cell.unit] * number
        digits = len(str(cell.printed).partition(".")[2])
        # The paper rounds all numbers but one, which it truncates.
        rounded = math.floor(in_millions * 10**digits) / 10**digits if cell.notes else round(in_millions, digits)
        assert rounded == cell.printed.mean, cell.name


def test_a_cell_that_cannot_be_run_is_rejected_for_the_reason_that_it_gives(tmp_path):
    [cell, *_] = [cell for cell in papers.load_table("fedetf/table-1").cells if cell.impossible]
    with pytest.raises(InputError, match="100 prototypes cannot be orthogonal in 64 dimensions"):
        take_one_step(shortened(cell.experiments(seed=0)[0], tmp_path), cell.name)
