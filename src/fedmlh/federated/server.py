"""The server's side of a round: sample, broadcast, validate, average. Old state in, new state out."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.federated.broadcast import (
    Changes,
    drop_old,
    encode_change,
    round_held,
    sends_changes,
    write_control,
    write_models,
)
from fedmlh.federated.clipping import Clipping, Lengths, cap_weight, confine
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, pack
from fedmlh.federated.optimizers import Change, Vectors, find_step
from fedmlh.federated.participation import Attempt, Refusal
from fedmlh.federated.tally import Outbox, Tally
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.validate import Expected
from fedmlh.randomness import generator

#: How an engine reaches clients: given whom to ask and the broadcast for each, it yields (client, reply) in any
#: order, or a Tally of several replies; a client that could not answer yields the Rejected that says why, and one of
#: which nothing comes is late.
Exchange = Callable[[Sequence[int], Outbox], Iterable[tuple[int, bytes | Rejected] | Tally]]

#: What clients are sent in one attempt, by the round of the model that they hold: codec, bytes of control at the
#: payload's end, payload.
Payloads = dict[int, tuple[str, int, bytes]]

#: Vectors that the server itself keeps: the average of recent models, SCAFFOLD's control, what clients hold. All others
#: are the optimizer's.
_OWN = ("average", "control", "held")


@dataclass(frozen=True)
class Tried:
    """Attempts at a round that came to nothing before the run was given up, and what they sent."""

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
    #: Of a broadcast that sends changes: those that some client may still need.
    changes: Changes = field(default_factory=dict)
    #: Clients that have been sent anything: they have the shared points.
    reached: frozenset[int] = frozenset()
    #: At the next round, by runs that were given up in it.
    tried: Tried = Tried()
    #: Of updates that counted lately: what the next ones are measured by.
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def shown(self) -> Tensor:
        """The model to evaluate and export: the average of recent ones where it is kept.  # [P]"""
        return self.vectors.get("average", self.model)

    @property
    def held(self) -> Tensor:
        """The model that clients train from, which a broadcast of changes only brings near the server's.  # [P]"""
        return self.vectors.get("held", self.model)


@dataclass
class RoundReport:
    """What a round cost and who took part."""

    round: int
    attempts: int = 0
    accepted: list[int] = field(default_factory=list)
    refused: list[dict[str, object]] = field(default_factory=list)
    #: Clients whose updates were too long, and by which factor they were scaled.
    clipped: list[dict[str, object]] = field(default_factory=list)
    #: How many values of the new model, and of SCAFFOLD's control, were outside what may be sent.
    clamped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    loss: float = 0.0
    #: Clients that were sent anything in this round or before.
    reached: set[int] = field(default_factory=set)
    #: Who took part in each attempt.
    log: list[Attempt] = field(default_factory=list)

    def close(self, tally: Tally, shared_bytes: int) -> None:
        """Take down an attempt; `shared_bytes` is what a client is sent with its first broadcast."""
        attempt = tally.close()
        self.log.append(attempt)
        self.attempts = attempt.attempt + 1
        self.accepted = list(attempt.accepted)
        self.clipped = [{"client": client, "factor": tally.clipped[client]} for client in sorted(tally.clipped)]
        self.refused += [{"attempt": attempt.attempt, **vars(entry)} for entry in attempt.refused]
        new = {client for client, _ in tally.sent} - self.reached
        self.reached |= new
        self.bytes_up += tally.bytes_up
        self.bytes_down += sum(length for _, length in tally.sent) + shared_bytes * len(new)
        if attempt.accepted:
            self.loss = sum(tally.losses[client] for client in attempt.accepted) / len(attempt.accepted)

    def refuse(self, attempt: int, excess: Mapping[int, float]) -> None:
        """Take down because of whom an attempt is repeated: how many times too long their updates were."""
        for client, times in excess.items():
            detail = f"{times:.3g} times as long as others showed to be plausible: the first round is repeated"
            self.refused.append({"attempt": attempt, **vars(Refusal(client, Reason.RANGE, detail))})


class GivenUp(UserError):
    """A round that did not come about; a run that goes on from this state asks other clients."""

    def __init__(self, message: str, state: ServerState, log: list[Attempt]) -> None:
        super().__init__(message)
        self.state = state
        self.log = log

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:
        """Go to another process as the sentence alone."""
        return UserError, (str(self),)


class Server:
    """Runs rounds for a task over clients that it knows only by number and by how many examples they can have."""

    def __init__(self, task: Task, max_examples: Mapping[int, int], device: torch.device, shared: bytes = b"") -> None:
        self.task = task
        #: Points for everyone, encoded: each client gets them once, along with its first broadcast.
        self.shared = shared
        self.device = device
        self.seeds: Seeds = task.draw_seeds()
        self.max_examples = max_examples
        self.clipping = Clipping(task, max_examples)
        corrected = task.config.correction == "vrl-sgd"
        self.steps = max(map(task.recipe.steps, max_examples.values())) if corrected else 0
        # Bound to what is trained, so that an update of another run cannot be replayed into this one.
        self.run = hashlib.sha256(f"{task.fingerprint} {self.seeds}".encode()).hexdigest()[:16]

    def begin(self) -> ServerState:
        """The state before the first round: a model that follows from the seed."""
        return ServerState(0, self.task.initial(self.seeds.run).to(self.device))

    def run_round(self, state: ServerState, exchange: Exchange) -> tuple[ServerState, RoundReport]:
        """One synchronization round (Alg. 2, lines 9-20).

        An attempt below quorum leaves the state as it was, but for this: who has lost what it kept is known to have.
        """
        config, tried = self.task.config, state.tried
        report = RoundReport(
            state.round + 1, bytes_up=tried.bytes_up, bytes_down=tried.bytes_down, reached=set(state.reached)
        )
        end = tried.attempts + config.max_attempts
        for attempt in range(tried.attempts, end):
            state = self._attempt(state, attempt, exchange, report, last=attempt == end - 1)
            if state.round == report.round:
                return state, report
        reasons = "; ".join(
            f"client {entry['client']}: {entry['reason']}, {entry['detail']}" for entry in report.refused[-3:]
        )
        tried = Tried(report.attempts, report.bytes_up, report.bytes_down)
        raise GivenUp(
            f"round {report.round} was given up after {config.max_attempts} attempts with fewer than "
            f"{config.quorum} valid updates ({reasons}); the last finished round is kept",
            replace(state, tried=tried, reached=frozenset(report.reached)),
            report.log,
        )

    def sample(self, round_number: int, attempt: int) -> list[int]:
        """S of the K clients, uniformly, by a generator that knows only the seed, round and attempt."""
        rng = generator(self.seeds.run, "client sampling", round_number, attempt)
        clients = sorted(self.max_examples)
        return sorted(int(c) for c in rng.choice(clients, self.task.config.clients_per_round, replace=False))

    def broadcast(self, state: ServerState, attempt: int, client: int) -> bytes:
        """What one client needs to take part in the next round."""
        return pack(*self._write(state, attempt, client, [client], {}))

    def _write(
        self, state: ServerState, attempt: int, client: int, clients: Sequence[int], payloads: Payloads
    ) -> tuple[BroadcastHeader, bytes]:
        """Header and payload of a broadcast; `payloads` keeps what the other clients will be sent as well."""
        # All clients get the same model, or the same changes if they hold the same one: encoded once, not S times.
        held = self._round_held(state, client)
        known = payloads.get(held)
        if known is None:
            rounds = {self._round_held(state, other) for other in clients}
            models = write_models(self.task, self.seeds.run, state.round, state.held, state.changes, rounds)
            control = write_control(self.task, state.vectors["control"]) if "control" in state.vectors else b""
            fresh = {number: (codec, len(control), model + control) for number, (codec, model) in models.items()}
            payloads.update(fresh)
            known = fresh[held]
        codec, control_bytes, payload = known
        header = BroadcastHeader(
            run=self.run,
            config=self.task.fingerprint,
            round=state.round + 1,
            attempt=attempt,
            client=client,
            codec=codec,
            seed=self.seeds.run,
            label_seeds=list(self.seeds.labels),
            feature_seeds=list(self.seeds.features),
            accepted=list(state.accepted.get(client, ())),
            control=control_bytes,
            steps=self.steps,
        )
        return header, payload

    def _round_held(self, state: ServerState, client: int) -> int:
        """Of which round the model is that a client holds; 0 where it does not matter."""
        changes = sends_changes(self.task.config.broadcast_codec)
        return round_held(state.accepted.get(client, ())) if changes else 0

    def _attempt(
        self, state: ServerState, attempt: int, exchange: Exchange, report: RoundReport, *, last: bool
    ) -> ServerState:
        """Return the state after the round; if it has to be repeated, the old one and what was learned of clients."""
        config = self.task.config
        clients = self.sample(report.round, attempt)
        sampled = {client: self.max_examples[client] for client in clients}
        bounds = self.clipping.bounds(clients, state.lengths)
        expected = Expected(
            self.run,
            self.task.fingerprint,
            report.round,
            attempt,
            config.update_codec,
            len(state.model),
            sampled,
            bounds.updates,
            bounds.control,
            bounds.scales,
            cap_weight(sampled, config.max_share or 2 / len(sampled)),
            self.seeds.run,
            control=config.correction == "scaffold",
            aggregation=config.aggregation,
        )
        tally = Tally(expected, uniform=config.weighting == "uniform", device=self.device)
        payloads: Payloads = {}
        unsent = set(clients)

        def write(client: int) -> tuple[BroadcastHeader, bytes]:
            message = self._write(state, attempt, client, clients, payloads)
            unsent.discard(client)
            if not unsent:
                payloads.clear()  # what everyone has been sent need not wait for the replies
            return message

        for part in exchange(clients, Outbox(tally, write)):
            if isinstance(part, Tally):
                tally.merge(part)
            else:
                tally.add(*part)
            del part  # or it would lie there until the next has come whole
        report.close(tally, len(self.shared))
        first = {client: length for client, length in tally.control_lengths.items() if client not in state.accepted}
        lengths = self.clipping.remember(state.lengths, tally.lengths, first)
        if len(tally.losses) < config.quorum:
            return self._forget(state, report.log[-1])
        if not state.lengths.steps and not last:
            # Nothing was known of what is usual, so that the bound was wide. Now it is: what stands out may not count.
            excess = self.clipping.find_excess(tally.lengths, tally.control_lengths, lengths)
            if excess:
                report.refuse(attempt, excess)
                return replace(self._forget(state, report.log[-1]), lengths=lengths)
        model, vectors = self._step(state, tally.change())
        model, report.clamped = confine(model, "the model")
        control_change = tally.control_change()
        if control_change is not None:
            # Over all clients, since those who did not take part keep the control they had.
            share = len(report.accepted) / len(self.max_examples)
            before = state.vectors.get("control", torch.zeros_like(state.model))
            control, clamped = confine(torch.add(before, control_change, alpha=share), "the control")
            vectors = {**vectors, "control": control}
            report.clamped += clamped
        accepted = {**state.accepted, **dict.fromkeys(report.accepted, (report.round, attempt))}
        reached = frozenset(report.reached)
        new_state = ServerState(report.round, model, accepted, vectors, reached=reached, lengths=lengths)
        return self._deliver(state, self._forget(new_state, report.log[-1]))

    def _forget(self, state: ServerState, attempt: Attempt) -> ServerState:
        """The state after clients said that they lost what they kept: they will be served as new ones.

        Corrections add up to nothing over all clients only as long as none is lost, so with one all begin anew.
        """
        forgetful = {entry.client for entry in attempt.refused if entry.reason == Reason.STATE}
        if not forgetful:
            return state
        if self.task.config.correction == "none":
            kept = {client: when for client, when in state.accepted.items() if client not in forgetful}
            return replace(state, accepted=kept)
        zero = {"control": torch.zeros_like(state.model)} if "control" in state.vectors else {}
        return replace(state, accepted={}, vectors={**state.vectors, **zero})

    def _deliver(self, old: ServerState, new: ServerState) -> ServerState:
        """The new state with what clients will be sent about it, where that is a change and not the model."""
        codec = self.task.config.broadcast_codec
        if not sends_changes(codec):
            return new
        change, held = encode_change(codec, self.seeds.run, new.round, new.model, old.held)
        rounds_held = [round_held(new.accepted.get(client, ())) for client in self.max_examples]
        changes = drop_old({**old.changes, new.round: change}, rounds_held, len(held))
        return replace(new, vectors={**new.vectors, "held": held}, changes=changes)

    def _step(self, state: ServerState, change: Change) -> tuple[Tensor, Vectors]:
        """The next global model, and what the server's parts keep."""
        config = self.task.config
        kept = {name: vector for name, vector in state.vectors.items() if name not in _OWN}
        model, vectors = find_step(config.server_optimizer)(config, state.model, change, kept)
        if config.model_average == 0:
            return model, vectors
        recent = torch.lerp(state.shown, model, 1 - config.model_average) if state.round else model
        return model, {**vectors, "average": recent}
