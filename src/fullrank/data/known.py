"""The data sets that are known by name and lie in files of their own."""

from __future__ import annotations

from .cifar import CIFAR10, CIFAR100
from .idx import FASHION_MNIST, MNIST
from .stored import Stored

KNOWN: dict[str, Stored] = {stored.name: stored for stored in (FASHION_MNIST, MNIST, CIFAR10, CIFAR100)}
