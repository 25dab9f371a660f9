import torch

from fullrank import Mean, Sum
from fullrank.channels import Traffic


def test_elements_and_bytes_are_counted_as_sent():
    traffic = Traffic()
    traffic.count_down({"w": {"a": torch.zeros(3, 4)}, "sent": {"m": {"c": torch.zeros(5, dtype=torch.float64)}}})
    traffic.count_down({"w": {"a": torch.zeros(3, 4)}, "frozen": {}})
    assert (traffic.elements_down, traffic.bytes_down) == (12 + 5 + 12, 48 + 40 + 48)
    traffic.count_up(
        {
            "": {
                "w": Mean({"a": torch.zeros(3, 4, dtype=torch.bfloat16)}, 1e9),  # a weight is not counted
                "buffers": Mean({"n": torch.tensor(0)}, 1),
            },
            "m": {"mask": Sum({"has": torch.zeros(10, dtype=torch.bool)})},
        }
    )
    assert (traffic.elements_up, traffic.bytes_up) == (12 + 1 + 10, 24 + 8 + 10)
