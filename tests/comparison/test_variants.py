"""Methods with settings of their own, grids, references, and tests of several differences."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from test_compare import QUICK, pretend

import fullrank
from commands import fullrank as run_command
from fullrank import compare_runs
from fullrank.comparison.exported import as_latex, as_markdown
from fullrank.comparison.intervals import holm, p_value
from fullrank.comparison.variants import parse_grid, parse_variant, split_list
from fullrank.errors import InputError
from fullrank.files import read_json

FEW = {**QUICK, "train.rounds": 1, "train.steps": 1}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# The notation


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("fedavg", "fedavg", {}),
        ("feddecorr:beta=0.5", "feddecorr", {"method.feddecorr.beta": 0.5}),
        ("fedprox + feddecorr : mu=1.0", "fedprox+feddecorr", {"method.fedprox.mu": 1.0}),
        (
            "feddecorr:beta=.5:scale=paper",
            "feddecorr",
            {"method.feddecorr.beta": 0.5, "method.feddecorr.scale": "paper"},
        ),
        ("fedprox:fedprox.mu=1:train.lr=0.2", "fedprox", {"method.fedprox.mu": 1, "train.lr": 0.2}),
        ("fedavg:train.criterion=a.b:c:seed_=1", "fedavg", None),
        ('fedavg:data.augment=["crop:4", "flip"]', "fedavg", {"data.augment": ["crop:4", "flip"]}),
        ("fullrank.methods.fedprox:FedProx:mu=2.0", "fullrank.methods.fedprox:FedProx", {"method.fedprox.mu": 2.0}),
    ],
)
def test_a_method_with_settings_is_read(text, name, values):
    if values is None:
        with pytest.raises(InputError, match='has no hyper-parameter "seed_"'):
            parse_variant(text)
        return
    found = parse_variant(text)
    assert found.name == name
    assert found.values == values


def test_values_keep_colons_and_commas_of_their_own():
    assert parse_variant("fedavg:train.criterion=own.module:focal").values == {"train.criterion": "own.module:focal"}
    assert split_list('fedavg:data.augment=["a","b"],fedprox') == ['fedavg:data.augment=["a","b"]', "fedprox"]
    assert parse_grid(["model.name=mlp,cnn", "train.lr=.1,1"]) == {"model.name": ["mlp", "cnn"], "train.lr": [0.1, 1]}


def test_a_key_that_two_methods_have_must_name_one():
    with pytest.raises(InputError, match=r"fedprox and moon both have mu; write fedprox\.mu or moon\.mu"):
        parse_variant("fedprox+moon:mu=1")


# Runs


def test_the_same_method_with_other_settings_and_a_grid(tmp_path):
    methods = ["fedavg", "feddecorr:beta=0.1", "feddecorr:beta=0.5:train.lr=0.05"]
    found = fullrank.compare(FEW, methods, [1], "out", jobs=1, vary={"data.alpha": [0.05, 0.5]})
    labels = [
        f"{name}data.alpha={alpha}, train.lr={rate})"
        for alpha in (0.05, 0.5)
        for name, rate in (
            ("fedavg (", 0.1),
            ("feddecorr (feddecorr.beta=0.1, ", 0.1),
            ("feddecorr (feddecorr.beta=0.5, ", 0.05),
        )
    ]
    assert list(found.methods) == labels
    assert found.varied == ("data.alpha", "train.lr")
    assert found.references() == dict(
        zip(labels, [None, labels[0], labels[0], None, labels[3], labels[3]], strict=True)
    )
    own = fullrank.load_run("out/feddecorr-feddecorr.beta=0.5,train.lr=0.05,data.alpha=0.5-seed1").experiment
    assert (own.method.tables["feddecorr"]["beta"], own.train.lr, own.data.alpha, own.seed) == (0.5, 0.05, 0.5, 1)
    single = fullrank.run({**FEW, "data.alpha": 0.5, "seed": 1}, tmp_path / "single").summary()["accuracy"]["last5"]
    assert found.rows()[3].values[1] == single
    assert compare_runs(["out"]).table() == found.table()
    assert len(found.facts()["splits"]) == 1
    again = fullrank.compare(FEW, methods[:1], [1], "out", jobs=1, vary={"data.alpha": [0.05]})
    assert again.methods == ("fedavg",)


def test_hyper_parameters_are_varied_for_the_methods_that_have_them():
    found = fullrank.compare(FEW, ["fedavg", "fedprox"], [0], "out", jobs=1, vary={"method.fedprox.mu": [0.1, 1.0]})
    assert found.methods == ("fedavg", "fedprox (fedprox.mu=0.1)", "fedprox (fedprox.mu=1.0)")
    assert list(found.references().values()) == [None, "fedavg", "fedavg"]


def test_settings_that_the_name_of_a_row_does_not_show_are_given_below_the_table(tmp_path):
    pretend(tmp_path / "a", "fedavg")
    pretend(tmp_path / "b", "fedprox", method__fedprox__mu=0.7)
    assert "fedprox has fedprox.mu=0.7" in compare_runs(["a", "b"]).remarks()


# References


def a_grid(tmp_path, reference):
    """FedAvg and FedProx on two partitions with two learning rates, compared with a reference."""
    cells = itertools.product((0.1, 1.0), (0.01, 0.1), ("fedavg", "fedprox"), (0, 1))
    for number, (alpha, rate, method, seed) in enumerate(cells):
        keys = {"data__alpha": alpha, "train__lr": rate, "division": f"split{alpha}{seed}" + "0" * 60}
        pretend(tmp_path / "grid" / f"{number:02d}", method, seed, [0.01 * number], **keys)
    return compare_runs(["grid"], reference=reference).references()


def name(method, alpha, rate):
    return f"{method} (data.alpha={alpha}, train.lr={rate})"


def test_a_row_is_compared_on_its_own_data_and_with_the_same_settings(tmp_path):
    found = a_grid(tmp_path, "fedavg")
    for alpha in (0.1, 1.0):
        assert found[name("fedavg", alpha, 0.1)] in (None, name("fedavg", alpha, 0.01))
        for rate in (0.01, 0.1):
            assert found[name("fedprox", alpha, rate)] == name("fedavg", alpha, rate)


def test_a_reference_with_settings_stands_for_the_rows_that_have_them(tmp_path):
    found = a_grid(tmp_path, "fedavg:train.lr=0.1")
    for alpha in (0.1, 1.0):
        chosen = name("fedavg", alpha, 0.1)
        others = [row for row, reference in found.items() if f"alpha={alpha}" in row and row != chosen]
        assert len(others) == 3
        assert found[chosen] is None
        assert {found[row] for row in others} == {chosen}


def test_an_exact_row_is_the_reference_of_all_rows_on_its_data(tmp_path):
    exact = name("fedprox", 0.1, 0.1)
    found = a_grid(tmp_path, exact)
    assert [row for row, reference in found.items() if reference == exact] == [
        name("fedavg", 0.1, 0.01),
        name("fedavg", 0.1, 0.1),
        name("fedprox", 0.1, 0.01),
    ]
    assert all(
        "data.alpha=1.0" in str(reference) or reference is None for row, reference in found.items() if "1.0" in row
    )


def test_a_chosen_reference_changes_the_sign_of_a_difference(tmp_path):
    for seed in range(2):
        pretend(tmp_path / f"a{seed}", "fedavg", seed, [0.5])
        pretend(tmp_path / f"b{seed}", "fedprox", seed, [0.6 + 0.01 * seed])
    paths = sorted(tmp_path.iterdir())
    assert compare_runs(paths).rows()[1].difference.mean == pytest.approx(0.105)
    first, second = compare_runs(paths, reference="fedprox").rows()
    assert first.difference.mean == pytest.approx(-0.105)
    assert first.difference.to == "fedprox"
    assert second.difference is None


def test_runs_on_other_data_have_no_difference_and_say_so(tmp_path):
    for seed in range(2):
        pretend(tmp_path / f"a{seed}", "fedavg", seed, division=f"a{seed}", data__alpha=0.1)
        pretend(tmp_path / f"b{seed}", "fedprox", seed, division=f"b{seed}", data__alpha=1.0)
    found = compare_runs(sorted(tmp_path.iterdir()))
    assert [row.difference for row in found.rows()] == [None, None]
    assert any("is on other data than all rows of the reference" in remark for remark in found.remarks())
    assert "the rows differ in data.alpha; only rows on the same data and splits are compared" in found.remarks()


def test_runs_whose_data_keys_differ_but_not_their_samples_are_compared(tmp_path):
    pretend(tmp_path / "a", "fedavg", data__augment="none")
    pretend(tmp_path / "b", "fedavg", data__augment=["flip"], accuracy=[0.75])
    row = compare_runs(["a", "b"]).rows()[1]
    assert row.difference.mean == 0.25


def test_runs_with_other_settings_are_rows_of_their_own(tmp_path):
    pretend(tmp_path / "a", "fedavg")
    pretend(tmp_path / "b", "fedprox", train__lr=0.5)
    found = compare_runs(["a", "b"])
    assert found.methods == ("fedavg (train.lr=0.1)", "fedprox (train.lr=0.5)")
    assert "the rows differ in train.lr" in found.remarks()


# p-values


def test_p_values_are_those_of_scipy():
    generator = np.random.default_rng(1)
    for size in (2, 3, 4, 5, 10, 31):
        a, b = generator.normal(0.5, 0.1, size), generator.normal(0.45, 0.1, size)
        assert p_value(list(a - b)) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert p_value([0.1]) is None
    assert p_value([0.1, 0.1, 0.1]) is None


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04, never below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_p_values_in_the_table_are_paired_corrected_and_need_three_seeds(tmp_path, capsys):
    draws = np.random.default_rng(3).uniform(0.4, 0.6, (3, 4))
    for method, values in zip(("fedavg", "fedprox", "moon"), draws, strict=True):
        for seed, value in enumerate(values):
            pretend(tmp_path / f"{method}{seed}", method, seed, [float(value)])
    found = compare_runs(sorted(tmp_path.iterdir()))
    raw = [stats.ttest_rel(draws[index], draws[0]).pvalue for index in (1, 2)]
    assert [row.difference.p for row in found.rows()[1:]] == pytest.approx(raw)
    corrected = [min(1.0, 2 * p) if p == min(raw) else max(max(raw), min(1.0, 2 * min(raw))) for p in raw]
    assert [row.difference.p_holm for row in found.rows()[1:]] == pytest.approx(corrected)
    _, out, _ = run_command("compare", "--runs", tmp_path, capsys=capsys)
    assert "p (Holm)" in out
    assert "paired t-test" in out
    two = compare_runs([tmp_path / f"{method}{seed}" for method in ("fedavg", "moon") for seed in (0, 1)])
    assert two.rows()[1].difference.p is None
    _, out, _ = run_command("compare", "--runs", *(tmp_path / f"fedavg{n}" for n in range(2)), capsys=capsys)
    assert "Holm" not in out


# Bold, and files


def three():
    """MOON is the best; the interval of FedAvg's difference to it excludes 0, that of FedProx's does not."""
    values = {"fedavg": (0.50, 0.51, 0.52), "fedprox": (0.65, 0.55, 0.62), "moon": (0.60, 0.62, 0.61)}
    for method, numbers in values.items():
        for seed, value in enumerate(numbers):
            pretend(Path("runs") / f"{method}{seed}", method, seed, [value])
    return compare_runs(["runs"])


def test_the_best_and_those_that_the_seeds_do_not_tell_from_it():
    found = three()
    low, high = stats.ttest_rel((0.65, 0.55, 0.62), (0.60, 0.62, 0.61)).confidence_interval(0.95)
    assert low < 0 < high
    assert stats.ttest_rel((0.50, 0.51, 0.52), (0.60, 0.62, 0.61)).confidence_interval(0.95).high < 0
    assert found.best() == {"fedprox", "moon"}
    assert found.by("loss").best() == {"fedprox", "moon"}  # 1 - accuracy: lower is better
    assert found.by("rounds").best() == set()
    assert found.by("bytes_up").best() == {"fedavg", "fedprox", "moon"}


def test_files_of_the_table(tmp_path, capsys):
    three()
    files = ["--csv", "t/a.csv", "--markdown", "t/a.md", "--latex", "t/a.tex"]
    assert run_command("compare", "--runs", "runs", *files, capsys=capsys)[0] == 0
    rows = list(csv.DictReader((tmp_path / "t" / "a.csv").open()))
    assert [row["method"] for row in rows] == ["fedavg", "fedprox", "moon"]
    assert float(rows[1]["seed 1"]) == 0.55
    assert float(rows[2]["difference"]) == pytest.approx(0.1)
    assert float(rows[2]["p"]) == pytest.approx(stats.ttest_rel((0.60, 0.62, 0.61), (0.50, 0.51, 0.52)).pvalue)
    assert [row["best"] for row in rows] == ["0", "1", "1"]
    markdown = (tmp_path / "t" / "a.md").read_text().splitlines()
    assert markdown[2] == "| method | mean ± std | difference (95 % CI) | p (Holm) |"
    assert markdown[4].startswith("| fedavg | 51.00 ± 1.00 |")
    assert markdown[6].startswith("| moon | **61.00 ± 1.00** | +10.00 (")
    latex = (tmp_path / "t" / "a.tex").read_text()
    assert r"moon & \textbf{61.00 $\pm$ 1.00} & +10.00 (" in latex
    assert [rule for rule in (r"\toprule", r"\midrule", r"\bottomrule") if rule not in latex] == []
    assert latex.count(r"\\") == 4
    assert "95 \\% CI" in latex


def test_names_are_escaped(tmp_path):
    pretend(tmp_path / "a", "fedavg", train__last_batch="keep")
    pretend(tmp_path / "b", "fedavg", train__last_batch="wrap")
    found = compare_runs(["a", "b"])
    assert r"fedavg (train.last\_batch=keep)" in as_latex(found)
    assert r"fedavg (train.last\_batch=keep)" in as_markdown(found)


def test_tables_by_site_are_not_exported(capsys):
    status, _, err = run_command("compare", "-m", "fedavg", "--by", "site", "--csv", "a.csv", capsys=capsys)
    assert status == 2
    assert "omit --by site" in err


def test_the_command_takes_settings_grids_and_a_reference(capsys):
    sets = [piece for key, value in FEW.items() for piece in ("--set", f"{key}={value}")]
    methods = ["-m", "fedavg,fedprox:mu=0.5", "--vary", "train.lr=0.05,0.1", "--reference", "fedprox:mu=0.5"]
    arguments = [*sets, *methods, "-s", "0", "-j", "1", "--out", "out"]
    status, out, _ = run_command("compare", *arguments, capsys=capsys)
    assert status == 0
    assert "the rows differ in train.lr" in out
    assert "fedprox (train.lr=0.05) has fedprox.mu=0.5" in out
    assert "difference to" in out
    record = read_json(Path("out/comparison.json"))
    assert record["varied"] == ["train.lr"]
    assert [row["difference"]["to"] for row in record["rows"] if row["difference"]] == [
        "fedprox (train.lr=0.05)",
        "fedprox (train.lr=0.1)",
        "fedprox (train.lr=0.05)",
    ]
