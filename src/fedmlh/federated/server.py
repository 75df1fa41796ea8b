"""The server's side of a round: sample, broadcast, validate, average. Old state in, new state out."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.federated.broadcast import (
    BASE,
    Changes,
    drop_old,
    encode_change,
    find_base_round,
    sends_changes,
    write_extra,
    write_models,
)
from fedmlh.federated.drift import find_remedy
from fedmlh.federated.drift.remedy import EXTRA
from fedmlh.federated.mail import Ask, Outbox
from fedmlh.federated.messages import BroadcastHeader, Reason, pack
from fedmlh.federated.optimizers import MeanDelta, Vectors, find_step
from fedmlh.federated.participation import Attempt, Refusal
from fedmlh.federated.tally import Tally
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.transforms.clipping import Clipping, Lengths, cap_weight, confine
from fedmlh.federated.validate import Expected
from fedmlh.randomness import generator

#: What clients are sent in one attempt, by the round of their base model: codec, bytes of the extra vector at the
#: payload's end, payload.
Payloads = dict[int, tuple[str, int, bytes]]

#: Vectors that the server itself keeps: the average of recent models, the extra vector of a remedy for drift, the base
#: model. All others are the optimizer's.
_OWN = ("average", EXTRA, BASE)


@dataclass(frozen=True)
class Tried:
    """Failed attempts at a round, in runs that were given up, and the bytes that they sent."""

    attempts: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class ServerState:
    """All that the server carries from one round to the next."""

    round: int  # rounds finished
    model: Tensor  # [P]
    #: For each client the round and attempt of its last accepted update.
    accepted: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: What the server's parts keep, by name: the optimizer's moments, and those in _OWN.
    vectors: Vectors = field(default_factory=dict)
    #: If broadcasts send changes: those that a client may still need.
    changes: Changes = field(default_factory=dict)
    #: Clients that have been sent anything: they have the shared points.
    reached: frozenset[int] = frozenset()
    #: Failed attempts at the next round, in runs that were given up.
    tried: Tried = Tried()
    #: Lengths of recent updates, from which the bounds for the next ones follow.
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def shown(self) -> Tensor:
        """Return the model to evaluate and export: the average of recent models if it is kept.  # [P]"""
        return self.vectors.get("average", self.model)

    @property
    def base_model(self) -> Tensor:
        """Return the model that clients train from; if broadcasts send changes, it is only near the server's.  # [P]"""
        return self.vectors.get(BASE, self.model)


@dataclass
class RoundReport:
    """What a round cost and who took part."""

    round: int
    attempts: int = 0
    accepted: list[int] = field(default_factory=list)
    #: The factor by which each update that was too long was scaled.
    clipped: dict[int, float] = field(default_factory=dict)
    #: How many values of the new model and the extra vector were clamped to what may be sent.
    clamped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    loss: float = 0.0
    #: Clients that were sent anything in this round or before.
    reached: set[int] = field(default_factory=set)
    #: Who took part in each attempt.
    log: list[Attempt] = field(default_factory=list)
    #: For each attempt that was repeated: the clients that were the reason, though their updates had counted.
    excess: dict[int, list[Refusal]] = field(default_factory=dict)

    @property
    def told(self) -> list[Attempt]:
        """Return the attempts for a record, which lists the clients that caused a repetition as refused."""
        return [replace(line, refused=[*line.refused, *self.excess.get(line.attempt, ())]) for line in self.log]

    @property
    def refused(self) -> list[Refusal]:
        """Return the clients that were left out in any attempt."""
        return [entry for line in self.told for entry in line.refused]

    def close(self, tally: Tally, sent: Sequence[tuple[int, int]], shared_bytes: int) -> None:
        """Record an attempt, given clients and bytes that were sent, and the bytes that each client is sent once."""
        attempt = tally.close()
        self.log.append(attempt)
        self.attempts = attempt.attempt + 1
        self.accepted = list(attempt.accepted)
        self.clipped = tally.clipped
        new = {client_id for client_id, _ in sent} - self.reached
        self.reached |= new
        self.bytes_up += tally.bytes_up
        self.bytes_down += sum(length for _, length in sent) + shared_bytes * len(new)
        if attempt.accepted:
            self.loss = sum(tally.losses[client_id] for client_id in attempt.accepted) / len(attempt.accepted)

    def repeat(self, attempt: int, excess: Mapping[int, float]) -> None:
        """Record the clients that caused a repetition of an attempt, and how many times too long their updates were."""
        said = "times as long as others showed to be plausible: the first round is repeated"
        self.excess[attempt] = [
            Refusal(client_id, Reason.RANGE, f"{times:.3g} {said}") for client_id, times in excess.items()
        ]


class GivenUp(UserError):
    """Raised when a round is given up; a run that resumes from this state asks other clients."""

    def __init__(self, message: str, state: ServerState, log: list[Attempt]) -> None:
        super().__init__(message)
        self.state = state
        self.log = log

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:
        """Pickle the sentence alone."""
        return UserError, (str(self),)


class Server:
    """Runs the rounds of a task; all it knows of a client is its client_id and the most examples it can have."""

    def __init__(self, task: Task, max_examples: Mapping[int, int], device: torch.device, shared: bytes = b"") -> None:
        self.task = task
        #: Points for everyone, encoded: each client gets them once, along with its first broadcast.
        self.shared = shared
        self.device = device
        self.seeds: Seeds = task.draw_seeds()
        self.max_examples = max_examples
        self.clipping = Clipping(task, max_examples)
        self.remedy = find_remedy(task.config)
        self.steps = max(map(task.recipe.steps, max_examples.values())) if self.remedy.counts_steps else 0
        # Bound to what is trained, so that an update of another run cannot be replayed into this one.
        self.run = hashlib.sha256(f"{task.fingerprint} {self.seeds}".encode()).hexdigest()[:16]

    def begin(self) -> ServerState:
        """Return the state before the first round: a model that follows from the seed."""
        return ServerState(0, self.task.initial(self.seeds.run).to(self.device))

    def run_round(
        self, state: ServerState, exchange: Ask[Tally], closed: Callable[[Attempt], None] = lambda attempt: None
    ) -> tuple[ServerState, RoundReport]:
        """Return the state after one synchronization round (Alg. 2, lines 9-20), and what the round cost.

        An attempt below quorum leaves the state as it was, except that clients that lost their state become new ones.
        `closed` is called with each attempt as it ends.
        """
        config, tried = self.task.config, state.tried
        report = RoundReport(
            state.round + 1, bytes_up=tried.bytes_up, bytes_down=tried.bytes_down, reached=set(state.reached)
        )
        end = tried.attempts + config.max_attempts
        for attempt in range(tried.attempts, end):
            state = self._attempt(state, attempt, exchange, report, last=attempt == end - 1)
            closed(report.told[-1])
            if state.round == report.round:
                return state, report
        reasons = "; ".join(f"client {entry.client}: {entry.reason}, {entry.detail}" for entry in report.refused[-3:])
        tried = Tried(report.attempts, report.bytes_up, report.bytes_down)
        few = "no valid update" if config.quorum == 1 else f"fewer than {config.quorum} valid updates"
        raise GivenUp(
            f"round {report.round} was given up after {config.max_attempts} attempts with {few} ({reasons}); the last "
            f"finished round is kept",
            replace(state, tried=tried, reached=frozenset(report.reached)),
            report.log,
        )

    def sample(self, round_index: int, attempt: int) -> list[int]:
        """Return S of the K clients, uniformly, by a generator that knows only the seed, round and attempt."""
        rng = generator(self.seeds.run, "client sampling", round_index, attempt)
        clients = sorted(self.max_examples)
        return sorted(int(c) for c in rng.choice(clients, self.task.config.clients_per_round, replace=False))

    def broadcast(self, state: ServerState, attempt: int, client_id: int) -> bytes:
        """Return what one client needs to take part in the next round."""
        return pack(*self._write(state, attempt, client_id, [client_id], {}))

    def _write(
        self, state: ServerState, attempt: int, client_id: int, clients: Sequence[int], payloads: Payloads
    ) -> tuple[BroadcastHeader, bytes]:
        """Return header and payload of a broadcast; `payloads` collects the payloads of the other clients as well."""
        # Clients with the same base model are sent the same payload, which is encoded once, not S times.
        base_round = self._find_base_round(state, client_id)
        known = payloads.get(base_round)
        if known is None:
            base_rounds = {self._find_base_round(state, other) for other in clients}
            models = write_models(self.task, self.seeds.run, state.round, state.base_model, state.changes, base_rounds)
            extra = write_extra(self.task, state.vectors[EXTRA]) if EXTRA in state.vectors else b""
            fresh = {of: (codec, len(extra), model + extra) for of, (codec, model) in models.items()}
            payloads.update(fresh)
            known = fresh[base_round]
        codec, extra_bytes, payload = known
        header = BroadcastHeader(
            run=self.run,
            config=self.task.fingerprint,
            round=state.round + 1,
            attempt=attempt,
            client=client_id,
            codec=codec,
            seed=self.seeds.run,
            label_seeds=list(self.seeds.labels),
            feature_seeds=list(self.seeds.features),
            accepted=list(state.accepted.get(client_id, ())),
            control=extra_bytes,
            steps=self.steps,
        )
        return header, payload

    def _find_base_round(self, state: ServerState, client_id: int) -> int:
        """Return the round of a client's base model; 0 if broadcasts do not depend on it."""
        changes = sends_changes(self.task.config.broadcast_codec)
        return find_base_round(state.accepted.get(client_id, ())) if changes else 0

    def _attempt(
        self, state: ServerState, attempt: int, exchange: Ask[Tally], report: RoundReport, *, last: bool
    ) -> ServerState:
        """Return the state after the round; if it must be repeated, the old state with what was learned of clients."""
        config = self.task.config
        clients = self.sample(report.round, attempt)
        sampled = {client_id: self.max_examples[client_id] for client_id in clients}
        expected = Expected(
            self.run,
            self.task.fingerprint,
            report.round,
            attempt,
            config.update_codec,
            len(state.model),
            sampled,
            self.clipping.bounds(clients, state.lengths),
            cap_weight(sampled, config.max_share or 2 / len(sampled)),
            self.seeds.run,
            self.remedy.extra,
            config.aggregation,
        )
        make = partial(Tally, expected, uniform=config.weighting == "uniform")
        tally = make(device=self.device)
        payloads: Payloads = {}
        unsent = set(clients)

        def write(client_id: int) -> tuple[BroadcastHeader, bytes]:
            letter = self._write(state, attempt, client_id, clients, payloads)
            unsent.discard(client_id)
            if not unsent:
                payloads.clear()  # all are sent: their memory is free before replies come
            return letter

        outbox = Outbox(tally.place, write, partial(make, device=torch.device("cpu")))
        for part in exchange(clients, outbox):
            if isinstance(part, Tally):
                tally.merge(part)
            else:
                tally.add(*part)
            del part  # else it would stay in memory until the next one is complete
        report.close(tally, outbox.sent, len(self.shared))
        first = {client_id: rms for client_id, rms in tally.extra_lengths.items() if client_id not in state.accepted}
        lengths = self.clipping.remember(state.lengths, tally.lengths, first)
        if len(tally.accepted) < config.quorum:
            return self._forget(state, report.log[-1])
        if not state.lengths.steps and not last:
            # The bound was wide, since no usual length was known. Now one is known, and an outlier must not count.
            excess = self.clipping.find_excess(tally.lengths, tally.extra_lengths, lengths)
            if excess:
                report.repeat(attempt, excess)
                return replace(self._forget(state, report.log[-1]), lengths=lengths)
        model, vectors = self._step(state, tally.mean_delta())
        model, report.clamped = confine(model, "the model")
        sent = tally.extra()
        if sent is not None:
            share = len(report.accepted) / len(self.max_examples)
            before = state.vectors.get(EXTRA, torch.zeros_like(state.model))
            extra, clamped = confine(self.remedy.move(before, sent, share), "the control")
            vectors = {**vectors, EXTRA: extra}
            report.clamped += clamped
        accepted = {**state.accepted, **dict.fromkeys(report.accepted, (report.round, attempt))}
        reached = frozenset(report.reached)
        new_state = ServerState(report.round, model, accepted, vectors, reached=reached, lengths=lengths)
        return self._deliver(state, self._forget(new_state, report.log[-1]))

    def _forget(self, state: ServerState, attempt: Attempt) -> ServerState:
        """Return the state after some clients reported that they lost theirs: they are treated as new clients.

        With a remedy whose states must add up over all clients, all become new clients.
        """
        forgetful = {entry.client for entry in attempt.refused if entry.reason == Reason.STATE}
        if not forgetful:
            return state
        if not self.remedy.keeps:
            kept = {client_id: when for client_id, when in state.accepted.items() if client_id not in forgetful}
            return replace(state, accepted=kept)
        zero = {EXTRA: torch.zeros_like(state.model)} if EXTRA in state.vectors else {}
        return replace(state, accepted={}, vectors={**state.vectors, **zero})

    def _deliver(self, old: ServerState, new: ServerState) -> ServerState:
        """Return the new state with the encoded change of its round, if broadcasts send changes."""
        codec = self.task.config.broadcast_codec
        if not sends_changes(codec):
            return new
        change, base = encode_change(codec, self.seeds.run, new.round, new.model, old.base_model)
        base_rounds = [find_base_round(new.accepted.get(client_id, ())) for client_id in self.max_examples]
        changes = drop_old({**old.changes, new.round: change}, base_rounds, len(base))
        return replace(new, vectors={**new.vectors, BASE: base}, changes=changes)

    def _step(self, state: ServerState, delta: MeanDelta) -> tuple[Tensor, Vectors]:
        """Return the next global model, and what the server's parts keep."""
        config = self.task.config
        kept = {name: vector for name, vector in state.vectors.items() if name not in _OWN}
        model, vectors = find_step(config.server_optimizer)(config, state.model, delta, kept)
        if config.model_average == 0:
            return model, vectors
        recent = torch.lerp(state.shown, model, 1 - config.model_average) if state.round else model
        return model, {**vectors, "average": recent}
