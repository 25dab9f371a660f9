"""The states of clients at their site: each round a new file, the right one after a return, and no more than needed."""

import pytest
import torch

from fullrank.deploy.sites.states import Receipt, StateFolder
from fullrank.errors import InputError

RUN = "00112233445566778899aabbccddeeff"


def state(value):
    return {"scaffold": {"c": {"w": torch.full((2,), float(value))}}, "empty": {}}


@pytest.fixture
def folder(tmp_path):
    return StateFolder(tmp_path, RUN, 3)


def rounds(folder):
    return sorted(int(path.name[:6]) for path in folder.path.glob("0*.safetensors"))


def test_a_state_is_read_as_it_was_written(folder):
    receipt = folder.save(4, state(7))
    found = folder.load(Receipt.of_values([receipt.round, receipt.token]))
    assert found["empty"] == {}
    assert torch.equal(found["scaffold"]["c"]["w"], torch.full((2,), 7.0))
    assert folder.load(None) is None
    assert Receipt.of_tree(receipt.as_tree()) == receipt
    assert Receipt.of_tree({}) is None


def test_a_missing_and_a_damaged_state_are_rejected(folder):
    receipt = folder.save(0, state(1))
    with pytest.raises(InputError, match="state of round 3 is not in its folder"):
        folder.load(Receipt(2, receipt.token))
    path = folder.path / receipt.file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"state of round 1 is damaged"):
        folder.load(receipt)


def test_what_a_kept_checkpoint_needs_is_kept(folder):
    """The client took part in rounds 0, 2, 3 and 5; the oldest checkpoint is the one after three rounds."""
    kept = {}
    for number in (0, 2, 3, 5):
        kept[number] = folder.save(number, state(number))
    folder.prune(kept[5], oldest=3)
    assert rounds(folder) == [2, 3, 5]  # at the checkpoint after three rounds, that of round 2 is the newest
    folder.prune(kept[5], oldest=6)
    assert rounds(folder) == [5]


def test_after_a_return_to_a_checkpoint_the_lost_rounds_are_deleted(folder):
    first = folder.save(0, state(0))
    folder.save(1, state(1))
    folder.save(2, state(2))
    again = folder.save(0, state(9))  # of a round that never became complete
    folder.prune(first, oldest=1)
    assert rounds(folder) == [0]
    assert torch.equal(folder.load(first)["scaffold"]["c"]["w"], torch.zeros(2))
    with pytest.raises(InputError):
        folder.load(again)
    folder.prune(None, oldest=0)  # from scratch
    assert rounds(folder) == []


def test_frozen_entries_are_kept_by_their_digest(folder):
    frozen = {"head.weight": torch.arange(6.0).reshape(2, 3)}
    assert folder.frozen("abc") is None
    folder.keep_frozen("abc", frozen)
    assert torch.equal(folder.frozen("abc")["head.weight"], frozen["head.weight"])
    assert folder.frozen("other") is None
    (folder.path / "frozen.safetensors").write_bytes(b"junk")
    assert folder.frozen("abc") is None


@pytest.mark.parametrize("run", ["../..", "", "x" * 40, "ABCDEF0123", "/etc/passwd", "0" * 100])
def test_a_run_names_no_folder_elsewhere(tmp_path, run):
    with pytest.raises(InputError, match="does not identify a run"):
        StateFolder(tmp_path, run, 0)


@pytest.mark.parametrize("values", [[1], [1, 2, 3], ["1", 2], [1.0, 2], [-1, 2], [1, -2], [1, 2**63], {"a": 1}, "x", 5])
def test_other_receipts_are_rejected(values):
    with pytest.raises(InputError, match="receipt"):
        Receipt.of_values(values)
