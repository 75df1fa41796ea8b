"""Events of a run: what happens, and when, appended to one file as it happens, for `fedmlh watch`.

The other files of a run folder say how finished rounds ended, and are replaced as a whole. Events have times as well,
attempts that still wait for replies, and the steps between rounds; and who follows them reads each line once. The file
is no result: it is part of no seal, no model depends on it, and a run that cannot write it continues without it.
"""

import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.runs.chronicle import EVENTS, Chronicle, Follower

if TYPE_CHECKING:
    from fedmlh.federated.mail import Ask, Outbox, PartT, Reply
    from fedmlh.federated.participation import Attempt

#: Steps in which no client trains.
SOLVING, TESTING, COMPARING = "solving for the linear model", "testing", "measuring the model for each client"
#: What clients are asked for in a round of networks; in one round it is the name of a statistic.
UPDATES = "updates"
#: Replies are written at most this often, so that many quick clients do not fill the disk.
_SECONDS = 1.0
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class EventFile:
    """The file, to be appended to; the first problem is told, and ends the writing."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.path = folder / EVENTS
        self.tell = tell
        self.known = Chronicle()
        self._handle: int | None = None

    def open(self) -> None:
        """Open the file behind its last line, and read what it says."""
        try:
            self._handle = os.open(self.path, _FLAGS, 0o666)
            about = os.fstat(self._handle)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
                raise UserError("not a file of its own")
            # A line that was cut off when its process was killed stays alone: readers leave it out.
            if about.st_size and os.pread(self._handle, 1, about.st_size - 1) != b"\n":
                os.write(self._handle, b"\n")
            self.known = Follower(self.path.parent).read()
        except (OSError, UserError) as error:
            self._give_up(error)

    def append(self, values: Mapping[str, Any]) -> None:
        """Write one line; it is in the file when this returns."""
        if self._handle is None:
            return
        left = f"{json.dumps(values, ensure_ascii=False)}\n".encode("utf-8", "replace")
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _give_up(self, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else error
        with suppress(OSError):
            self.close()
        self.tell(f"{self.path} cannot be written ({why}): the run continues, and `fedmlh watch` cannot follow it")


class EventLog:
    """Writes what happens in a run; without a file it writes nothing."""

    def __init__(self, file: EventFile | None = None, after: int = 0) -> None:
        """Take the file, and how many rounds come before those that are counted from 1 here."""
        self._file = file
        self._after = after

    def follow(self, rounds: int) -> "EventLog":
        """Return the log for rounds that are counted from 1 again after this many rounds."""
        return EventLog(self._file, rounds)

    def write(self, event: str, **values: Any) -> None:
        """Write an event with the time; a round counts from the beginning of the run."""
        if self._file is not None:
            if "round" in values:
                values["round"] += self._after
            self._file.append({"event": event, "time": round(time.time(), 3), **values})

    @contextmanager
    def record(self, config: Config, sites: Sequence[str], *, resumed: bool) -> Iterator[None]:
        """Open the file, write how the run begins and how it ends, and close the file."""
        if self._file is not None:
            self._file.open()
        self.write(
            "begin",
            name=config.name,
            method=config.method,
            seed=config.seed,
            clients=config.num_clients,
            sampled=config.num_clients if config.training == "one-round" else config.clients_per_round,
            rounds=config.most_rounds,
            patience=config.patience,
            sites=list(sites),
            resumed=resumed,
        )
        try:
            yield
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self.write("end", outcome="failed", problem=said)
            raise
        except BaseException:
            self.write("end", outcome="stopped")
            raise
        else:
            self.write("end", outcome="finished")
        finally:
            if self._file is not None:
                self._file.close()

    def resume(self, history: Sequence[Mapping[str, Any]], attempts: int) -> None:
        """Write with which round and attempt the run continues, and the finished rounds that the file lacks."""
        if self._file is None or not (history or attempts):
            return
        self.write("resume", round=len(history), attempt=attempts)
        for record in history:
            if record["round"] + self._after not in self._file.known.rounds:
                self.finish_round(record)

    def listen(self, ask: "Ask[PartT]", part: str = UPDATES) -> "Ask[PartT]":
        """Return a way to ask clients that writes who is asked, and who has replied."""

        def ask_and_write(clients: Sequence[int], outbox: "Outbox[PartT]") -> "Iterable[tuple[int, Reply] | PartT]":
            round_index, attempt = outbox.place
            place = {"round": round_index, "attempt": attempt}
            self.write("ask", **place, part=part, clients=list(clients))
            replied: list[int] = []
            written = time.monotonic()
            for reply in ask(clients, outbox):
                if isinstance(reply, tuple):
                    replied.append(reply[0])
                if replied and time.monotonic() - written >= _SECONDS:
                    self.write("replies", **place, clients=replied)
                    replied, written = [], time.monotonic()
                yield reply
                del reply  # else it would stay in memory until the next one is complete

        return ask_and_write

    def close_attempt(self, line: "Attempt") -> None:
        """Write whose replies counted in an attempt, and whose did not."""
        refused = [vars(entry) for entry in line.refused]
        self.write("attempt", round=line.round, attempt=line.attempt, accepted=list(line.accepted), refused=refused)

    def finish_round(self, record: Mapping[str, Any]) -> None:
        """Write the figures of a round, given its record; who took part stands in its attempts."""
        judged = next((name for name in ("validation", "test") if name in record), None)
        loss = record.get("train_loss")
        self.write(
            "round",
            round=record["round"],
            judged=judged,
            precision={} if judged is None else record[judged]["precision"],
            train_loss=loss if loss is not None and math.isfinite(loss) else None,
            bytes_up=record["bytes_up"],
            bytes_down=record["bytes_down"],
            clipped=record.get("clipped", []),
            seconds=round(record["seconds_training"] + record["seconds_evaluation"], 3),
        )

    def begin_step(self, name: str) -> None:
        """Write that a step begins in which no client trains."""
        self.write("step", name=name)

    def show_result(self, summary: Mapping[str, Any]) -> None:
        """Write what the test part says about the selected model."""
        self.write("result", best_round=summary["best_round"], precision=summary["precision"])


#: The log of a run that nobody can follow, such as a client that trains alone.
NO_EVENTS = EventLog()
