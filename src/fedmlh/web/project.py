"""A model that is served: requests that wait are answered together, and a replaced folder is read again."""

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedmlh.errors import UserError
from fedmlh.hashing.rows import Rows
from fedmlh.serving.predictor import Model, Ranked
from fedmlh.serving.why import measure_words
from fedmlh.web.problem import LATER, Problem

LOG = logging.getLogger("fedmlh.web")
#: Points that are answered together; also the most of a request.
BATCH = 32
#: The most labels per point, and with reasons.
MOST_LABELS, MOST_EXPLAINED = 1000, 20
#: Of all points whose reasons are asked for: different words or features (each costs a text without it), words,
#: and their characters.
MOST_WORDS, MOST_LENGTH, MOST_CHARACTERS = 500, 2000, 40_000
#: Requests that may wait.
_WAITING = 256
#: Seconds between two looks at the folder.
_PAUSE = 1.0

#: A point as columns and values.
Features: TypeAlias = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Question:
    """Points whose labels are asked for: texts, or each as Features."""

    points: Sequence[Any]
    top: int
    threshold: float = 0.0
    why: bool = False

    @property
    def of_text(self) -> bool:
        """Whether the points are texts."""
        return not self.points or isinstance(self.points[0], str)


class Answer(NamedTuple):
    """The labels of each point, and the model that proposes them: it may have been replaced since."""

    model: Model
    labels: list[list[Any]]


class Project:
    """A model under a name."""

    def __init__(self, project_id: str, folder: Path) -> None:
        """Load the model, and ask it once, so that the first request finds it ready."""
        self.id, self.folder = project_id, folder
        self.stamp = _read_stamp(folder)
        self.model = _load(folder)
        self.asked, self.batches, self.reloads, self.failures = 0, 0, 0, 0
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, f"project-{project_id}")

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    @property
    def modified(self) -> datetime:
        """When the model was written."""
        return datetime.fromtimestamp(max((stamp[2] for stamp in self.stamp), default=0) / 1e9, UTC)

    async def ask(self, question: Question) -> Answer:
        """Answer a question, together with those that wait; none waits for more to come."""
        if len(self._waiting) >= _WAITING:
            raise Problem(503, "too many requests wait: try again later", LATER)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, future))
        if self._working is None:
            self._working = loop.create_task(self._work())
        return await future

    async def _work(self) -> None:
        """Answer until nobody waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._take_batch()
            if not batch:
                continue
            size = sum(len(question.points) for question, _ in batch)
            self.batches += 1
            self.asked += size
            try:
                answers: Sequence[Any] = await loop.run_in_executor(
                    self._thread, answer_all, self.model, [question for question, _ in batch]
                )
            except BaseException as error:
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        self._working = None

    def _take_batch(self) -> list[tuple[Question, asyncio.Future[Answer]]]:
        """Return questions to answer together, without those whose clients have left; one with reasons comes alone."""
        batch: list[tuple[Question, asyncio.Future[Answer]]] = []
        size = 0
        while self._waiting:
            question, future = self._waiting[0]
            size += len(question.points)
            if batch and (size > BATCH or question.why or batch[0][0].why):
                break
            self._waiting.popleft()
            if future.done():
                size -= len(question.points)
            else:
                batch.append((question, future))
        return batch

    async def watch(self) -> None:
        """Take over whatever model replaces this one in its folder; one that cannot be read is left alone."""
        failed: object = None
        while True:
            await asyncio.sleep(_PAUSE)
            stamp = await asyncio.to_thread(_read_stamp, self.folder)
            if stamp in (self.stamp, failed) or not stamp:
                continue
            try:
                self.model = await asyncio.to_thread(_load, self.folder)
            except Exception as error:
                failed = stamp
                self.failures += 1
                why = str(error) if isinstance(error, UserError | OSError) else type(error).__name__
                LOG.warning("project %s keeps its model: the new one cannot be read (%s)", self.id, why)
            else:
                self.stamp, failed = stamp, None
                self.reloads += 1
                LOG.info("project %s has a new model: %r", self.id, self.model)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def answer_all(model: Model, questions: Sequence[Question]) -> list[Answer | Exception]:
    """Answer some questions in one pass over the model; what is wrong with one does not touch the others."""
    found: list[Answer | Exception | None] = [None] * len(questions)
    together: list[tuple[int, Rows]] = []
    with np.errstate(all="ignore"):  # scores that are no numbers are refused
        for place, question in enumerate(questions):
            try:
                if question.why:
                    found[place] = Answer(model, _explain(model, question))
                else:
                    together.append((place, _read(model, question)))
            except Exception as error:
                found[place] = error
        if together:
            most = max(questions[place].top for place, _ in together)
            ranked = list(model.rank_rows(Rows.join([rows for _, rows in together]), most))
            begin = 0
            for place, rows in together:
                question, some = questions[place], ranked[begin : begin + len(rows)]
                begin += len(rows)
                try:
                    found[place] = Answer(model, [_name(model, question, point) for point in some])
                except Exception as error:
                    found[place] = error
    return found  # type: ignore[return-value]


def _read(model: Model, question: Question) -> Rows:
    if question.threshold and model.bundle.curve is None:
        raise UserError("this model has no probabilities, since no points were held out: set no threshold")
    if question.of_text:
        return model.read(question.points)
    return model.read(make_rows(question.points, model.bundle.task.num_features))


def _name(model: Model, question: Question, ranked: Ranked) -> list[Any]:
    if question.of_text and not ranked.is_known:
        return []
    top = question.top
    labels = model.name(Ranked(ranked.is_known, ranked.columns[:top], ranked.scores[:top]))
    return [label for label in labels if not question.threshold or (label["probability"] or 0.0) >= question.threshold]


def _explain(model: Model, question: Question) -> list[list[Any]]:
    rows: Any = question.points
    if question.of_text:
        length, words, characters = measure_words(question.points)
        if length > MOST_LENGTH or characters > MOST_CHARACTERS:
            raise UserError(
                f"the texts have {length:,} words of {characters:,} characters: reasons are given for at most "
                f"{MOST_LENGTH:,} words of {MOST_CHARACTERS:,} characters together"
            )
    else:
        rows = make_rows(question.points, model.bundle.task.num_features)
        words = len(rows.columns)
    if words > MOST_WORDS:
        raise UserError(f"the points have {words:,} words or features: reasons are given for at most {MOST_WORDS:,}")
    explained = list(model.explain(rows, question.top, question.threshold))
    if not all(math.isfinite(word["adds"]) for labels in explained for label in labels for word in label["words"]):
        raise UserError("the features are so large that reasons are no numbers: prepare them as the training data")
    return explained


def make_rows(points: Sequence[Features], width: int) -> Rows:
    """Return points that are given as columns and values as a sparse matrix."""
    columns = np.array([column for some, _ in points for column in some], np.int64)
    if len(columns) and not 0 <= columns.min() <= columns.max() < width:
        raise UserError(f"a column is not one of the model's {width:,} features, which are counted from 0")
    values = np.array([value for _, some in points for value in some], np.float64)
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise UserError("a value is larger than a feature can be: prepare points as the training data")
    owners = np.repeat(np.arange(len(points)), [len(some) for some, _ in points])
    return Rows.gather(owners, columns, values, (len(points), width))


def _load(folder: Path) -> Model:
    """Return the model of a folder, with all in memory that a question needs."""
    model = Model.load(folder)
    width = model.bundle.task.num_features
    answers = answer_all(model, [Question([([0], [1.0])] if width else [], 5)])
    if isinstance(answers[0], Exception):
        raise answers[0]
    return model


def _read_stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes whenever a file of the model is replaced; nothing where no model is."""
    for place in (folder, folder / "model"):
        try:
            if (place / "manifest.json").is_file():
                with os.scandir(place) as entries:
                    about = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
                return tuple(sorted((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in about))
        except OSError:
            return ()
    return ()
