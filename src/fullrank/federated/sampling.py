"""The sampling of the clients of a round, and the order in which they are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fullrank.errors import InputError
from fullrank.randomness import generator


class ClientSampler:
    """Draws the clients of each round, the same ones for every method.

    Args:
        sizes: A function that returns the number of samples of a client.
        clients: The number of clients.
        unseen: Clients that never take part.
        participation: How many clients take part in a round: a float is a fraction, an integer is a number.
        seed: The seed of the run.
    """

    def __init__(
        self,
        sizes: Callable[[int], int],
        clients: int,
        unseen: Sequence[int] | np.ndarray = (),
        *,
        participation: float | int,
        seed: int,
    ):
        self.size = sizes
        self.seed = seed
        self.number = clients - len(unseen)
        """The number of clients that may take part."""
        self._clients = clients
        self._seen = np.setdiff1d(np.arange(clients), np.asarray(unseen)) if len(unseen) else None
        self._in_a_round = participants(participation, self.number)

    def sample(self, round: int) -> tuple[int, ...]:
        """Return the clients that take part in a round: a function of seed and round."""
        if self._in_a_round == self.number:
            return self.all()
        chosen = generator(self.seed, "clients", round).choice(self.number, self._in_a_round, replace=False)
        return self._named(sorted(int(client) for client in chosen))

    def all(self) -> tuple[int, ...]:
        """Return all clients that may take part."""
        return self._named(range(self.number))

    def with_unseen(self) -> tuple[int, ...]:
        """Return all clients, including those that never take part."""
        return tuple(range(self._clients))

    def scheduled(self, clients: Iterable[int]) -> list[int]:
        """Return clients in the order of work and of summation: the largest first, then by id."""
        return sorted(clients, key=lambda client: (-self.size(client), client))

    def _named(self, places: Iterable[int]) -> tuple[int, ...]:
        """Return clients by their positions among those that may take part."""
        return tuple(places) if self._seen is None else tuple(int(self._seen[place]) for place in places)


def participants(participation: float | int, clients: int) -> int:
    """Return the number of clients that take part in a round.

    Args:
        participation: A fraction of the clients (a float), which is rounded, to one at least, or a number (an integer).
        clients: The number of clients that may take part.

    Raises:
        InputError: If the number is larger than that of the clients.

    >>> participants(0.25, 10), participants(3, 10)
    (2, 3)
    """
    if isinstance(participation, int):
        if participation > clients:
            raise InputError(f"train.participation = {participation}: there are only {clients} clients")
        return participation
    return max(1, round(participation * clients))
