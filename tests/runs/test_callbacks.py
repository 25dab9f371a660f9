"""What follows a run, in the order of its events: callbacks of Python, of a file and of the command line."""

import json
import os
import signal
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

import fullrank
from commands import fullrank as command
from fullrank import plugins
from fullrank.errors import CallbackFailed, ClientFailed, InputError, Interrupted
from fullrank.runs.callbacks import Callbacks
from killing import Strike, assert_equal_outcomes, attempt

SETTINGS = {
    "model.name": "mlp",
    "model.width": 4,
    "data.clients": 4,
    "data.alpha": 1.0,
    "data.holdout": 0.2,
    "train.rounds": 2,
    "train.steps": 1,
    "train.participation": 2,
    "engine.name": "serial",
}
TRACKER = """
import json
import fullrank

class Tracker(fullrank.Callback):
    def note(self, *event):
        with self.file.open("a") as file:
            print(json.dumps(event), file=file)

    def started(self, experiment, path, done, clients):
        self.file = path.parent / f"{path.name}.events"
        self.note("started", experiment.method.name, done, clients)

    def round_started(self, round, clients):
        self.note("round_started", round, sorted(clients))

    def client_done(self, result):
        self.note("client_done", result.client)

    def round_done(self, row):
        self.note("round_done", row["round"])

    def phase_started(self, name, done, clients):
        self.note("phase_started", name, done, clients)

    def warned(self, text):
        self.note("warned", text)

    def ended(self, run):
        self.note("ended", run.summary()["rounds"])

    def failed(self, error):
        self.note("failed", type(error).__name__)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """A directory with a file that has a callback, where nothing else is."""
    (tmp_path / "tracker.py").write_text(TRACKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield
    sys.modules.pop("tracker", None)


def events(path):
    return [tuple(json.loads(line)) for line in path.with_name(f"{path.name}.events").read_text().splitlines()]


def in_rounds(path, first=1, method="fedavg"):
    """The events that a run has from a round on, from what is known of it afterwards."""
    rows = fullrank.load_run(path).metrics[first - 1 :]
    found = [("started", method, first - 1, 2)]
    for row in rows:
        order = [client["client"] for client in row["clients"]]
        found += [("round_started", row["round"], sorted(order)), *(("client_done", client) for client in order)]
        found += [("round_done", row["round"])]
    return found


def at_the_end(found):
    """The events after the last round, where four clients finish in an order of their own."""
    phase, *clients, last = found
    assert phase == ("phase_started", "clients' own models", 0, 4)
    assert sorted(clients) == [("client_done", client) for client in range(4)]
    assert last == ("ended", 2)


def by_file(path, capsys):
    fullrank.Experiment.of({**SETTINGS, "run.track": ["tracker:Tracker"]}).to_toml("experiment.toml")
    assert command("run", "experiment.toml", "--out", path, "--quiet", capsys=capsys)[0] == 0


def by_option(path, capsys):
    sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    assert command("run", *sets, "--set", 'run.track=["tracker:Tracker"]', "--out", path, capsys=capsys)[0] == 0


def by_python(path, capsys):
    import tracker

    fullrank.run(SETTINGS, path, callbacks=[tracker.Tracker()])


@pytest.mark.parametrize("way", [by_file, by_option, by_python])
def test_a_callback_sees_every_event_in_order(way, tmp_path, capsys):
    way(tmp_path / "run", capsys)
    expected = in_rounds(tmp_path / "run")
    assert events(tmp_path / "run")[: len(expected)] == expected
    at_the_end(events(tmp_path / "run")[len(expected) :])


def test_a_callback_of_a_run_that_was_killed_continues_after_the_rounds_that_are_saved(tmp_path):
    settings = {**SETTINGS, "run.track": ["tracker:Tracker"]}
    assert attempt(settings, tmp_path / "run", Strike("a checkpoint")).signal == signal.SIGKILL
    before = events(tmp_path / "run")
    assert attempt(settings, tmp_path / "run").succeeded()
    assert before == in_rounds(tmp_path / "run")[: len(before)]
    assert before[-1][0] == "client_done"  # the kill came between the checkpoint and the callback
    expected = in_rounds(tmp_path / "run", first=2)
    found = events(tmp_path / "run")[len(before) :]
    assert found[: len(expected)] == expected
    at_the_end(found[len(expected) :])


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_run_of_a_comparison_has_a_callback_of_its_own(jobs, tmp_path):
    settings = {**SETTINGS, "run.track": ["tracker:Tracker"]}
    fullrank.compare(settings, ["fedavg", "fedprox"], [0], tmp_path / "out", jobs=jobs)
    for method in ("fedavg", "fedprox"):
        path = tmp_path / "out" / f"{method}-seed0"
        expected = in_rounds(path, method=method)
        assert events(path)[: len(expected)] == expected
        at_the_end(events(path)[len(expected) :])


def test_callbacks_may_differ_on_resume(tmp_path):
    fullrank.run({**SETTINGS, "run.track": ["tracker:Tracker"]}, tmp_path / "run")
    (tmp_path / "run.events").unlink()
    fullrank.run({**SETTINGS, "train.rounds": 3}, tmp_path / "run")
    assert not (tmp_path / "run.events").exists()


def test_an_installed_package_declares_a_callback(tmp_path, monkeypatch):
    points = [EntryPoint("mine", "tracker:Tracker", "fullrank.callbacks")]
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: points if group.endswith("callbacks") else [])
    fullrank.run({**SETTINGS, "run.track": ["mine"]}, tmp_path / "run")
    assert events(tmp_path / "run")[0][0] == "started"


def test_a_callback_of_a_programs_own_model(tmp_path):
    class Seen(fullrank.Callback):
        def started(self, experiment, path, done, clients):
            self.events = [(path, done, clients)]

        def round_done(self, row):
            self.events.append(row["round"])

        def ended(self, run):
            self.events.append(run)

    x, y = torch.randn(8, 3), torch.arange(8) % 2
    run = fullrank.fit(torch.nn.Linear(3, 2), [(x, y)] * 2, "fedavg", rounds=2, callbacks=[seen := Seen()])
    assert seen.events == [(None, 0, 2), 1, 2, run]


# What a callback asks for


class Models(fullrank.Callback):
    """Asks for the models of some clients."""

    def __init__(self, wanted):
        self.wanted, self.found = wanted, {}

    def round_started(self, round, clients):
        return self.wanted

    def client_done(self, result):
        self.found[result.client] = dict(result.model)


@pytest.mark.parametrize("engine", ["serial", "processes", "vectorised"])
def test_a_callback_gets_the_trained_models_that_it_asks_for(engine, tmp_path):
    settings = {
        "train.rounds": 1,
        "train.participation": 1.0,
        "data.holdout": 0.0,
        "engine.name": engine,
        "engine.workers": 1,
    }
    some, others = Models({0, 2, 99}), Models(None)
    fullrank.run({**SETTINGS, **settings}, tmp_path / "run", callbacks=[some, others])
    assert sorted(client for client, model in some.found.items() if model) == [0, 2]
    assert some.found.keys() == others.found.keys() == set(range(4))
    only = Models({0})
    single = fullrank.run({**SETTINGS, **settings, "data.clients": 1}, tmp_path / "single", callbacks=[only])
    for name, tensor in single.model().state_dict().items():
        assert torch.equal(only.found[0][name], tensor)


# Failures


class Raises(fullrank.Callback):
    """Raises an exception in one of its members, the second time that it is called."""

    def __init__(self, member, error=None, times=2):
        self.member, self.error, self.times, self.failures = member, error or ValueError("no more"), times, []

    def count(self, member):
        self.times -= member == self.member
        if member == self.member and not self.times:
            raise self.error

    def started(self, experiment, path, done, clients):
        self.count("started")

    def round_started(self, round, clients):
        self.count("round_started")

    def client_done(self, result):
        self.count("client_done")

    def round_done(self, row):
        self.count("round_done")

    def phase_started(self, name, done, clients):
        self.count("phase_started")

    def warned(self, text):
        self.count("warned")

    def ended(self, run):
        self.count("ended")

    def failed(self, error):
        self.failures.append(error)
        self.count("failed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fullrank.run({**SETTINGS, "train.rounds": 4}, tmp_path_factory.mktemp("whole") / "run").path


@pytest.mark.parametrize(
    ("member", "times", "saved"),
    [
        ("started", 1, 0),
        ("round_started", 3, 2),
        ("client_done", 4, 1),
        ("client_done", 10, 4),
        ("round_done", 3, 3),
        ("phase_started", 1, 4),
        ("ended", 1, 4),
    ],
)
@pytest.mark.parametrize(
    "error", [ValueError("no more"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: str(type(e))
)
def test_a_callback_that_raises_stops_the_run_with_every_round_saved(member, times, saved, error, whole, tmp_path):
    settings = {**SETTINGS, "train.rounds": 4, "run.checkpoint_every": 3}
    raises, other = Raises(member, error, times), Raises("nothing")
    with pytest.raises(CallbackFailed) as caught:
        fullrank.run(settings, tmp_path / "run", callbacks=[raises, other])
    assert str(caught.value).startswith(
        f'the callback "test_callbacks:Raises": its {member} raised {type(error).__name__}'
    )
    assert (f"first {saved} of 4 rounds are saved" if saved else "no round was complete") in str(caught.value)
    assert "Traceback" in caught.value.traceback
    assert other.failures == raises.failures == [caught.value]
    assert fullrank.runs.directory.RunDirectory(tmp_path / "run").last_round() == saved
    assert "stopped: the callback" in (tmp_path / "run" / "log.txt").read_text()
    fullrank.run(settings, tmp_path / "run")
    assert_equal_outcomes(tmp_path / "run", whole)


def test_a_callback_that_raises_in_warned_leaves_a_whole_directory(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("fullrank.runs.run._not_finite", lambda outcome, scores: ["something is odd"])
    settings = {**SETTINGS, "train.rounds": 4, "run.checkpoint_every": 3}
    with pytest.raises(CallbackFailed, match="its warned raised ValueError: no more; the first 2 of 4 rounds"):
        fullrank.run(settings, tmp_path / "run", callbacks=[Raises("warned")])
    assert fullrank.load_run(tmp_path / "run").metrics[1]["cautions"] == ["something is odd"]
    monkeypatch.undo()
    fullrank.run(settings, tmp_path / "run")
    assert fullrank.load_run(tmp_path / "run").model().state_dict().keys()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_what_the_callback_says_is_one_sentence_at_the_command_line(tmp_path, capsys):
    broken = "\n    def round_done(self, row):\n        raise fullrank.FullrankError('give a key')\n"
    (tmp_path / "tracker.py").write_text(f"{TRACKER}{broken}")
    sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    sets += ["--set", 'run.track=["tracker:Tracker"]']
    status, _, err = command("run", *sets, "--out", tmp_path / "run", "--quiet", capsys=capsys)
    assert status == 1
    assert err == (
        'fullrank: the callback "tracker:Tracker": its round_done raised FullrankError: give a key; the first 1 of 2 '
        f'rounds are saved in "{tmp_path / "run"}"; the same command continues from there\n'
    )
    assert events(tmp_path / "run")[-1] == ("failed", "CallbackFailed")


def fails_before_the_start(path, callbacks):
    with pytest.raises(InputError) as caught:
        fullrank.run({**SETTINGS, "data.name": "cifar10", "data.root": "nowhere"}, path, callbacks=callbacks)
    return caught.value


def fails_because_of_a_client(path, callbacks):
    with pytest.raises(ClientFailed) as caught:
        fullrank.run({**SETTINGS, "train.lr": 1e30, "train.steps": 9}, path, callbacks=callbacks)
    return caught.value


def fails_because_of_a_signal(path, callbacks):
    class Kills(fullrank.Callback):
        def round_done(self, row):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="the first 1 of 2 rounds are saved") as caught:
        fullrank.run(SETTINGS, path, callbacks=[Kills(), *callbacks])
    return caught.value


def fails_because_of_a_name(path, callbacks):
    with pytest.raises(InputError, match=r'run\.track = "nobody" is not known') as caught:
        fullrank.run({**SETTINGS, "run.track": ["nobody"]}, path, callbacks=callbacks)
    assert not path.exists()
    return caught.value


FAILURES = [fails_before_the_start, fails_because_of_a_client, fails_because_of_a_signal, fails_because_of_a_name]


@pytest.mark.parametrize("fails", FAILURES)
def test_failed_is_called_once_with_the_error_that_the_caller_gets(fails, tmp_path):
    first, second = Raises("failed", times=1), Raises("nothing")
    with pytest.warns(UserWarning, match='test_callbacks:Raises": its failed raised ValueError: no more'):
        error = fails(tmp_path / "run", [first, second])
    assert first.failures == second.failures == [error]


def test_failed_is_not_called_after_success(tmp_path):
    seen = Raises("nothing")
    fullrank.run(SETTINGS, tmp_path / "run", callbacks=[seen])
    fullrank.run(SETTINGS, tmp_path / "run", callbacks=[seen])
    assert seen.failures == []


# Mistakes


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([Raises], "callbacks: Raises is a class; give an instance, Raises()"),
        ([print], "is not a fullrank.Callback"),
    ],
)
def test_what_is_no_callback_is_rejected(callbacks, said, tmp_path):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        fullrank.run(SETTINGS, tmp_path / "run", callbacks=callbacks)
    with pytest.raises(InputError, match=said.partition(";")[0].replace("Callback", "ComparisonCallback")):
        fullrank.compare(SETTINGS, ["fedavg"], [0], tmp_path / "out", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tracker:Trakcer", 'the module "tracker" has no Class "Trakcer"; did you mean "Tracker"'),
        ("trakcer:Tracker", 'there is no module "trakcer"'),
        ("collections:OrderedDict", "it must be a subclass of fullrank.Callback"),
        ("tracker:json.dumps", 'has no Class "json.dumps"'),
    ],
)
def test_a_name_of_no_callback_is_rejected_before_anything_is_written(name, said, tmp_path):
    with pytest.raises(InputError, match=said) as caught:
        fullrank.run({**SETTINGS, "run.track": [name]}, tmp_path / "run")
    assert str(caught.value).startswith(f'run.track = "{name}"')
    assert not (tmp_path / "run").exists()


def test_a_single_callback_is_no_list(tmp_path):
    with pytest.raises(InputError, match=r"give a list of callbacks, as in callbacks=\[…\]"):
        fullrank.run(SETTINGS, tmp_path / "run", callbacks=Raises("nothing"))


def test_a_callback_that_returns_no_ids_is_named(tmp_path):
    with pytest.raises(CallbackFailed, match="its round_started returned 5; it must return ids of clients, or None"):
        fullrank.run(SETTINGS, tmp_path / "run", callbacks=[Models(5)])


def test_several_callbacks_are_one(tmp_path):
    assert {name for name in vars(fullrank.Callback) if name[0] != "_"} <= vars(Callbacks).keys()


# Comparisons


class Board(fullrank.ComparisonCallback):
    def __init__(self):
        self.seen = []

    def round_done(self, task, row):
        self.seen.append(task.name)
        raise ValueError("no board")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_callback_of_a_comparison_that_raises_stops_the_comparison(jobs, tmp_path):
    board = Board()
    with pytest.raises(CallbackFailed, match='"test_callbacks:Board": its round_done raised ValueError: no board'):
        fullrank.compare(SETTINGS, ["fedavg", "fedprox"], [0], tmp_path / "out", jobs=jobs, callbacks=[board])
    assert len(board.seen) == 1
