"""Trackers: their files are read back with the trackers' own libraries, also of a run that was killed and resumed."""

import importlib.util
import json
import math
import os
import signal
import struct
import warnings

import pytest

import fullrank
from fullrank.errors import CallbackFailed, InputError
from fullrank.runs.trackers import values
from fullrank.runs.trackers.tracker import RECORD, Tracker
from killing import Strike, attempt, forked

INSTALLED = all(importlib.util.find_spec(name) for name in ("tensorboard", "mlflow", "wandb"))
ALL = ["tensorboard", "mlflow", "wandb"]
SETTINGS = {
    "train.rounds": 7,
    "train.epochs": 1,
    "data.clients": 3,
    "data.holdout": 0.2,
    "evaluate.personal": "every",
    "evaluate.metrics": ["per-class"],
    "model.name": "mlp",
    "run.checkpoint_every": 3,
    "run.track": ALL,
}
needs_trackers = pytest.mark.skipif(
    not INSTALLED and not os.environ.get("FULLRANK_NEED_TRACKERS"), reason="needs fullrank[track]"
)


class Stops(fullrank.Callback):
    """Stops a run in a round."""

    def __init__(self, round, by_signal=False):
        self.round, self.by_signal = round, by_signal

    def round_done(self, row):
        if row["round"] == self.round:
            if self.by_signal:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                raise ValueError("the patient of sample 17")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A local database of MLflow."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR", "WANDB_NAME", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def killed_twice(store):
    """A run that was killed before a tracker received round 3, then after it received rounds that are run again."""
    path = store / "runs" / "killed twice"
    assert attempt(SETTINGS, path, Strike("a checkpoint")).signal == signal.SIGKILL
    assert attempt(SETTINGS, path, Strike("a row, not yet its checkpoint", 3)).signal == signal.SIGKILL
    assert [row["round"] for row in rows_of(path)] == [1, 2, 3, 4, 5, 6]
    assert attempt(SETTINGS, path).succeeded()
    return path


@pytest.fixture(scope="module")
def failed(store):
    """A run that a callback has stopped."""
    path = store / "runs" / "failed"
    ended = forked(lambda: fullrank.run(SETTINGS, path, callbacks=[Stops(2)]))
    assert ended.error == CallbackFailed.__name__
    return path


def rows_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def expected(path, name="accuracy"):
    """The values of a measure by round, as the run wrote them."""
    return [(row["round"], pytest.approx(row[name], rel=1e-6)) for row in rows_of(path)]


# TensorBoard


def read_events(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    found.Reload()
    return found


def texts(found, tag):
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in found.Tensors(f"{tag}/text_summary")]


def session_status(found):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = found.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    return HParamsPluginData.FromString(content).session_end_info.status


@needs_trackers
def test_tensorboard_has_each_round_once_after_two_kills(killed_twice):
    found = read_events(killed_twice)
    for name in ("accuracy", "loss", "personal_accuracy"):
        assert [(event.step, event.value) for event in found.Scalars(name)] == expected(killed_twice, name)
    terms = [(event.step, event.value) for event in found.Scalars("terms/criterion")]
    assert terms == [(row["round"], pytest.approx(row["terms"]["criterion"])) for row in rows_of(killed_twice)]
    assert len([*killed_twice.glob("events.out.tfevents.*")]) == 1


@needs_trackers
def test_tensorboard_has_histograms_of_clients_and_classes(killed_twice):
    found = read_events(killed_twice)
    drifts = [client["epochs"][-1]["drift"] for client in rows_of(killed_twice)[4]["clients"]]
    histogram = found.Histograms("clients/drift")[4]
    assert (histogram.step, histogram.histogram_value.num) == (5, 3)
    assert (histogram.histogram_value.min, histogram.histogram_value.max) == (
        pytest.approx(min(drifts)),
        pytest.approx(max(drifts)),
    )
    assert [event.step for event in found.Histograms("per_class")] == [*range(1, 8)]


@needs_trackers
def test_tensorboard_has_the_experiment_the_summary_and_the_end(killed_twice):
    found = read_events(killed_twice)
    ((step, text),) = texts(found, "experiment")
    assert step == 0
    assert "    checkpoint_every = 3" in text.splitlines()
    ((step, text),) = texts(found, "summary")
    best = max(row["accuracy"] for row in rows_of(killed_twice))
    assert step == 7
    assert f"| summary/accuracy/best | {best:.6g} |" in text.replace("\\", "")
    assert session_status(found) == 1  # success
    assert session_started(found)["train.rounds"] == 7
    assert session_started(found)["label.method"] == "fedavg"


def session_started(found):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = HParamsPluginData.FromString(content).session_start_info.hparams
    return {key: getattr(value, value.WhichOneof("kind")) for key, value in given.items()}


@needs_trackers
def test_tensorboard_shows_a_failure_as_text(failed):
    found = read_events(failed)
    assert session_status(found) == 2  # failure
    ((_, text),) = texts(found, "failure")
    assert text.replace("\\", "") == "ValueError; log.txt has the message"


@needs_trackers
def test_event_files_of_others_are_kept(tmp_path):
    settings = {**SETTINGS, "train.rounds": 1, "run.track": ["tensorboard"]}
    fullrank.run(settings, tmp_path)
    (tmp_path / "events.out.tfevents.1.mine").write_text("mine")
    fullrank.run({**settings, "train.rounds": 2}, tmp_path)
    assert (tmp_path / "events.out.tfevents.1.mine").read_text() == "mine"
    assert len([*tmp_path.glob("events.out.tfevents.*.fullrank")]) == 1
    (tmp_path / "events.out.tfevents.1.mine").unlink()
    assert [event.step for event in read_events(tmp_path).Scalars("accuracy")] == [1, 2]


# MLflow


def stored(path):
    """The run of MLflow with the name of a directory, and its client."""
    import mlflow

    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name("fullrank").experiment_id
    (run,) = client.search_runs([place], f"tags.`mlflow.runName` = '{path.name}'")
    return client, run


@needs_trackers
def test_mlflow_has_each_round_once_after_two_kills(killed_twice):
    client, run = stored(killed_twice)
    for name in ("accuracy", "loss", "seconds"):
        history = sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))
        assert [step for step, _ in history] == [*range(1, 8)]
        if name != "seconds":  # a round that is run again takes another time
            assert history == expected(killed_twice, name)
    (last,) = client.get_metric_history(run.info.run_id, "summary/accuracy/last")
    assert (last.step, last.value) == (7, rows_of(killed_twice)[-1]["accuracy"])


@needs_trackers
def test_mlflow_has_the_keys_the_labels_and_the_end(killed_twice):
    _, run = stored(killed_twice)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.rounds"] == "7"
    assert run.data.params["data.holdout"] == "0.2"
    assert {key: run.data.tags[key] for key in ("method", "data", "seed")} == {
        "method": "fedavg",
        "data": "digits",
        "seed": "0",
    }


@needs_trackers
def test_mlflow_marks_a_failed_run_and_continues_the_same_one(failed):
    client, run = stored(failed)
    assert run.info.status == "FAILED"
    assert run.data.tags["failure"] == "ValueError; log.txt has the message"
    more = {**SETTINGS, "train.rounds": 3, "run.track": ["mlflow"]}
    assert forked(lambda: fullrank.run(more, failed) and None).succeeded() is None
    client, run = stored(failed)
    assert run.info.status == "FINISHED"
    assert "failure" not in run.data.tags
    assert run.data.params["train.rounds"] == "7"  # MLflow's parameters do not change
    assert run.data.tags["resumed.train.rounds"] == "3"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "accuracy")]
    assert sorted(steps) == [1, 2, 3]


@needs_trackers
def test_a_complete_run_is_sent_to_a_tracker_that_is_named_later(store):
    path, settings = store / "runs" / "later", {**SETTINGS, "train.rounds": 2}
    fullrank.run({**settings, "run.track": []}, path)
    for _ in range(2):
        assert forked(lambda: fullrank.run({**settings, "run.track": ["mlflow"]}, path) and None).succeeded() is None
    client, run = stored(path)
    for name in ("accuracy", "summary/accuracy/last"):
        assert len(client.get_metric_history(run.info.run_id, name)) == (2 if name == "accuracy" else 1)


# Weights & Biases


def read_records(path):
    """The records of the only .wandb file of a run directory."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = path.glob("wandb/offline-run-*/*.wandb")
    for data in framed(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def framed(content):
    """The records of a file in the format of LevelDB's log, after the seven bytes of W&B's own header."""
    assert content[:4] == b":W&B"
    place, found = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        found += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield found
            found = b""


def history(path):
    for record in read_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            yield record.history.step.num, {key: json.loads(text) for key, text in items.items()}


def summary(path):
    found = {}
    for record in read_records(path):
        for item in record.summary.update:
            found["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return found


@needs_trackers
def test_wandb_has_each_round_once_after_two_kills(killed_twice):
    found = [*history(killed_twice)]
    assert [(step, items["accuracy"]) for step, items in found] == expected(killed_twice)
    assert {items["clients/drift/_type"] for _, items in found} == {"histogram"}


@needs_trackers
def test_wandb_has_the_keys_the_labels_and_the_end(killed_twice):
    records = [*read_records(killed_twice)]
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    keys = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in run.config.update}
    assert (keys["train.rounds"], keys["data.holdout"]) == (7, 0.2)
    assert (run.display_name, run.project) == ("killed twice", "fullrank")
    assert [*run.tags] == ["fedavg", "digits", "seed 0"]
    assert summary(killed_twice)["summary/rounds"] == 7
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [0]
    assert run.run_id == json.loads((killed_twice / RECORD).read_text())["id"]


@needs_trackers
def test_wandb_marks_a_failed_run(failed):
    assert [step for step, _ in history(failed)] == [1, 2]
    assert summary(failed)["failure"] == "ValueError; log.txt has the message"
    records = [*read_records(failed)]
    assert [record.exit.exit_code for record in records if record.WhichOneof("record_type") == "exit"] == [1]


@needs_trackers
def test_wandb_records_nothing_that_the_program_prints(killed_twice):
    kinds = {record.WhichOneof("record_type") for record in read_records(killed_twice)}
    assert not kinds & {"output", "output_raw"}


# Every tracker


class Recording(Tracker):
    """A tracker of the test, which fails when it is told to."""

    key, title, library = "recording", "Recording", "json"
    down = False

    def open(self, experiment, path, id):
        self.id, self.rounds, self.texts, self.end = id, [], [], None

    def send(self, row):
        if self.down:
            raise ConnectionError("no answer\nfrom the server")
        self.rounds.append(row["round"])

    def send_warnings(self, texts):
        self.texts = texts

    def finish(self, summary):
        self.end = summary["rounds"]

    def give_up(self, error, reason):
        self.end = reason


class Outage(fullrank.Callback):
    """Makes a tracker fail in some rounds. It comes before the tracker."""

    def __init__(self, tracker, rounds):
        self.tracker, self.rounds = tracker, rounds

    def round_done(self, row):
        self.tracker.down = row["round"] in self.rounds


PLAIN = {key: value for key, value in SETTINGS.items() if key != "run.track"}


def test_a_tracker_that_fails_does_not_stop_the_run_and_gets_what_it_missed(tmp_path):
    tracker = Recording()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fullrank.run(PLAIN, tmp_path, callbacks=[Outage(tracker, (3, 4)), tracker])
    assert (tracker.rounds, tracker.end) == ([*range(1, 8)], 7)
    said = [str(each.message) for each in caught if "Recording" in str(each.message)]
    assert said == [
        "sending to Recording failed (ConnectionError: no answer); the run continues and tries again after the next "
        "round"
    ]


def test_a_tracker_is_told_of_warnings_once_also_after_a_resume(tmp_path):
    settings = {"data.clients": 4, "model.name": "mlp", "method.name": "feddecorr", "seed": 1}
    for rounds in (2, 3):
        tracker = Recording()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fullrank.run({**settings, "train.rounds": rounds}, tmp_path, callbacks=[tracker])
        assert "round 2: the weights of client 3 moved" in " ".join(tracker.texts)
        assert len(tracker.texts) == len(set(tracker.texts))


def test_a_run_without_a_directory_has_no_tracker():
    with pytest.raises(InputError, match=r'run\.track = "recording" needs a run directory'):
        Recording().started(fullrank.Experiment(), None, 0, 1)


@pytest.mark.parametrize("name", ALL)
def test_an_absent_library_is_named_with_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InputError, match=rf"run.track = \"{name}\" needs .*: pip install 'fullrank\[track\]'"):
        fullrank.run({**SETTINGS, "run.track": [name]}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_misspelt_name_is_corrected(tmp_path):
    with pytest.raises(InputError, match=r'run\.track = "tensorbord" is not known; did you mean "tensorboard"\?'):
        fullrank.run({**SETTINGS, "run.track": ["tensorbord"]}, tmp_path / "run")


def test_numbers_that_are_not_finite_and_facts_that_are_no_measure_are_left_out():
    row = {
        "round": 3,
        "loss": None,
        "accuracy": 0.25,
        "kappa": math.inf,
        "sound": True,
        "personal": {"local": {"mean": 0.5, "course": [0.1, 0.2]}},
        "clients": [{"client": 7, "samples": 4, "epochs": []}, {"client": 8, "samples": 6}],
        "far_client": {"client": 1, "drift": 9.0, "next": 1.0},
        "idle": [7, 8],
        "cautions": ["text"],
    }
    assert values.scalars(row) == {"accuracy": 0.25, "personal/local/mean": 0.5, "clients_idle": 2.0}
    assert values.distributions(row) == {"clients/samples": [4.0, 6.0]}
