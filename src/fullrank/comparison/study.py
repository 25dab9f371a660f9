"""The trials of a sweep in Optuna: its samplers choose their settings, and its storage keeps them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fullrank.comparison.space import Choice, Space
from fullrank.errors import InputError

NAME = "sweep"
REPEATS = "repeats"
SAMPLERS = ("grid", "random", "tpe")
PRUNERS = ("none", "median")


class Study:
    """The trials of a sweep in an SQLite file, which `optuna-dashboard` can open.

    The settings of a trial depend on its number, the seed, and the trials before it that it is shown: a sweep that was
    interrupted continues with the trials that it would have had. A failed trial that was repeated with another outcome
    is a further trial of the study, with the attribute `repeats`, the number of the one that it replaces.

    Args:
        file: The SQLite file; it is created if it is missing.
        space: The values that each key can take.
        sampler: "random", "tpe", or "grid", for which nothing is suggested.
        lower_is_better: Whether lower values of the measure are better.
        seed: The seed of the sampler.
    """

    def __init__(self, file: Path, space: Space, sampler: str, lower_is_better: bool, seed: int):
        self._optuna = import_optuna()
        self._space, self._sampler, self._seed = space, sampler, seed
        self._distributions = {key: each.distribution(self._optuna) for key, each in space.items()}
        self._direction = "minimize" if lower_is_better else "maximize"
        with self._quiet():
            self._storage = self._optuna.storages.RDBStorage(f"sqlite:///{file}")
            self._study = self._optuna.create_study(
                storage=self._storage, study_name=NAME, direction=self._direction, load_if_exists=True
            )

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def settings(self) -> list[dict[str, Any]]:
        """Return the settings of all trials, in the order of their numbers."""
        return [self._restored(trial.params) for trial in self._trials()]

    def _trials(self) -> list[Any]:
        """Return the trials of Optuna by our numbers; of a repeated one the last attempt."""
        every = self._study.get_trials(deepcopy=False)
        found = [trial for trial in every if REPEATS not in trial.user_attrs]
        for trial in every:
            if REPEATS in trial.user_attrs:
                found[trial.user_attrs[REPEATS]] = trial
        return found

    def state(self, number: int) -> str:
        """Return whether a trial is "running", "complete", "pruned" or "failed"."""
        state = self._trials()[number].state.name.lower()
        return "failed" if state == "fail" else str(state)

    def suggest(self, number: int, before: int) -> dict[str, Any]:
        """Return settings for a trial.

        Args:
            number: The number of the trial.
            before: The sampler knows the results of the trials before this number.
        """
        import numpy as np

        samplers = {"random": self._optuna.samplers.RandomSampler, "tpe": self._optuna.samplers.TPESampler}
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        with self._quiet():
            study = self._optuna.create_study(sampler=samplers[self._sampler](seed=seed), direction=self._direction)
            study.add_trials(self._trials()[:before])
            return self._restored(study.ask(self._distributions).params)

    def add(self, settings: Mapping[str, Any]) -> None:
        """Add a trial, which is then running."""
        stored = {key: self._stored(key, value) for key, value in settings.items()}
        running = self._optuna.trial.TrialState.RUNNING
        create = self._optuna.trial.create_trial
        self._study.add_trial(create(state=running, params=stored, distributions=self._distributions))

    def tell(self, number: int, state: str, value: float | None, course: Mapping[int, float]) -> None:
        """End a trial; one that has failed and fails again stays as it is.

        Args:
            number: The number of the trial.
            state: "complete", "pruned" or "failed".
            value: The measure of a complete trial.
            course: The measure by round.
        """
        states = self._optuna.trial.TrialState
        ends = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        known = self._trials()[number]
        if known.state.is_finished():
            if state != "failed":
                self._add_repeated(known, number, ends[state], value, course)
            return
        for step, reached in course.items():
            self._storage.set_trial_intermediate_value(known._trial_id, step, reached)
        with self._quiet():
            self._study.tell(known.number, value if state == "complete" else None, state=ends[state])

    def _add_repeated(
        self, known: Any, number: int, end: Any, value: float | None, course: Mapping[int, float]
    ) -> None:
        repeated = self._optuna.trial.create_trial(
            state=end,
            value=value,
            params=known.params,
            distributions=known.distributions,
            intermediate_values=dict(course),
            user_attrs={REPEATS: number},
        )
        self._study.add_trial(repeated)

    def _stored(self, key: str, value: Any) -> Any:
        dimension = self._space[key]
        return dimension.stored(value) if isinstance(dimension, Choice) else value

    def _restored(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        return {key: dimension.restored(stored[key]) for key, dimension in self._space.items()}

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep Optuna from printing its progress, which the sweep reports."""
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            yield
        finally:
            logging.set_verbosity(before)


def import_optuna() -> Any:
    """Import Optuna.

    Raises:
        InputError: If it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("a sweep needs Optuna: pip install 'fullrank[sweep]'") from error
    return optuna
