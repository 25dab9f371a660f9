"""The channel over Flower's grid: errors of nodes become trouble with a reason, and no call waits for ever."""

import time

import pytest

pytest.importorskip("flwr")

import flwr.app
from flwr.app import Error, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fullrank.deploy.flower.channel import GridChannel
from fullrank.deploy.flower.records import to_records
from fullrank.deploy.sites import Message
from fullrank.errors import RunFailed


class Grid:
    """A grid whose push and pull are given."""

    def __init__(self, push=lambda messages: ["1"], pull=lambda ids: [], nodes=lambda: [7]):
        self.push_messages, self.pull_messages, self.get_node_ids = push, pull, nodes


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def reply(content=None, error=None):
    """An answer to the message with the id "1"."""
    asked = flwr.app.Message(RecordDict(), 7, "train")
    asked.metadata.__dict__["_message_id"] = "1"
    return flwr.app.Message(content, reply_to=asked) if error is None else flwr.app.Message(error, reply_to=asked)


def received(answer):
    channel = GridChannel(Grid(pull=lambda ids: [answer]), keep=60)
    return channel.receive([channel.send(7, Message({"kind": "job"}))], wait=0.1)["1"]


def test_an_answer_is_received():
    assert received(reply(to_records(Message({"kind": "lacks"})))).kind == "lacks"


@pytest.mark.parametrize(("code", "gone"), [(3, True), (4, True), (5, True), (1, False), (2, False), (8, False)])
def test_errors_of_flower_say_whether_the_node_is_gone(code, gone):
    found = received(reply(error=Error(code=code, reason="secret text of a site")))
    assert found.gone == gone
    assert str(code) in found.reason
    assert "secret" not in found.reason


def test_an_app_that_a_site_does_not_trust_is_named_as_the_reason():
    assert "signed by those whom it trusts" in received(reply(error=Error(code=ErrorCode.INVALID_FAB))).reason


def test_records_of_something_else_are_trouble():
    assert "not a message of fullrank" in received(reply(RecordDict())).reason


@pytest.mark.parametrize(("pushed", "gone"), [([""], True), ([None], True), ([], False)])
def test_a_message_that_was_not_sent_is_trouble(pushed, gone):
    channel = GridChannel(Grid(push=lambda messages: pushed), keep=60)
    tickets = [channel.send(7, Message({"kind": "job"})) for _ in range(2)]
    assert len(set(tickets)) == 2
    found = channel.receive(tickets, wait=60)
    assert {trouble.gone for trouble in found.values()} == {gone}
    assert channel.receive(tickets, wait=0.0) == {}


def test_no_answer_takes_no_longer_than_the_wait():
    channel = GridChannel(Grid(), keep=60)
    start = time.monotonic()
    assert channel.receive(["1"], wait=0.3) == {}
    assert time.monotonic() - start < 5


def test_a_superlink_that_cannot_be_reached_ends_the_run_in_a_sentence():
    def fails(*arguments):
        raise ConnectionError("refused")

    channel = GridChannel(Grid(push=fails, pull=fails, nodes=fails), keep=60)
    calls = (channel.nodes, lambda: channel.send(7, Message({"kind": "job"})), lambda: channel.receive(["1"], 1))
    for call in calls:
        with pytest.raises(RunFailed, match=r"the SuperLink cannot be reached \(ConnectionError"):
            call()
