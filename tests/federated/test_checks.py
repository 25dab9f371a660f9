"""Which uploads are rejected."""

import pytest
import torch

from fullrank import Mean, Sum
from fullrank.errors import InputError
from fullrank.federated.checks import Unusable, UploadCheck

NAN, INF = float("nan"), float("inf")


def upload(v=(1.0, 2.0), n=3, weight=2.0, s=1.0):
    """What a well-behaved client sends."""
    return {
        "": {"w": Mean({"v": torch.tensor(v), "n": torch.tensor(n)}, weight)},
        "m": {"s": Sum({"x": torch.tensor(s)}), "t": Mean({"y": torch.tensor(s)}, 1.0)},
    }


def changed(space, name, part):
    other = upload()
    other[space] = {**other[space], name: part}
    return other


BAD = {
    "not finite": (changed("m", "t", Mean({"y": torch.tensor(NAN)}, 1.0)), "in its m/t, y is not finite"),
    "infinite": (upload(v=(INF, 1.0)), "in its w, v is not finite"),
    "a space is missing": ({"": upload()[""]}, "differ from the other clients' in m/s, m/t"),
    "a name is missing": ({**upload(), "m": {"s": upload()["m"]["s"]}}, "differ from the other clients' in m/t"),
    "a name too many": (changed("m", "u", Sum({"x": torch.tensor(1.0)})), "differ from the other clients' in m/u"),
    "an entry is missing": (changed("", "w", Mean({"v": torch.ones(2)}, 2.0)), "in its w, n is missing"),
    "an entry too many": (
        changed("m", "s", Sum({"x": torch.tensor(1.0), "z": torch.tensor(1.0)})),
        "in its m/s, z is not expected",
    ),
    "a shape": (changed("m", "t", Mean({"y": torch.ones(1)}, 1.0)), r"in its m/t, y has shape \(1,\) instead of \(\)"),
    "a kind of upload": (changed("m", "t", Sum({"y": torch.tensor(1.0)})), "m/t is a Sum, other clients' a Mean"),
    "no kind of upload": (changed("m", "t", {"y": torch.tensor(1.0)}), "m/t is a dict; uploads are a Sum or a Mean"),
    "a kind of number": (changed("m", "t", Mean({"y": torch.tensor(1)}, 1.0)), "y is not of the expected kind"),
    "a counter with a fraction": (upload(n=3.5), "in its w, n is not of the expected kind"),
    "a negative weight": (upload(weight=-1.0), "the weight of its w is -1"),
    "a weight that is no number": (upload(weight=NAN), "the weight of its w is nan"),
    "an infinite weight": (changed("m", "t", Mean({"y": torch.tensor(1.0)}, INF)), "the weight of its m/t is inf"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_rejected_upload_is_not_counted(what):
    bad, sentence = BAD[what]
    check = UploadCheck({}, {})
    check.accept(0, upload())
    with pytest.raises(Unusable, match=sentence):
        check.accept(1, bad)
    check.accept(2, upload(v=(3.0, 4.0), n=1, weight=6.0, s=5.0))
    assert list(check.sizes) == [0, 2]
    assert issubclass(Unusable, InputError)  # so that the command line prints only the sentence


@pytest.mark.parametrize("what", ["not finite", "infinite", "no kind of upload", "a negative weight"])
def test_the_first_upload_is_rejected_as_well(what):
    check = UploadCheck({}, {})
    with pytest.raises(Unusable):
        check.accept(0, BAD[what][0])
    assert check.sizes == {}


def test_the_models_own_part_must_have_the_form_of_the_model_from_the_first_client_on():
    UploadCheck({"w": {"v": torch.zeros(2), "n": torch.tensor(0)}}, {}).accept(0, upload())
    for wrong in ({"v": torch.zeros(3), "n": torch.tensor(0)}, {"v": torch.zeros(2), "m": torch.tensor(0)}):
        with pytest.raises(Unusable, match="in its w"):
            UploadCheck({"w": wrong}, {}).accept(0, upload())


def test_a_rejected_upload_is_no_example_for_others():
    check = UploadCheck({}, {})
    with pytest.raises(Unusable, match="not finite"):
        check.accept(0, {"m": {"c": Sum({"a": torch.tensor([torch.nan])})}})
    check.accept(1, {"m": {"c": Sum({"a": torch.arange(4.0)})}})
    with pytest.raises(Unusable, match=r"a has shape \(1,\) instead of \(4,\)"):
        check.accept(2, {"m": {"c": Sum({"a": torch.tensor([5.0])})}})
