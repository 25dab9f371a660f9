"""RESULTS.md is what the committed records give, and a short reference run can be repeated."""

import gzip
import importlib.util
import json
import statistics
import sys
from pathlib import Path

import pytest

import fullrank

ROOT = Path(__file__).parents[1]
REFERENCES = sorted((ROOT / "results" / "reference").glob("*.toml"))


@pytest.fixture(scope="module")
def write():
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("write_results", ROOT / "results" / "write.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses search the module of a class
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_page_is_up_to_date(write):
    assert (ROOT / "RESULTS.md").read_text() == write.page(), "run: python results/write.py"


def rows_of(page, *beginning):
    return [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith(f"| {' | '.join(beginning)} |")]


def test_values_are_those_of_the_records():
    page = (ROOT / "RESULTS.md").read_text()
    folder = ROOT / "results" / "cifar10-resnet20-fedetf"
    accuracies = [json.loads(line)["accuracy"] for line in (folder / "fedetf-a01-keep.metrics.jsonl").open()]
    summary = json.loads((folder / "fedetf-a01-keep.summary.json").read_text())
    [general, _] = rows_of(page, "fedetf", "cifar10", "0.1", "general")
    [personal, _] = rows_of(page, "fedetf", "cifar10", "0.1", "personal")
    # The printed values are those of the paper's Table 1.
    assert general[4:7] == ["200", "59.56 ± 1.84", f"{100 * sum(accuracies[-5:]) / 5:.2f}"]
    assert personal[5:7] == ["87.89 ± 1.19", f"{100 * summary['personal']['personalised']['mean']:.2f}"]
    rows = [
        json.loads(line) for line in (ROOT / "results/cifar10-a005-mobilenetv2/fedavg-100-rounds.metrics.jsonl").open()
    ]
    [shortened] = rows_of(page, "fedavg", "cifar10", "0.05", "52")
    assert shortened[4:6] == ["64.85 ± 2.01", f"{100 * rows[-1]['accuracy']:.2f}"]
    assert shortened[-1] == "shortened: 52 of 100 rounds"


def test_tables_by_site_have_the_values_of_the_last_rounds():
    page = (ROOT / "RESULTS.md").read_text().partition("### ham10000")[2].partition("### ")[0]
    files = [ROOT / f"results/sites/ham10000/fedmr-seed{seed}.metrics.jsonl.gz" for seed in range(3)]
    last = [json.loads(gzip.decompress(file.read_bytes()).splitlines()[-1])["accuracy_by_site"] for file in files]
    accuracy, balanced = (row[2:] for row in rows_of(page, "fedmr", "received"))
    sites = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
    for shown, site in zip(accuracy, sites, strict=False):
        values = [100 * of[site] for of in last]
        assert shown == f"{sum(values) / 3:.1f} ± {statistics.stdev(values):.1f}"
    assert balanced != accuracy


def test_files_that_the_page_names_exist():
    page = (ROOT / "RESULTS.md").read_text()
    for target in {word.strip("()[]`.,:;!") for word in page.replace("](", " ").split() if "/" in word and "." in word}:
        if target.startswith(("results/", "docs/", "examples/", "experiments/")) and "*" not in target:
            assert (ROOT / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("file", REFERENCES, ids=[file.stem for file in REFERENCES])
def test_a_reference_run_gives_the_same_curve(file, tmp_path):
    expected = [json.loads(line) for line in file.with_name(f"{file.stem}.metrics.jsonl").open()]
    found = fullrank.run(file, tmp_path / "run").metrics
    assert len(found) == len(expected) == 20
    # Equal to the bit with the same version of torch on the same processor; elsewhere rounding differs.
    for one, other in zip(found, expected, strict=True):
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.02), one["round"]
        assert one["loss"] == pytest.approx(other["loss"], rel=0.05), one["round"]
        assert (one["bytes_up"], one["bytes_down"]) == (other["bytes_up"], other["bytes_down"])


def test_the_first_table_of_the_readme_has_the_values_of_the_page():
    page, readme = ((ROOT / name).read_text() for name in ("RESULTS.md", "README.md"))
    rows = [*rows_of(readme, "FedAvg"), *rows_of(readme, "FedAvg + FedDecorr")]
    assert len(rows) == 2
    table = page[page.index("feddecorr-tpami/table-1") : page.index("fedetf/table-1")]
    for cell in (cell.strip() for _, *cells in rows for cell in cells):
        assert cell in table
