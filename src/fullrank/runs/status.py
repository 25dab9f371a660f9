"""The states of a run directory, and the error messages for directories that cannot be used for a purpose."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """The state of a run directory, for a run with a given number of rounds."""

    EMPTY = "no run has started"
    UNSAVED = "neither a checkpoint nor a result; not all rounds have a row"
    ROWS_ONLY = "neither a checkpoint nor a result; all rounds have a row"
    UNFINISHED = "a checkpoint, and rounds that remain"
    BEFORE_END = "a checkpoint and the rows of all rounds, and no result"
    COMPLETE = "a checkpoint, the result and its models"
    WITHOUT_MODEL = "a checkpoint and the result, and a model that is missing or damaged"
    STRIPPED = "the result and its models, and no checkpoint"
    NUMBERS_ONLY = "the result, and neither a checkpoint nor a whole model"
    CUT = "a result that is not of all these rounds, and no checkpoint"

    @property
    def finished(self) -> bool:
        """Whether the result is that of all rounds, and all rows exist; the models may be lost."""
        return self in (Status.COMPLETE, Status.WITHOUT_MODEL, Status.STRIPPED, Status.NUMBERS_ONLY)

    @property
    def saved(self) -> bool:
        """Whether there is a checkpoint, from which the command that started the run can continue or write it again."""
        return self in (Status.UNFINISHED, Status.BEFORE_END, Status.COMPLETE, Status.WITHOUT_MODEL)


WRITTEN_AGAIN = "the command that started the run writes it again from the last checkpoint"
RUN_ELSEWHERE = "run the same experiment in another directory to have it again"
"""Advice about a lost file of a result, with and without a checkpoint."""
_GONE = (
    'the run in "{path}" ended, but its checkpoints are gone: it can be read, not continued; choose another directory'
)
_NOT_KEPT = 'the run in "{path}" has all its rounds ({rounds}), but no model.safetensors: it was not kept; '
_LOST = {
    Status.WITHOUT_MODEL: f"{_NOT_KEPT}{WRITTEN_AGAIN}",
    Status.NUMBERS_ONLY: f"{_NOT_KEPT}{RUN_ELSEWHERE}",
    Status.ROWS_ONLY: f"{_NOT_KEPT}{RUN_ELSEWHERE}",
}
_NOT_FINISHED = (
    'the run in "{path}" is not finished ({done} of {rounds} rounds), so it has no model yet; '
    "the command that started it continues it"
)
_STOPPED = (
    'the run in "{path}" was stopped between its last round and its end, so it has no model yet; '
    "the command that started it continues it"
)
_NO_MODEL = 'there is no model in "{path}": neither a checkpoint nor model.safetensors'
_NOT_COMPLETE = '"{path}" is not complete ({done} of {rounds} rounds, no result); run it to its end first'
MESSAGES: dict[str, dict[Status, str]] = {
    "resume": dict.fromkeys((Status.STRIPPED, Status.NUMBERS_ONLY, Status.CUT), _GONE),
    "inspect": {
        **_LOST,
        Status.UNSAVED: 'no round of the run in "{path}" is saved, so it has no model that can be inspected',
        Status.CUT: _NO_MODEL,
    },
    "export": {
        **_LOST,
        Status.UNSAVED: _NOT_FINISHED,
        Status.UNFINISHED: _NOT_FINISHED,
        Status.BEFORE_END: _STOPPED,
        Status.CUT: _NO_MODEL,
    },
    "predict": {
        **_LOST,
        Status.UNSAVED: 'no round of the run in "{path}" is saved, so it has no model that can predict',
        Status.CUT: _NO_MODEL,
    },
    "read the model": dict.fromkeys((Status.NUMBERS_ONLY, Status.ROWS_ONLY, Status.UNSAVED, Status.CUT), _NO_MODEL),
    "compare": dict.fromkeys((status for status in Status if not status.finished), _NOT_COMPLETE),
}
"""Error messages by purpose and status; with a status that is not listed, a directory can be used for the purpose."""
