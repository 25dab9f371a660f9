"""The command line as a new user tries it, wrong input included."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import get_args, get_type_hints

import numpy as np
import pytest
from typer.testing import CliRunner

import fullrank as package
from commands import fullrank
from fullrank import methods
from fullrank.cli import app as cli
from fullrank.runs import display
from fullrank.runs.directory import LOCK_HEADER

QUICK = ["--set", "train.rounds=2", "--set", "train.steps=2", "--set", "model.width=4", "--set", "data.clients=3"]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    for name in ("usermodels", "usermethods"):
        sys.modules.pop(name, None)
    yield
    for name in ("usermodels", "usermethods"):
        sys.modules.pop(name, None)


def test_run_prints_a_line_a_round_and_where_the_results_are(capsys, tmp_path):
    status, out, _ = fullrank("run", *QUICK, "--out", "mine", capsys=capsys)
    assert status == 0
    assert "round 1/2  accuracy" in out
    assert "results in mine" in out
    assert (tmp_path / "mine" / "log.txt").read_text().count("round ") >= 2
    status, out, _ = fullrank("run", *QUICK, "--out", "mine", capsys=capsys)
    assert status == 0
    assert "complete already" in out
    status, out, _ = fullrank("run", *QUICK, "--set", "train.rounds=3", "--out", "mine", capsys=capsys)
    assert status == 0
    assert "resuming after round 2" in out
    assert "round 3/3" in out


def test_the_same_command_finds_its_own_directory(capsys, tmp_path):
    fullrank("run", *QUICK, capsys=capsys)
    fullrank("run", *QUICK, capsys=capsys)
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_quiet_and_json(capsys):
    assert fullrank("run", *QUICK, "--quiet", capsys=capsys) == (0, "", "")
    _, out, _ = fullrank("run", *QUICK, "--out", "j", "--json", capsys=capsys)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == ["round", "round", "end"]
    assert events[-1]["summary"]["accuracy"]["last"] == events[1]["accuracy"]


def test_a_file_with_overrides_on_top(capsys, tmp_path):
    (tmp_path / "e.toml").write_text("[train]\nrounds = 1\n[data]\nclients = 2\n[model]\nwidth = 4\n")
    status, out, _ = fullrank("run", "e.toml", "--set", "data.clients=3", "--json", capsys=capsys)
    assert status == 0
    assert len(json.loads(out.splitlines()[0])["clients"]) == 3


@pytest.mark.parametrize(("rounds", "every", "number"), [(3, 1, 3), (3, 2, 2), (6, 1, 5)])
def test_the_mean_over_the_last_rounds_says_over_how_many(rounds, every, number, capsys):
    keys = ["--set", f"train.rounds={rounds}", "--set", f"evaluate.every={every}"]
    _, out, _ = fullrank("run", *QUICK, *keys, capsys=capsys)
    assert f"mean of last {number}\n" in out


def test_without_a_global_model_what_was_measured_of_clients_is_shown(capsys):
    keys = ["--set", "method.name=fedrep", "--set", "data.holdout=0.2", "--set", "data.partition=iid"]
    _, out, _ = fullrank("run", *QUICK, *keys, "--set", 'evaluate.metrics=["accuracy", "macro-f1"]', capsys=capsys)
    assert "mean of last" not in out
    rows = [line.split() for line in out.splitlines()]
    assert any(row[:2] == ["accuracy", "local"] and row[3] == "%" for row in rows)
    assert any(row[:3] == ["macro", "f1", "local"] for row in rows)
    _, out, _ = fullrank("run", *QUICK, "--set", "data.holdout=0.2", capsys=capsys)
    rows = [line.split()[:2] for line in out.splitlines()]
    assert ["accuracy", "local"] in rows
    assert ["loss", "local"] not in rows


def test_methods_show_says_what_leaves_the_site(capsys):
    status, out, _ = fullrank("methods", "show", "scaffold", capsys=capsys)
    assert status == 0
    for part in ("Karimireddy", "(c − c_k)", "control variate", "A client keeps", "weights = "):
        assert part in out, part
    _, out, _ = fullrank("methods", "show", "fedproto", "--json", capsys=capsys)
    assert "no weights" in json.loads(out)["sends"]
    status, _, err = fullrank("methods", "show", "scafold", capsys=capsys)
    assert status == 2
    assert 'did you mean "scaffold"' in err


def test_methods_show_explains_each_part_of_a_composition(capsys):
    status, out, _ = fullrank("methods", "show", "fedprox+feddecorr", capsys=capsys)
    assert status == 0
    assert out.index("[method.fedprox]") < out.index("feddecorr  Shi") < out.index("[method.feddecorr]")
    _, out, _ = fullrank("methods", "show", "fedprox + feddecorr", "--json", capsys=capsys)
    assert [part["name"] for part in json.loads(out)] == ["fedprox", "feddecorr"]


def test_what_comes_to_a_site_is_said_in_words(capsys):
    for name, cls in methods.available().items():
        assert bool(cls.receives) == bool(cls.broadcast), name
    _, out, _ = fullrank("methods", "show", "fedmr", capsys=capsys)
    comes = " ".join(out[out.index("A client receives") :].split())
    assert "the mean features of every class over all clients" in comes
    assert "its available" not in comes


def test_the_version_is_printed_without_importing_torch():
    code = (
        "import sys; sys.argv[1:] = ['--version']; from fullrank.__main__ import main; main(); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"fullrank {package.__version__}\n")


def test_public_names_are_imported_when_they_are_used():
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="module 'fullrank' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("name", ["feddecorr", "fedmr"])
def test_a_method_with_several_scales_explains_each_of_them(name, capsys):
    _, out, _ = fullrank("methods", "show", name, capsys=capsys)
    cls = methods.available()[name]
    for scale in get_args(get_type_hints(cls)["scale"]):
        assert f'scale = "{scale}"' in out
    assert name != "fedmr" or "Eq. 3 with one normaliser" in " ".join(out.split())


def test_methods_and_models(capsys):
    _, out, _ = fullrank("methods", "--json", capsys=capsys)
    assert json.loads(out)["feddecorr"]["hyper_parameters"] == {"beta": 0.1, "scale": "code"}
    _, out, _ = fullrank("models", "--json", capsys=capsys)
    # 3·3·1·32 + 32, 3·3·32·64 + 64, 1024·128 + 128, 128·10 + 10
    assert json.loads(out)["cnn"]["parameters"] == 320 + 18_496 + 131_200 + 1_290
    for command in ("methods", "models"):
        status, out, _ = fullrank(command, capsys=capsys)
        assert status == 0
        assert "package.module" in out


def test_partition_in_text_json_and_as_a_picture(capsys, tmp_path):
    status, out, _ = fullrank("partition", "--set", "data.clients=5", "--png", "split.png", capsys=capsys)
    assert status == 0
    for line in ("client  size", "label entropy", "earth mover's", "partition hash", "data fingerprint"):
        assert line in out
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")
    _, out, _ = fullrank("partition", "--set", "data.clients=5", "--json", capsys=capsys)
    facts = json.loads(out)
    assert sum(facts["sizes"]) == 1437
    _, out, _ = fullrank("partition", "--set", "data.clients=5", "--set", "data.holdout=0.3", "--json", capsys=capsys)
    apart = json.loads(out)
    assert apart["holdout"] == sum(3 * size // 10 for size in facts["sizes"])
    assert apart["hash"] != facts["hash"]


LACKING = ["--set", "data.partition=class-disjoint", "--set", "data.clients=3"]


def test_what_a_partition_leaves_out_is_said(capsys):
    said = "571 of 1437 training samples are unassigned, 4 of 10 classes have no client (6, 7, 8, 9)"
    assert f"without a client     {said}\n" in fullrank("partition", *LACKING, capsys=capsys)[1]
    facts = json.loads(fullrank("partition", *LACKING, "--json", capsys=capsys)[1])
    assert (facts["unassigned"], facts["classes_without_client"]) == (571, ["6", "7", "8", "9"])
    _, out, _ = fullrank("run", *QUICK, *LACKING, "--set", "train.rounds=1", capsys=capsys)
    assert out.index(f"the partition leaves data out: {said}\n") < out.index("round 1/1")
    apart = ["--set", "data.holdout=0.2", "--set", "data.validation=0.1"]
    assert "left out" not in fullrank("partition", *apart, capsys=capsys)[1]


WRONG = {
    "misspelt key": (["--set", "data.alhpa=1"], 'did you mean "alpha"'),
    "key with a dash": (
        ["--set", "train.batch-size=3"],
        'train.batch-size: there is no such key; did you mean "b',
    ),
    "no table": (["--set", "method.fedprox=0.1"], "method.fedprox = 0.1: must be a table"),
    "impossible width": (["--set", "model.width=0"], "model.width = 0: must be at least 1"),
    "no number of classes": (["--set", "model.name=usermodels:fixed"], "must accept num_classes="),
    "tabular data": (
        ["--set", "data.name=tabular.npz", "--set", "data.clients=2"],
        "the model (Net) cannot take a batch of shape",
    ),
    "missing file": (["nothing.toml"], 'no file "nothing.toml"'),
    "alpha = -1": (["--set", "data.alpha=-1"], "greater than 0"),
    "100 clients on 50 samples": (["--set", "data.name=small.npz", "--set", "data.clients=100"], "samples"),
    "unknown method": (["--set", "method.name=fedavgg"], 'did you mean "fedavg"'),
    "a method too few": (["--set", "method.name=fedprox+"], 'a name is missing before or after "+"'),
    "conflict": (["--set", "method.name=usermethods:A+usermethods:B"], '"a" and "b" cannot be combined'),
    "width": (["--set", "model.name=usermodels:wrong"], "12 outputs, but the data have 10 classes"),
    "labels": (["--set", "data.name=labels.npz"], "label 3"),
    "no such module": (["--set", "model.name=usermodel:wrong"], 'no module "usermodel"'),
    "not a directory": (["--out", "small.npz/run"], "cannot be written"),
    "a method that does not train": (
        ["--set", "method.fedprox.mu=1"],
        "the method is fedavg, so this has no effect; add the method, as in --set method.name=fedavg+fedprox",
    ),
    "unknown data": (["--set", "data.name=digit"], 'did you mean "digits"'),
    "not key=value": (["--set", "alpha"], "key=value"),
    "no field": (["--set", "method.name=usermethods:C"], "@dataclass(frozen=True)"),
    "selector": (["--set", 'model.freeze=["heda"]'], 'did you mean "head"'),
    "participation": (["--set", "train.participation=11"], "only 10 clients"),
    "device": (["--set", "engine.device=foo"], "engine.device"),
    "head of a library's network": (["--set", "model.head=nope"], 'model.head = "nope"'),
}


@pytest.fixture
def _user_files(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (50, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "small.npz", x=images, y=np.arange(50) % 5)
    np.savez(tmp_path / "tabular.npz", x=rng.normal(size=(50, 7)).astype(np.float32), y=np.arange(50) % 5)
    np.savez(
        tmp_path / "labels.npz",
        x_train=images,
        y_train=np.arange(50) % 5,
        x_test=images,
        y_test=np.arange(50) % 3,
        classes=np.array(["a", "b", "c"]),
    )
    (tmp_path / "usermodels.py").write_text(
        "from torch import nn\n"
        "def wrong(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes + 2))\n"
        "def boom(num_classes, in_channels):\n"
        "    raise ValueError('kaboom')\n"
        "def data(root, seed):\n"
        "    raise ValueError('kaboom')\n"
        "def fixed():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (tmp_path / "usermethods.py").write_text(
        "from dataclasses import dataclass\n"
        "from fullrank import Method\n"
        "class A(Method):\n"
        "    def criterion(self, b): return b.logits.sum()\n"
        "class B(Method):\n"
        "    def criterion(self, b): return b.logits.sum()\n"
        "class C(Method):\n"
        "    strength: float = 0.1\n"
        "class Fails(Method):\n"
        "    def loss(self, b): raise RuntimeError('out of luck')\n"
    )


@pytest.mark.usefixtures("_user_files")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gives_one_sentence_and_a_status(case, capsys):
    arguments, words = WRONG[case]
    status, _, err = fullrank("run", *arguments, capsys=capsys)
    assert status == 2
    assert err.startswith("fullrank: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.usefixtures("_user_files")
def test_a_clients_exception_comes_with_its_traceback_and_id(capsys):
    status, _, err = fullrank("run", *QUICK, "--set", "method.name=usermethods:Fails", capsys=capsys)
    assert status == 1
    assert "Traceback" in err
    assert "usermethods.py" in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("fullrank: client ")
    assert "out of luck" in last


@pytest.mark.usefixtures("_user_files")
@pytest.mark.parametrize(("key", "name"), [("model.name", "usermodels:boom"), ("data.name", "usermodels:data")])
def test_an_exception_of_a_users_function_ends_with_the_key_that_named_it(key, name, capsys):
    sentence = f'{key} = "{name}": it raised ValueError: kaboom'
    commands = {"": ["run"], "fedavg seed 0: ": ["compare", "--methods", "fedavg,fedprox", "--jobs", "1"]}
    for run, command in commands.items():
        status, _, err = fullrank(*command, "--set", f"{key}={name}", capsys=capsys)
        assert status == 1
        assert "usermodels.py" in err
        assert err.splitlines()[-1] == f"fullrank: {run}{sentence}"


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")


@FULL
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["methods"], ["--version"], ["run", *QUICK]])
def test_an_output_that_is_full_is_one_sentence(arguments, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fullrank", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (1, "fullrank: the output cannot be written: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that closes an output")
def test_no_output_at_all_is_no_failure():
    done = subprocess.run(f"{sys.executable} -m fullrank methods >&-", shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@FULL
def test_a_full_disk_ends_a_run_with_a_sentence(capsys, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text(f"{LOCK_HEADER}\nlog.txt\n")  # as a run that was killed leaves it
    (tmp_path / "run" / "log.txt").symlink_to("/dev/full")
    status, _, err = fullrank("run", *QUICK, "--out", "run", capsys=capsys)
    assert status == 1
    assert err == (
        'fullrank: "run/log.txt" cannot be written: No space left on device; no round was complete yet in "run"; '
        "the same command continues from there\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_run_directory(capsys, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    status, _, err = fullrank("run", *QUICK, "--out", "locked", capsys=capsys)
    assert status == 2
    assert 'fullrank: the run directory "locked" cannot be written' in err


def test_unwritable_run_directory_whoever_runs_it(capsys, monkeypatch):
    def reject(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", reject)
    status, _, err = fullrank("run", *QUICK, "--out", "locked", capsys=capsys)
    assert status == 2
    assert err == 'fullrank: the run directory "locked" cannot be written: Permission denied\n'


def test_unknown_command_and_option():
    runner = CliRunner()
    assert runner.invoke(cli.app, ["rnu"]).exit_code == 2
    assert runner.invoke(cli.app, ["run", "--sett", "x"]).exit_code == 2


def test_help_of_every_command():
    runner = CliRunner()
    for command in ([], ["run"], ["methods"], ["models"], ["partition"]):
        result = runner.invoke(cli.app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_continue(number, capsys, tmp_path):
    command = [sys.executable, "-m", "fullrank", "run", *QUICK, "--set", "train.rounds=100000", "--out", "long"]
    command += ["--set", "run.checkpoint_every=1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("round 3/"):
            break
    process.send_signal(number)
    if number == signal.SIGTERM:  # which `timeout` sends to the process and to its group
        time.sleep(0.02)
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    notice, err = err.splitlines()
    assert "stopping after the current step" in notice
    assert err.startswith("fullrank: stopped; the first ")
    assert 'are saved in "long"; the same command continues from there' in err
    done = int(err.split()[4])
    status, out, _ = fullrank("run", *QUICK, "--set", f"train.rounds={done + 1}", "--out", "long", capsys=capsys)
    assert status == 0
    assert f"resuming after round {done}" in out


def test_version_and_module_entry():
    done = subprocess.run([sys.executable, "-m", "fullrank", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "fullrank 0.1.0\n"


def test_live_display_counts_rounds_and_clients():
    import io

    from rich.console import Console

    import fullrank as library

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    experiment = library.Experiment.of({"train.rounds": 2, "model.width": 4, "data.clients": 3})
    with display.Live(console) as shown:
        library.run(experiment, "live", callbacks=[shown])
        bars, below = shown.progress.tasks, shown.progress.below
    assert bars[0].completed == 2
    assert "2/2" in bars[0].fields["state"]
    assert "accuracy" in below
    assert bars[1].total == 3


def test_clock_and_sizes():
    assert display.clock(3725.4) == "1:02:05"
    assert [display.size(n) for n in (999, 1000, 12_345_678)] == ["999 B", "1.0 kB", "12.3 MB"]


def test_the_engine_for_gpus_is_rejected_on_a_cpu_before_anything_is_written(tmp_path, capsys):
    for device in ("", "cpu"):
        keys = ["--set", "engine.name=cuda", "--set", f'engine.device="{device}"']
        status, _, err = fullrank("run", *keys, "--out", tmp_path / "run", capsys=capsys)
        assert status == 2
        assert 'engine.name = "cuda" needs engine.device = "cuda", not "cpu"' in err
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_rejected_in_any_directory(capsys):
    fullrank("run", *QUICK, "--out", "mine", capsys=capsys)
    status, _, err = fullrank("run", *QUICK, "--out", "mine", "--set", "engine.device=tpu", capsys=capsys)
    assert status == 2
    assert 'engine.device = "tpu" is not a device' in err


@pytest.mark.usefixtures("_user_files")
def test_only_modules_in_the_current_directory_are_suggested(capsys):
    _, _, err = fullrank("run", "--set", "model.name=usermodel:wrong", capsys=capsys)
    assert 'did you mean "usermodels"?' in err
    _, _, err = fullrank("run", "--set", "model.name=mm:tiny", capsys=capsys)  # Python has a module mmap
    assert "did you mean" not in err
