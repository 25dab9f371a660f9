"""Jobs and results on their way between the device of the server and those on which clients train."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fullrank.federated.site import Job, Result
from fullrank.trees import moved, pointwise


def sent_to(device: torch.device, job: Job) -> Job:
    """Return a job with its tensors on the device on which it will run."""
    sent, frozen, personal = (moved(tree, device) for tree in (job.broadcast, job.frozen, job.personal))
    return dataclasses.replace(job, broadcast=sent, frozen=frozen, personal=personal)


def handed_over(result: Result, device: torch.device) -> Result:
    """Return a result for use on the server's stream. Its memory is not reused as long as that stream reads it."""

    def mine(tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor

    for parts in result.upload.values():
        for name, part in parts.items():
            parts[name] = dataclasses.replace(part, tree=moved(part.tree, device))
            pointwise(parts[name].tree, mine)
    result.state, result.model = moved(result.state, device), moved(result.model, device)
    for tree in (result.state, result.model):
        pointwise(tree, mine)
    return result
