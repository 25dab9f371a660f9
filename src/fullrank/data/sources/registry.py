"""The data sets that are known by name and lie in files of their own."""

from __future__ import annotations

from fullrank.data.sources.cifar import CIFAR10, CIFAR100
from fullrank.data.sources.idx import FASHION_MNIST, MNIST
from fullrank.data.sources.stored import Stored

KNOWN: dict[str, Stored] = {stored.name: stored for stored in (FASHION_MNIST, MNIST, CIFAR10, CIFAR100)}
