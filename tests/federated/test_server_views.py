"""What a method reads and assigns through its view of the server is the server's."""

import pytest
import torch

from fullrank import Method, Sum, fit
from fullrank.engine.serial import Serial
from fullrank.errors import CallFailed, InputError
from hook_methods import Frame
from small import CLASSES, blobs, normed, plain, put_together

FRAME = CLASSES * CLASSES


class Reframes(Frame):
    """Gives the frozen part of the classifier other values after the last round."""

    def finish(self, server):
        server.w = {name: 2 * value for name, value in server.model.items() if name.endswith("frame")}


def test_frozen_entries_that_finish_changes_are_sent_again(tmp_path):
    clients = blobs((12, 9, 7))
    kept, changed = (
        fit(normed(), clients, method, rounds=2, set={"data.holdout": 0.3, "engine.name": "serial"})
        for method in (Frame(), Reframes())
    )
    assert torch.equal(changed.model()[3].frame, 2 * kept.model()[3].frame)
    before, after = (run._ending["evaluation"]["elements_down"] for run in (kept, changed))
    assert after - before == len(clients) * FRAME


def test_all_views_show_one_server():
    seen = []

    class First(Method):
        def aggregate(self, server, new, up):
            server.own = {"rounds": torch.tensor(server.round + 1)}
            seen.append((server.round, server.clients, server.taking_part, server.model.keys() == server.w.keys()))
            return new

        def finish(self, server):
            server.w = {"2.bias": torch.ones(CLASSES, dtype=torch.float64)}

    class Second(Method):
        def finish(self, server):
            seen.append((server.own, server.w["2.bias"].tolist()))

    parts = put_together(plain(), blobs(), First() + Second())
    parts.server.run_round(Serial(parts.site))
    final, _, _ = parts.server.finished(Serial(parts.site))
    assert seen == [(0, 3, (0, 1, 2), True), ({}, [1.0] * CLASSES)]
    assert int(final.own["first"]["rounds"]) == 1
    assert final.model["2.bias"].tolist() == [1.0] * CLASSES
    assert parts.server.model["2.bias"].tolist() != [1.0] * CLASSES  # further rounds start from before `finish`


def test_a_failed_aggregation_takes_back_what_a_hook_assigned():
    class Assigns(Method):
        def aggregate(self, server, new, up):
            server.w = {name: value + 1 for name, value in server.w.items()}
            raise InputError("not this time")

    parts = put_together(plain(), blobs(), Assigns())
    before = parts.server.model
    with pytest.raises(InputError, match="not this time"):
        parts.server.run_round(Serial(parts.site))
    assert all(parts.server.model[name] is value for name, value in before.items())


class Asks(Method):
    def numbers(self, client):
        return {"n": Sum({"n": torch.tensor(client.n)})}


def test_questions_in_a_round_count_as_its_traffic():
    class InARound(Asks):
        def aggregate(self, server, new, up):
            answers.append(int(server.ask(self.numbers)["n"]["n"]))
            return new

    answers = []
    run, silent = (
        fit(plain(), blobs(), method, rounds=1, set={"engine.name": "serial"}) for method in (InARound(), "fedavg")
    )
    assert answers == [12 + 9 + 7]
    (row,), (without,) = run.metrics, silent.metrics
    assert row["elements_up"] - without["elements_up"] == 3
    assert row["elements_down"] == 2 * without["elements_down"]


def test_questions_before_there_are_clients_are_an_error():
    class TooEarly(Asks):
        def server_state(self, server):
            return server.ask(self.numbers)

    with pytest.raises(
        InputError, match=r'"tooearly": clients answer server.ask in the hooks begin, aggregate and finish'
    ):
        put_together(plain(), blobs(), TooEarly())


def test_a_view_has_no_other_attributes():
    class Notes(Method):
        def finish(self, server):
            server.note = 1

    with pytest.raises(CallFailed, match="its hook finish raised AttributeError"):
        fit(plain(), blobs(), Notes(), rounds=1)
