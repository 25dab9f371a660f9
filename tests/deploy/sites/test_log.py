"""The log of a site stays below its limit, and loses the oldest lines only."""

import multiprocessing

import pytest

from deployments import deploy, experiment, network
from fullrank.deploy.sites import Host, Message, SiteSettings
from fullrank.deploy.sites.host import MOST_LOGGED
from fullrank.deploy.sites.log import FILES, LOG, SiteLog
from fullrank.deploy.sites.message import PROTOCOL
from fullrank.errors import InputError
from fullrank.files import read_lines
from fullrank.runs.callbacks import Callback


def size(folder):
    return sum(path.stat().st_size for path in folder.glob("sent*.jsonl"))


def numbers(log):
    return [line["n"] for line in log]


def test_a_log_stays_below_its_limit_and_keeps_the_newest_lines(tmp_path):
    log = SiteLog(tmp_path, limit=20_000)
    for n in range(1000):
        log.append({"n": n, "uploads": {"w": n}})
        assert size(tmp_path) <= 20_000
    names = {path.name for path in tmp_path.glob("sent*")}
    assert names == {LOG, *(f"sent.{number}.jsonl" for number in range(1, FILES))}
    kept = numbers(log)
    assert kept == list(range(1000 - len(kept), 1000)), "no line between others is lost, and none is there twice"
    assert size(tmp_path) > 0.85 * 20_000
    assert next(iter(read_lines(tmp_path / "sent.1.jsonl")))["n"] < next(iter(read_lines(tmp_path / LOG)))["n"]


def test_a_log_without_a_limit_is_one_file(tmp_path):
    log = SiteLog(tmp_path, limit=0)
    for n in range(300):
        log.append({"n": n, "text": "x" * 1000})
    assert [path.name for path in tmp_path.glob("sent*")] == [LOG]
    assert len(numbers(log)) == 300


def test_a_line_that_is_longer_than_a_file_is_kept(tmp_path):
    log = SiteLog(tmp_path, limit=1000)
    log.append({"n": 0})
    log.append({"n": 1, "text": "x" * 5000})
    log.append({"n": 2})
    assert numbers(log) == [0, 1, 2]


def test_files_that_a_kill_left_without_the_next_number_are_kept(tmp_path):
    log = SiteLog(tmp_path, limit=FILES)  # every line is a new file
    for n in range(FILES):
        log.append({"n": n})
    log.path(4).unlink()  # as if killed after sent.4.jsonl had become sent.5.jsonl
    for n in (FILES, FILES + 1):
        log.append({"n": n})
    kept = numbers(log)
    assert kept == sorted(kept)
    assert len(kept) == FILES
    assert kept[0] == 1, "the first new file takes the free number, and only the second one deletes the oldest"


def write(folder, process):
    log = SiteLog(folder, limit=200_000)
    for n in range(400):
        log.append({"process": process, "n": n})


def test_several_processes_write_to_one_log(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write, args=(tmp_path, k)) for k in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    lines = [(line["process"], line["n"]) for line in SiteLog(tmp_path, 0)]
    assert (tmp_path / "sent.1.jsonl").exists()
    assert sorted(lines) == [(k, n) for k in range(3) for n in range(400)]


def test_site_toml_has_the_limit(tmp_path):
    assert SiteSettings().site.log_megabytes == 100
    with pytest.raises(InputError, match=r"site\.log_megabytes"):
        SiteSettings(site={"log_megabytes": -1})
    host = Host(SiteSettings(site={"log_megabytes": 1}).within(tmp_path), [0])
    for _ in range(320):
        host.answer(Message({"kind": "join", "protocol": 0, "run": "x" * 64, "filler": "y" * 10**5}))
    folder = tmp_path / "state"
    assert not (folder / "sent.1.jsonl").exists()
    for _ in range(300):
        host.answer(Message({"kind": "join", "protocol": 0, "run": "x" * 64}))
    assert (folder / "sent.1.jsonl").exists()
    assert size(folder) < 1_000_000


def test_a_server_cannot_fill_the_log_with_long_texts(tmp_path):
    host = Host(SiteSettings().within(tmp_path), [0])
    host.answer(Message({"kind": "z" * 10**6}))
    host.answer(Message({"kind": "join", "protocol": 1, "run": "r" * 10**6, "experiment": f'"{"e" * 10**6}" = 1'}))
    code = {"kind": "join", "protocol": 1, "experiment": f'[model]\nname = "{"m" * 10**6}:x"'}
    host.answer(Message(code))
    host.answer(Message({"kind": "join", "protocol": 1, "experiment": f'[data]\nname = "{"d" * 10**6}"'}))
    assert len(list(SiteLog(tmp_path / "state", 0))) >= 4
    assert size(tmp_path / "state") < 6 * MOST_LOGGED


@pytest.mark.parametrize("obstacle", ["folder", "log"])
def test_nothing_is_sent_if_the_log_cannot_be_written(tmp_path, capsys, obstacle):
    if obstacle == "folder":
        (tmp_path / "state").write_text("a file")
    else:
        (tmp_path / "state" / LOG).mkdir(parents=True)
    host = Host(SiteSettings().within(tmp_path), [0])
    text = experiment(data__clients=2).as_toml()
    answer = host.answer(Message({"kind": "join", "protocol": PROTOCOL, "run": "0" * 16, "experiment": text}))
    assert answer.kind == "rejected"
    assert answer.values["reason"] == "cannot take part: the log of the site cannot be written"
    assert "state" in capsys.readouterr().err


def test_the_log_says_what_a_site_told_what_it_sent_and_what_it_lacked(tmp_path):
    what = experiment(method__name="fedetf", train__rounds=3, evaluate__personal="every")

    class Loses(Callback):
        def round_done(self, row):
            if row["round"] == 1:
                for file in (tmp_path / "site1").rglob("frozen.*"):
                    file.unlink()

    deploy(tmp_path, what, network(tmp_path), callbacks=[Loses()])
    lines = list(SiteLog(tmp_path / "site1" / "state", 0))
    (told,) = lines[0]["told"]
    assert told["client"] == 1
    assert told["samples"] > 0
    assert [line["round"] for line in lines if line.get("lacks")] == [2]
    trained = next(line for line in lines if line.get("job") == "train")
    assert {"epochs", "personal"} <= set(trained["metrics"])
    assert [line["round"] for line in lines if "job" in line] == [1, 2, 3, 3], "the last evaluation is after round 3"
