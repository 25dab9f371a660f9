"""Tables in CSV and Parquet files: roles of columns, features, and what is rejected."""

import csv
import math

import numpy as np
import pytest
import torch

import fullrank as fr
from commands import fullrank
from fullrank.data import Pipeline, load_dataset
from fullrank.data.columns import Column
from fullrank.data.sources.table import features_in
from fullrank.data.standardise import added, column_sums, moments, standardisation
from fullrank.errors import InputError
from fullrank.runs.assemble import federate

HEADER = ["age", "sex", "label", "split"]
ROWS = [
    ["10", "f", "well", "train"],
    ["20", "m", "ill", "train"],
    ["", "f", "ill", "train"],
    ["40", "", "well", "train"],
    ["30", "x", "well", "test"],
    ["", "m", "ill", "test"],
]


def written(path, rows=ROWS, header=HEADER, **how):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, **how).writerows([header, *rows])
    return str(path)


def text(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def rejected(source, words, **keys):
    with pytest.raises(InputError, match=words):
        load_dataset(source, **keys)


def test_columns_become_features_of_the_training_part(tmp_path):
    data = load_dataset(written(tmp_path / "t.csv"))
    assert data.columns == (Column("age", None, missing=True), Column("sex", ("f", "m"), missing=True))
    assert data.classes == ("ill", "well")
    assert data.train.y.tolist() == [1, 0, 0, 1]
    nan = math.nan
    expected = [[10, 0, 1, 0, 0], [20, 0, 0, 1, 0], [nan, 1, 1, 0, 0], [40, 0, 0, 0, 1]]
    np.testing.assert_array_equal(data.train.x, expected)
    # "x" is no category of the training part
    np.testing.assert_array_equal(data.test.x, [[30, 0, 0, 0, 0], [nan, 1, 0, 1, 0]])


def test_numbers_are_standardised_over_the_clients_training_samples_only(tmp_path):
    rows = [[str(k * k), "ab"[k % 2], "fgh"[k % 3], "test" if k % 5 == 0 else "train"] for k in range(60)]
    path = written(tmp_path / "t.csv", rows, ["value", "label", "client", "split"])
    table = {"name": path, "partition": "natural", "holdout": 0.25, "validation": 0.1, "normalise": "auto"}
    federation = federate(fr.Experiment(data=table))
    values = federation.data.train.x[np.concatenate(federation.parts), 0].numpy()
    assert 20 < len(values) < 40
    ((mean, *_), (std, *_)) = federation.pipeline.statistics
    assert mean == pytest.approx(values.mean(), rel=1e-14)
    assert std == pytest.approx(values.std(), rel=1e-14)
    prepared = federation.pipeline(federation.data.train.x)
    assert prepared.dtype == torch.float32
    np.testing.assert_allclose(
        prepared[:, 0], (federation.data.train.x[:, 0] - values.mean()) / values.std(), rtol=1e-6
    )


def test_clients_that_never_train_have_no_part_in_the_statistics(tmp_path):
    rows = [[str(k), "ab"[k % 2], "fghi"[k % 4]] for k in range(80)]
    path = written(tmp_path / "t.csv", rows, ["value", "label", "client"])
    federation = federate(fr.Experiment(data={"name": path, "partition": "natural", "unseen": 0.5}))
    values = federation.data.train.x[np.concatenate([federation.parts[k] for k in federation.seen]), 0].numpy()
    assert federation.pipeline.statistics[0][0] == pytest.approx(values.mean(), rel=1e-14)


def test_sums_of_clients_give_the_statistics_of_all():
    rng = np.random.default_rng(0)
    # digits of 1.7e9 that differ by 1 are lost in squares
    x = torch.from_numpy(1.7e9 + rng.normal(size=(90, 2)))
    x[rng.random((90, 2)) < 0.2] = math.nan
    columns = (Column("a"), Column("b"))
    mean, std = standardisation(columns, x, [np.arange(20), np.arange(20, 50), np.arange(50, 90)])
    np.testing.assert_allclose(mean, np.nanmean(x.numpy(), 0), rtol=1e-15)
    np.testing.assert_allclose(std, np.nanstd(x.numpy(), 0), rtol=1e-6)
    small = x - 1.7e9
    together, apart = column_sums(small), added([column_sums(small[:30]), column_sums(small[30:])])
    np.testing.assert_allclose(together.squares, apart.squares)
    np.testing.assert_allclose(moments(apart)[1], np.nanstd(small.numpy(), 0))


def test_constant_columns_and_flags_are_not_divided_by_nothing():
    x = torch.tensor([[0.1, 1.0, 0.0], [0.1, 0.0, 1.0], [0.1, 1.0, 0.0]], dtype=torch.float64)
    mean, std = standardisation((Column("a"), Column("c", ("f", "m"))), x, [np.arange(3)])
    assert mean == (pytest.approx(0.1), 0.0, 0.0)
    assert std == (1.0, 1.0, 1.0)


def test_a_missing_value_becomes_zero_with_and_without_statistics(tmp_path):
    data = load_dataset(written(tmp_path / "t.csv"))
    width = len(data.train.x[0])
    for normalise, expected in (("none", [10, 20, 0, 40]), ({"mean": [10] * width, "std": [5] * width}, [0, 2, 0, 6])):
        prepared = Pipeline.build(data, normalise)(data.train.x)
        assert prepared[:, 0].tolist() == expected
    with pytest.raises(InputError, match="mean has 1 numbers and the table 5 features"):
        Pipeline.build(data, {"mean": [0.0], "std": [1.0]})


def test_a_decimal_comma_is_read_where_commas_do_not_separate(tmp_path):
    rows = "".join(f"1,{k};{'ab'[k % 2]}\n" for k in range(10))
    data = load_dataset(text(tmp_path, "x;label\n" + rows))
    assert sorted([*data.train.x[:, 0].tolist(), *data.test.x[:, 0].tolist()]) == [1 + k / 10 for k in range(10)]


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    rows = [[str(k), label] for k, label in enumerate(["10", "9", "2.0", "2"] * 5)]
    data = load_dataset(written(tmp_path / "t.csv", rows, ["x", "y"]))
    assert data.classes == ("2", "9", "10")


def test_ids_keep_their_digits(tmp_path):
    rows = [[str(k), "ab"[k % 2], ["07", "7"][k % 2]] for k in range(20)]
    assert load_dataset(written(tmp_path / "t.csv", rows, ["x", "y", "client"])).clients == ("07", "7")


def test_groups_and_clients_are_no_features_and_groups_stay_whole(tmp_path):
    rows = [[str(k), "ab"[k // 3 % 2], f"p{k // 3}", "nsew"[k % 4]] for k in range(60)]
    path = written(tmp_path / "t.csv", rows, ["x", "kind", "patient", "site"])
    data = load_dataset(path, label="kind", group="patient", client="site")
    assert [column.name for column in data.columns] == ["x"]
    assert data.clients == ("e", "n", "s", "w")
    assert not set(data.train.group.tolist()) & set(data.test.group.tolist())
    for split in (data.train, data.test):
        for x, group, client in zip(split.x[:, 0].tolist(), split.group, split.client, strict=True):
            assert sorted(f"p{k}" for k in range(20))[group] == f"p{int(x) // 3}"
            assert data.clients[client] == "nsew"[int(x) % 4]


def many(cells, column="x"):
    return "\n".join([f"{column},label", *(f"{cell},{'ab'[k % 2]}" for k, cell in enumerate(cells))])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it is empty"),
        ("\n\n", "it is empty"),
        ("a,label\n", "a header and no rows"),
        ("only\n1\n", "one column only"),
        ("1.5,2,yes\n1,2,no\n", "has no column label or y"),
        ("1.5,2\n1,2\n", "first row holds numbers"),
        (",label\n1,a\n", "column 1 has no name; pandas writes its index so"),
        ("a,,label\n1,2,a\n", "column 2 has no name; the"),
        ("a,a,label\n1,2,b\n", 'two columns are called "a"'),
        ("a,label\n1,b\n\n1,b,c\n", "row 4 has 3 cells, and the header 2"),
        ("a,label\n1\n", "row 2 has 1 cells"),
        ('a,label\n"1,b\n', "row 2 cannot be read"),
        ("a,label\n1,\n2,b\n3,NA\n", 'the column "label" has no value in rows 2, 4'),
        (b"a,label\n\xe9,b\n", "row 2 is not UTF-8"),
        (many(["1", "2", "inf", "4"]), 'the column "x" holds infinity in row 4'),
        (many(["1", "2", "1e999", "4"]), 'the column "x" holds infinity in row 4'),
        (many(["1", "2", "3", "12 mg"]), 'the column "x" has numbers in most rows, but not in row 5'),
        (many([f"2020-01-{k:02}" for k in range(1, 9)]), "holds dates or times"),
        (many([f"0{k}.02.2020" for k in range(1, 9)]), "holds dates or times"),
        (many([f"text {k}" for k in range(50)]), "50 different texts in 50 rows"),
        ("label,y\na,1\nb,2\n", "no class has two"),
        ("label\tclient\na\tb\na\tc\na\tb\na\tb\nb\tc\nb\tc\n", "no column is left"),
        ("x,label,split\n1,a,train\n2,b,val\n", "neither in row 3"),
        ("x,label,split\n1,a,train\n2,b,train\n", 'no row has "test"'),
        ("x,label,group,split\n1,a,p,train\n2,b,p,test\n", "group"),
        ("x,label\n1,0.5\n2,1.25\n", "not all are whole numbers"),
        ("x,label\n" + "".join(f"1,{k}\n" for k in range(60)), "60 different values in 60 rows"),
    ],
)
def test_malformed_tables_are_rejected(content, words, tmp_path):
    rejected(text(tmp_path, content), words)


def test_cells_are_not_quoted_in_messages(tmp_path):
    with pytest.raises(InputError) as caught:
        load_dataset(text(tmp_path, many(["1", "2", "3", "Mrs Smith"])))
    assert "Smith" not in str(caught.value)


def test_keys_that_a_source_cannot_use_are_rejected(tmp_path):
    path = written(tmp_path / "t.csv")
    rejected(path, r'data.label = "lable": there is no such column; did you mean "label"\?', label="lable")
    rejected(path, 'data.label and data.client name the same column, "label"', client="label")
    rejected(path, "data.unreadable = .*data.image names none", unreadable="skip")
    rejected(path, "data.size = 8: only 8-bit images", size=8)
    rejected("digits", 'data.label = "y": digits has nothing', label="y")
    rejected(str(tmp_path / "none.csv"), "there is no file")


def test_columns_without_values_are_left_out_and_numbers_of_cases_remarked_on(tmp_path):
    rows = [[str(k + 100), "", f"{k / 7:.3f}", "ab"[k % 2]] for k in range(60)]
    data = load_dataset(written(tmp_path / "t.csv", rows, ["id", "empty", "x", "label"]))
    assert [column.name for column in data.columns] == ["id", "x"]
    assert ['"id" has another whole' in data.remarks[0], '"empty" is left out' in data.remarks[1]] == [True, True]


def test_another_file_gets_the_features_of_the_trained_table(tmp_path):
    columns = (Column("age", None, missing=True), Column("code", ("1", "2a"), missing=True))
    path = tmp_path / "new.csv"
    path.write_text("code;age\n1;5\n1;NA\n;7\n3;8\n")
    nan = math.nan
    expected = [[5, 0, 1, 0, 0], [nan, 1, 1, 0, 0], [7, 0, 0, 0, 1], [8, 0, 0, 0, 0]]
    np.testing.assert_array_equal(features_in(path, columns), expected)
    with pytest.raises(InputError, match="no column sex, with which the model was trained"):
        features_in(path, (Column("sex", ("f",)),))
    path.write_text("age;code\nold;1\n")
    with pytest.raises(InputError, match='"age" must hold numbers'):
        features_in(path, columns)


@pytest.fixture
def patients(tmp_path, monkeypatch):
    """A table of 240 patients at three hospitals, in the current directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, sex = rng.normal(1000, 10, 240), rng.choice(["f", "m"], 240)
    label = np.where((age > 1000) ^ (sex == "m"), "ill", "well")
    cells = [f"{value:.2f}" if k % 10 else "" for k, value in enumerate(age)]
    rows = [
        [a, s, y, f"p{k // 2}", "nse"[k // 2 % 3]] for k, (a, s, y) in enumerate(zip(cells, sex, label, strict=True))
    ]
    written(tmp_path / "patients.csv", rows, ["age", "sex", "diagnosis", "patient", "site"])
    keys = {"name": "patients.csv", "label": "diagnosis", "group": "patient", "client": "site", "partition": "natural"}
    return [word for key, value in keys.items() for word in ("--set", f"data.{key}={value}")]


def test_a_table_trains_an_mlp_that_predicts_and_is_exported(patients, tmp_path, capsys):
    model = ["--set", "model.name=mlp", "--set", "train.lr=0.1", "--set", "train.rounds=8", "--set", "data.holdout=0.2"]
    assert fullrank("run", *patients, *model, "-q", "--out", "run", capsys=capsys)[0] == 0
    run = fr.load_run("run")
    assert run.metrics[-1]["accuracy"] > 0.8
    columns = tuple(map(Column.of, run._data_facts()["columns"]))
    x = features_in(tmp_path / "patients.csv", columns)
    found = run.predict(x)
    fr.export(run, "export", formats=("safetensors", "onnx"))
    import onnxruntime

    scores = onnxruntime.InferenceSession("export/model.onnx").run(None, {"x": x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(scores).softmax(1), found, rtol=0, atol=1e-5)
    torch.testing.assert_close(fr.load_export("export")(x).softmax(1), found, rtol=0, atol=1e-5)
    status, out, _ = fullrank("predict", "run", "patients.csv", capsys=capsys)
    assert status == 0
    first = next(csv.DictReader(out.splitlines()))
    assert float(first["p_ill"]) == pytest.approx(float(found[0, 0]), abs=1e-6)
    status, out, _ = fullrank("evaluate", "run", "patients.csv", "--json", capsys=capsys)
    assert status == 0
    assert f'"value": {run.metrics[-1]["accuracy"]}' in out


def test_engines_agree_on_a_table(patients, capsys):
    losses = []
    for engine in ("serial", "vectorised"):
        words = ["--set", f"engine.name={engine}", "--set", "train.rounds=2", "--set", "model.name=mlp"]
        assert fullrank("run", *patients, *words, "-q", "--out", engine, capsys=capsys)[0] == 0
        losses.append(fr.load_run(engine).metrics[-1]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_parquet_file_gives_what_the_csv_file_gives(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table(
        {
            "age": pa.array([10, 20, None, 40, 30, None]),
            "sex": pa.array(["f", "m", "f", None, "x", "m"]).dictionary_encode(),
            "label": ["well", "ill", "ill", "well", "well", "ill"],
            "split": ["train"] * 4 + ["test"] * 2,
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    one, two = load_dataset(str(tmp_path / "t.parquet")), load_dataset(written(tmp_path / "t.csv"))
    assert (one.columns, one.classes, one.fingerprint()) == (two.columns, two.classes, two.fingerprint())


def test_kinds_of_parquet_columns(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def stored(**columns):
        parquet.write_table(pa.table({**columns, "y": pa.array([0, 1] * 10)}), tmp_path / "t.parquet")
        return str(tmp_path / "t.parquet")

    data = load_dataset(stored(flag=[True, False] * 10, share=[0.5, math.nan] * 10), client="flag")
    assert data.clients == ("false", "true")
    assert data.columns == (Column("share", None, missing=True),)
    large = pa.array([2**53 + 1, 2**53] * 10)
    assert load_dataset(stored(x=[1.0] * 20, who=large), client="who").clients == (str(2**53), str(2**53 + 1))
    rejected(stored(day=pa.array([0] * 20, pa.date32())), 'the column "day" holds dates or times')
    rejected(stored(many=[[1, 2]] * 20), 'the column "many" holds list')
    rejected(stored(x=[1.0, math.inf] * 10), "holds infinity in rows 2, 4, 6, 8, 10 and 5 more")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing PAR1")
    rejected(str(tmp_path / "t.parquet"), "it is not a Parquet file, or is damaged")


def test_a_table_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rows = []
    for k in range(20):
        folder = tmp_path / "nse"[k % 3]
        folder.mkdir(exist_ok=True)
        image.fromarray(np.full((6, 8), k, np.uint8)).save(folder / f"{k}.png")
        rows.append([f"{'nse'[k % 3]}/{k}.png", "ab"[k % 2], "nse"[k % 3], str(k // 2), "test" if k > 15 else "train"])
    header = ["file", "kind", "site", "patient", "split"]
    keys = {"image": "file", "label": "kind", "client": "site", "group": "patient"}
    data = load_dataset(written(tmp_path / "t.csv", rows, header), **keys)
    assert data.input_shape == (1, 6, 8)
    assert (data.train.x[:, 0, 0, 0].tolist(), data.test.x[:, 0, 0, 0].tolist()) == ([*range(16)], [*range(16, 20)])
    assert data.clients == ("e", "n", "s")
    assert [data.clients[k] for k in data.train.client[:4]] == ["n", "s", "e", "n"]
    assert data.train.group.unique(return_counts=True)[1].tolist() == [2] * 8
    assert load_dataset(str(tmp_path / "t.csv"), size=3, **keys).input_shape == (1, 3, 4)
    for cell, words in (
        ("../0.png", "row 2 .*must be a path below"),
        ("/etc/x", "row 2"),
        ("n/99.png", "no such file"),
    ):
        changed = [[cell, *rows[0][1:]], *rows[1:]]
        rejected(written(tmp_path / "t.csv", changed, header), words, **keys)
    rejected(written(tmp_path / "t.csv", [*rows, rows[3]], header), "rows 5 and 22 .*name the same image", **keys)
    missing = load_dataset(written(tmp_path / "t.csv", changed, header), unreadable="skip", **keys)
    assert (len(missing.train), missing.unreadable) == (15, ("n/99.png: there is no such file",))
