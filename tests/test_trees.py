import copy
import doctest
import pickle

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fullrank import trees
from fullrank.trees import (
    Flat,
    FlatLayout,
    clone,
    combine,
    copy_,
    elements,
    flatten,
    misfit,
    moved,
    nbytes,
    norm,
    unflatten,
    zeros,
)


def nested_tree():
    return {
        "c": {"head.weight": torch.arange(6.0).reshape(2, 3), "head.bias": torch.ones(2)},
        "count": torch.tensor(7),
        "empty": {},
        "deep": {"er": {"mask": torch.tensor([True, False]), "nothing": {}}},
    }


def test_paths_join_names_with_slashes_and_an_empty_subtree_keeps_its_name():
    flat = flatten(nested_tree())
    assert list(flat) == ["c/head.weight", "c/head.bias", "count", "empty/", "deep/er/mask", "deep/er/nothing/"]
    assert flat["empty/"].numel() == 0
    assert flat["count"].item() == 7


def test_unflatten_undoes_flatten_also_for_empty_subtrees():
    tree = nested_tree()
    back = unflatten(flatten(tree))
    assert back["empty"] == {}
    assert back["deep"]["er"]["nothing"] == {}
    assert list(flatten(back)) == list(flatten(tree))
    assert all(torch.equal(a, b) for a, b in zip(flatten(back).values(), flatten(tree).values(), strict=True))
    assert flatten({}) == {}
    assert unflatten({}) == {}


def test_combine_works_name_by_name_not_by_position():
    a = {"x": torch.tensor(1.0), "y": torch.tensor(2.0)}
    b = {"y": torch.tensor(20.0), "x": torch.tensor(10.0), "more": torch.tensor(0.0)}
    result = combine(a, lambda a, b: a + b, b)
    assert {name: value.item() for name, value in result.items()} == {"x": 11.0, "y": 22.0}


def test_combine_reaches_into_subtrees():
    tree = {"a": {"b": torch.tensor(2.0)}, "e": {}}
    result = combine(tree, lambda x, y, z: x * y + z, {"a": {"b": torch.tensor(3.0)}, "e": {}}, tree)
    assert result["a"]["b"].item() == 8.0
    assert result["e"] == {}


@pytest.mark.parametrize("other", [{}, {"a": {}}, {"b": torch.tensor(1.0)}])
def test_combine_rejects_a_missing_name(other):
    with pytest.raises(KeyError):
        combine({"a": {"b": torch.tensor(1.0)}}, torch.add, other)


def test_zeros_and_clone_are_independent_of_their_source():
    tree = nested_tree()
    nothing, copy = zeros(tree), clone(tree)
    assert all(not value.any() for value in flatten(nothing).values())
    assert nothing["count"].dtype == torch.int64
    tree["c"]["head.bias"].add_(5)
    assert torch.equal(copy["c"]["head.bias"], torch.ones(2))
    assert not nothing["c"]["head.bias"].any()


def test_clone_detaches_and_is_contiguous():
    grown = torch.ones(2, 3, 4, 5, requires_grad=True).to(memory_format=torch.channels_last) * 2
    copy = clone({"x": grown})["x"]
    assert copy.is_contiguous()
    assert not copy.requires_grad
    assert torch.equal(copy, grown)


def test_two_names_of_one_tensor_become_two_tensors():
    tensor = torch.ones(3)
    copy = clone({"a": tensor, "b": tensor})
    copy["a"].add_(1)
    assert torch.equal(copy["b"], torch.ones(3))


def test_moved_copies_nothing_that_is_there():
    tensor = torch.ones(3)
    assert moved({"a": {"b": tensor}}, torch.device("cpu"))["a"]["b"] is tensor


def test_elements_and_bytes():
    tree = nested_tree()
    assert elements(tree) == 6 + 2 + 1 + 0 + 2 + 0
    assert nbytes(tree) == 4 * 8 + 8 + 2
    assert nbytes({"h": torch.zeros(3, dtype=torch.bfloat16), "d": torch.zeros(3, dtype=torch.float64)}) == 6 + 24


def test_norm_is_over_all_entries():
    assert norm({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}).item() == 5.0
    assert norm({}).item() == 0.0


def test_misfit_names_what_differs():
    like = {"a": {"w": torch.zeros(2, 3)}, "e": {}}
    assert misfit({"a": {"w": torch.ones(2, 3)}, "e": {}}, like) is None
    assert misfit({"a": {"w": torch.ones(2, 3)}}, like) == "e/ is missing"
    assert misfit({"a": {}, "e": {}}, like) == "a/w is missing"
    assert misfit({"a": {"w": torch.ones(2, 3), "v": torch.ones(1)}, "e": {}}, like) == "a/v is not expected"
    assert misfit({"a": {"w": torch.ones(3, 2)}, "e": {}}, like) == "a/w has shape (3, 2) instead of (2, 3)"


def test_examples():
    assert doctest.testmod(trees).failed == 0


def test_a_flat_tree_is_a_dict_like_any_other_and_makes_its_views_when_asked():
    entries = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}

    def made():
        return Flat(torch.cat([entries["a"].flatten(), entries["b"]]), FlatLayout.of(entries))

    reads = [dict, lambda f: {**f}, lambda f: f | {}, lambda f: {} | f, lambda f: f.copy()]
    for read in [*reads, lambda f: dict(f.items()), lambda f: {n: f[n] for n in f}]:
        assert {name: tensor.tolist() for name, tensor in read(made()).items()} == {
            name: tensor.tolist() for name, tensor in entries.items()
        }
    assert list(made()) == list(made().keys()) == ["a", "b"]
    assert [len(made()), bool(made()), "a" in made(), "c" in made(), "" in made()] == [2, True, True, False, False]
    assert made().get("c") is None
    assert made().get("b").tolist() == [1, 1]
    assert made().keys() >= {"a"}
    assert {"a", "b"} == made().keys()
    assert [tensor.shape for tensor in made().values()] == [(2, 3), (2,)]
    assert [copy.deepcopy(made())["b"].tolist(), pickle.loads(pickle.dumps(made()))["b"].tolist()] == [[1, 1]] * 2
    with pytest.raises(KeyError, match="c"):
        made()["c"]
    assert list(reversed(made())) == ["b", "a"]
    assert "0., 1., 2." in repr(made())
    assert made() != {}
    turned = Flat(made().base, made().layout, {"b": entries["b"], "a": entries["a"]})
    assert [list(turned), [t.shape for t in turned.values()]] == [["a", "b"], [(2, 3), (2,)]]
    flat = made()
    flat.base.zero_()
    assert not flat["a"].any()
    flat["b"].fill_(3)
    assert flat.base.tolist() == [0] * 6 + [3] * 2


@pytest.mark.parametrize(
    "write",
    [
        lambda f: f.__setitem__("a", torch.zeros(2, 3)),
        lambda f: f.update(a=torch.zeros(2, 3)),
        lambda f: f.__ior__({"a": torch.zeros(2, 3)}),
        lambda f: f.pop("a"),
        lambda f: f.popitem(),
        lambda f: f.setdefault("c", torch.zeros(1)),
        lambda f: f.clear(),
        lambda f: f.__delitem__("a"),
    ],
)
def test_an_entry_of_a_flat_tree_cannot_be_replaced(write):
    entries = {"a": torch.ones(2, 3)}
    flat = Flat(torch.ones(6), FlatLayout.of(entries))
    with pytest.raises(TypeError, match="never written in place: make a new one"):
        write(flat)
    assert flat["a"].tolist() == entries["a"].tolist()


def test_copies_between_flat_trees_of_one_layout_are_one_operation():
    entries = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    layout = FlatLayout.of(entries)
    into, given = Flat(torch.zeros(8), layout), Flat.copied(entries, layout)
    with Operations() as counted:
        copy_({"deep": into}, {"deep": given, "more": {}})
    assert counted.names == ["_foreach_copy_"]
    assert into.base.tolist() == [0, 1, 2, 3, 4, 5, 1, 1]
    with pytest.raises(KeyError, match="b"):
        copy_(into, {"a": entries["a"]})
    copy_({"nothing": {}}, {})


class Operations(TorchDispatchMode):
    """What torch is asked for inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))
