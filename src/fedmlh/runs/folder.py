"""The run folder: the config of a run, its figures (per round, in total, per test point) and its model."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmlh.config import SETTINGS, Config
from fedmlh.drafts import is_draft, sweep
from fedmlh.errors import ELSEWHERE, RESUME, RESUME_OR_ELSEWHERE, UserError
from fedmlh.evaluation.point_hits import PointHits
from fedmlh.federated.participation import Attempt, check_log
from fedmlh.lock import LOCK, hold
from fedmlh.oneround.budget import MOST_SLOTS
from fedmlh.runs.chronicle import EVENTS
from fedmlh.runs.labels_and_examples import check_description
from fedmlh.runs.summary import checked_record, checked_summary
from fedmlh.sizing import OPEN, list_open
from fedmlh.storage import FORMAT_VERSION, write_atomically
from fedmlh.untrusted import MOST_BINARY, MOST_JSON, MOST_TOML, parse_json, read_bytes, read_text

POINTS = "test_points.safetensors"
EXAMPLES = "labels_and_examples.json"
#: Settings that a resumed run may change without becoming another run, as their sections say.
FREE_ON_RESUME = {name for name, setting in SETTINGS.items() if setting.section.free}


@dataclass(frozen=True)
class FinishedRun:
    """The config and the results of a finished run."""

    folder: "RunFolder"
    config: Config
    summary: dict[str, Any]
    history: list[dict[str, Any]]


@dataclass(frozen=True)
class RunFolder:
    """The folder in which a run keeps its config, its figures and its model."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoint generations."""
        return self.path / "checkpoint"

    @property
    def model(self) -> Path:
        """Folder of the selected model."""
        return self.path / "model"

    def check(self, config: Config, *, resume: bool) -> None:
        """Refuse a folder that is neither free for a new run nor holds the run to resume; write nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file: {ELSEWHERE}")
        names = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else set()
        # What a run left that died before its first round may be replaced: its config, or a part of it, and its events.
        left = {"config.toml", EVENTS, LOCK} if "config.toml" in names else {LOCK}
        if all(name in left or is_draft(name) for name in names):
            return
        there = {"config.toml": os.path.lexists(self.path / "config.toml"), "checkpoint": self.checkpoints.is_dir()}
        missing = [name for name, found in there.items() if not found]
        if not resume:
            raise UserError(f"{self.path} is not empty: {ELSEWHERE if missing else RESUME_OR_ELSEWHERE}")
        if missing:
            raise UserError(
                f"{self.path} has no {missing[0]}, without which its run cannot be resumed: put it back, or {ELSEWHERE}"
            )
        self._check_same(config)

    def check_free(self, config: Config, *, resume: bool) -> None:
        """Refuse a folder before any work is done, under a lock of its own."""
        with hold(self.path):
            self.check(config, resume=resume)

    def _check_same(self, config: Config) -> None:
        """Refuse settings that would make the run in this folder another one."""
        before = self.read_config()
        open_yet = list_open(config)  # they are checked after they have been chosen
        if before.training == "one-round":  # they do not change it, and networks beside it check their own
            open_yet |= {name for name in OPEN if SETTINGS[name].section.training == "rounds"}
            if (before.feature_slots, config.feature_slots) == (MOST_SLOTS, 0):  # as the data decided
                open_yet |= {"feature_slots"}
        for name in SETTINGS:
            old, new = getattr(before, name), getattr(config, name)
            if old != new and name not in FREE_ON_RESUME and name not in open_yet:
                raise UserError(
                    f"{self.path} holds a run with {name} = {old!r}, this one says {new!r}: "
                    f"resume with the same settings, or {ELSEWHERE}"
                )

    def open(self, config: Config) -> None:
        """Claim the folder for the run with this config."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            sweep(self.checkpoints)
            write_atomically(
                self.path / "config.toml", f"# format_version {FORMAT_VERSION}\n{config.to_toml()}".encode()
            )
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}") from None

    def write_metrics(self, history: list[dict[str, Any]]) -> None:
        """Write one line per finished round."""
        lines = [json.dumps({"format_version": FORMAT_VERSION, **record}) for record in history]
        write_atomically(self.path / "metrics.jsonl", "".join(line + "\n" for line in lines).encode())

    def write_participation(self, log: Sequence[Attempt]) -> None:
        """Write one line per attempt at a round: who was asked, who counted, who did not and why."""
        lines = [json.dumps({"format_version": FORMAT_VERSION, **line.to_json()}) for line in log]
        write_atomically(self.path / "participation.jsonl", "".join(line + "\n" for line in lines).encode())

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the figures of a finished run."""
        content = {"format_version": FORMAT_VERSION, **summary}
        write_atomically(self.path / "summary.json", (json.dumps(content, indent=2) + "\n").encode())

    def write_points(self, points: PointHits) -> None:
        """Write what the tested model found at each test point."""
        write_atomically(self.path / POINTS, points.encode())

    def read_points(self) -> PointHits | None:
        """Return what the tested model found at each test point; None in folders of older versions."""
        try:
            return PointHits.decode(read_bytes(self.path / POINTS, MOST_BINARY))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path / POINTS} is damaged ({type(error).__name__}: {error})") from None

    def write_examples(self, content: dict[str, Any]) -> None:
        """Write what the page of the run shows of single labels and points."""
        text = json.dumps({"format_version": FORMAT_VERSION, **content}, indent=1)
        write_atomically(self.path / EXAMPLES, (text + "\n").encode())

    def read_examples(self) -> dict[str, Any] | None:
        """Return what the page of the run shows of single labels and points; None in folders of older versions."""
        if not os.path.lexists(self.path / EXAMPLES):
            return None
        return dict(self._read(EXAMPLES, lambda text: check_description(parse_json(text))))

    def read(self) -> FinishedRun:
        """Return all that a report needs, or raise UserError if the run has not finished."""
        summary, history = self.read_summary(), self.read_metrics()
        return FinishedRun(self, self.read_config(), summary, history)

    def read_summary(self) -> dict[str, Any]:
        """Return the figures of a finished run, or raise UserError if it has not finished."""
        return dict(self._read("summary.json", lambda text: checked_summary(parse_json(text))))

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the records of all rounds."""
        return list(self._read("metrics.jsonl", _parse_records))

    def count_rounds(self) -> int:
        """Return how many rounds are finished."""
        try:
            return read_bytes(self.path / "metrics.jsonl", MOST_JSON).count(b"\n")
        except (OSError, ValueError, UserError):  # the code that needs the file says what is wrong with it
            return 0

    def read_participation(self) -> list[Attempt]:
        """Return who took part in the attempts at all rounds."""
        return list(self._read("participation.jsonl", _parse_log))

    def read_config(self) -> Config:
        """Return the config of the run."""
        text = self._read("config.toml", str, MOST_TOML)
        return Config.from_toml(text, str(self.path / "config.toml"))

    def _read(self, name: str, parse: Callable[[str], Any], most: int = MOST_JSON) -> Any:
        try:
            return parse(read_text(self.path / name, most))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{self.path} has no {name}: it is no run folder, or its run has not finished; to finish it, {RESUME}"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path / name} is damaged ({type(error).__name__}: {error})") from None


def _parse_records(text: str) -> list[dict[str, Any]]:
    records = [checked_record(parse_json(line)) for line in text.splitlines()]
    if not records:
        raise ValueError("no round in it")
    return records


def _parse_log(text: str) -> list[Attempt]:
    log = [Attempt.from_json(parse_json(line)) for line in text.splitlines()]
    if not log:
        raise ValueError("no attempt in it")
    check_log(log, log[-1].round)
    return log
