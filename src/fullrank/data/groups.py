"""Divide groups of samples that belong together, such as those of a patient, without splitting a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IndexArray = npt.NDArray[np.int64]


def members(groups: npt.NDArray[np.int64]) -> list[IndexArray]:
    """Return the positions of the samples of each group; groups are in the order in which they first occur.

    >>> members(np.array([7, 4, 7]))
    [array([0, 2]), array([1])]
    """
    if not len(groups):
        return []
    number = numbered(groups)
    order = np.argsort(number, kind="stable")
    return np.split(order, np.cumsum(np.bincount(number))[:-1])


def numbered(groups: npt.NDArray[np.int64]) -> IndexArray:
    """Number the groups of samples in the order in which they first occur.

    >>> numbered(np.array([7, 4, 7]))
    array([0, 1, 0])
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return np.asarray(place[group])


def choose_groups(
    sizes: Sequence[int], wanted: int, most: int, free: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.bool_]:
    """Choose whole groups, in their order, that have nearly a wanted number of samples together.

    A group is chosen if the total comes nearer to the wanted one. If none is, the smallest is chosen, so that a share
    above zero is not lost. The total exceeds the wanted number by less than one group.

    Args:
        sizes: The number of samples of each group.
        wanted: The wanted number of samples; nothing is chosen if it is 0.
        most: The number of groups that may be chosen.
        free: Whether each group may be chosen; by default all may.

    Returns:
        Whether each group is chosen.

    >>> choose_groups([2, 5, 1, 3], wanted=4, most=4)
    array([ True, False,  True, False])
    """
    chosen = np.zeros(len(sizes), dtype=bool)
    able = np.arange(len(sizes)) if free is None else np.flatnonzero(free)
    if not (len(able) and wanted and most > 0):
        return chosen
    missing = wanted
    for group in able.tolist():
        if most and 2 * missing > sizes[group]:
            chosen[group] = True
            missing -= sizes[group]
            most -= 1
    if not chosen.any():
        chosen[min(able.tolist(), key=sizes.__getitem__)] = True
    return chosen


def choose_groups_by_class(
    groups: npt.NDArray[np.int64], class_of: IndexArray, wanted: Sequence[int], drawn: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Choose whole groups that have nearly a wanted number of samples of each class.

    Groups are considered in random order, those of rare classes first. A group is chosen if the total comes nearer to
    the wanted one and the numbers by class come nearer to theirs, in the sum of squares. Then groups with a class that
    still lacks samples are chosen as long as the total comes nearer. If no group was chosen, the smallest is. One group
    of each class is always left, and the total exceeds the wanted one by less than one group.

    Args:
        groups: The group of each sample.
        class_of: The class of each sample, numbered from 0.
        wanted: The wanted number of samples of each class.
        drawn: A random number for each sample; that of its first sample orders a group.

    Returns:
        Whether each sample is chosen.
    """
    choice = _Choice(numbered(groups), class_of, np.asarray(wanted, dtype=np.int64))
    _, first = np.unique(choice.group_of, return_index=True)
    by_draw = np.argsort(drawn[first], kind="stable")
    for group in by_draw[np.argsort(choice.rarest_class()[by_draw], kind="stable")].tolist():
        choice.take_if(group, better_by_class=True)
    for group in by_draw.tolist():
        choice.take_if(group, better_by_class=False)
    if choice.wanted.any() and not choice.chosen.any():
        choice.take_smallest()
    return np.asarray(choice.chosen[choice.group_of])


class ClientGroups:
    """The groups of clients' samples, some of which may have samples at several clients.

    Args:
        groups: The group of each sample of the data.
        parts: The samples of each client.
    """

    def __init__(self, groups: npt.NDArray[np.int64], parts: Sequence[IndexArray]):
        self._group_of = numbered(groups)
        self._clients = np.zeros(len(groups), np.int64)
        for part in parts:
            self._clients[np.unique(self._group_of[part])] += 1

    def pieces(self, part: IndexArray) -> list[IndexArray]:
        """Return a client's samples by group; groups are in the order in which they first occur."""
        return [part[positions] for positions in members(self._group_of[part])]

    def at_one_client(self, pieces: Sequence[IndexArray]) -> npt.NDArray[np.bool_]:
        """Return whether each of these groups has samples at a single client."""
        first = np.array([piece[0] for piece in pieces], dtype=np.int64)
        return np.asarray(self._clients[self._group_of[first]] == 1)


class _Choice:
    """Groups that are chosen one after the other, and the number of samples that each class still lacks."""

    def __init__(self, group_of: IndexArray, class_of: IndexArray, wanted: IndexArray):
        self.group_of, self.wanted = group_of, wanted
        cells, numbers = np.unique(group_of * len(wanted) + class_of, return_counts=True)
        group, self._class = cells // len(wanted), cells % len(wanted)
        self._starts = np.flatnonzero(np.diff(group, prepend=-1))
        self.classes = np.split(self._class, self._starts[1:])
        self.numbers = np.split(numbers, self._starts[1:])
        self.sizes = np.bincount(group_of)
        self.chosen = np.zeros(len(self.sizes), dtype=bool)
        self._samples = np.bincount(class_of, minlength=len(wanted))
        self._groups_left = np.bincount(self._class, minlength=len(wanted))
        self._missing, self._missing_in_all = wanted.copy(), int(wanted.sum())

    def rarest_class(self) -> IndexArray:
        """Return, for each group, how many classes have fewer samples than its rarest."""
        rank = np.empty(len(self.wanted), np.int64)
        rank[np.argsort(self._samples, kind="stable")] = np.arange(len(rank))
        return np.asarray(np.minimum.reduceat(rank[self._class], self._starts))

    def take_if(self, group: int, better_by_class: bool) -> None:
        """Take a group if the total comes nearer, and the numbers by class too or any of its classes lacks samples."""
        if self.chosen[group] or 2 * self._missing_in_all <= self.sizes[group] or not self._may_take(group):
            return
        missing, numbers = self._missing[self.classes[group]], self.numbers[group]
        if 2 * missing @ numbers > numbers @ numbers if better_by_class else (missing > 0).any():
            self._take(group)

    def take_smallest(self) -> None:
        """Take the smallest group that is not the last of a class, if there is one."""
        able = (group for group in np.argsort(self.sizes, kind="stable").tolist() if self._may_take(group))
        if (smallest := next(able, None)) is not None:
            self._take(smallest)

    def _may_take(self, group: int) -> bool:
        return bool((self._groups_left[self.classes[group]] > 1).all())

    def _take(self, group: int) -> None:
        self.chosen[group] = True
        self._missing[self.classes[group]] -= self.numbers[group]
        self._missing_in_all -= int(self.sizes[group])
        self._groups_left[self.classes[group]] -= 1
