"""What travels: the wire format, the codecs, the bytes counted, and what an attempt that fails leaves behind."""

import dataclasses
import hashlib
import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import Federation
from fedmlh.config import Config
from fedmlh.engines.local import ClientsTogether
from fedmlh.errors import UserError
from fedmlh.federated.client import Assignment, Memory
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import (
    FRAME,
    MAX_HEADER,
    BroadcastHeader,
    Reason,
    Rejected,
    UpdateHeader,
    pack,
    unpack,
)
from fedmlh.federated.server import Server, ServerState
from fedmlh.federated.task import Task
from fedmlh.model.recipe import Recipe

CPU = torch.device("cpu")

short_text = st.text(max_size=64)
whole = st.integers(0, 2**63 - 1)
updates = st.builds(
    UpdateHeader,
    run=short_text,
    config=short_text,
    round=whole,
    attempt=whole,
    client=whole,
    codec=short_text,
    examples=whole,
    loss=st.floats(allow_nan=False, allow_infinity=False),
)
broadcasts = st.builds(
    BroadcastHeader,
    run=short_text,
    config=short_text,
    round=whole,
    attempt=whole,
    client=whole,
    codec=short_text,
    seed=whole,
    label_seeds=st.lists(whole, max_size=5),
    feature_seeds=st.lists(whole, max_size=5),
    accepted=st.lists(whole, max_size=2),
)
UPDATE = UpdateHeader("run", "config", 3, 1, 2, "fp32", 50, 0.25)
BROADCAST = BroadcastHeader("run", "config", 3, 1, 2, "fp32", 7, [1, 2], [3], [2, 0])


pytestmark = pytest.mark.usefixtures("one_thread")


def seal(head, payload=b"", magic=b"FMLH", version=1):
    """Return a message with any header text, digest and all, as a hostile client could send it."""
    body = struct.pack("<4sHI", magic, version, len(head)) + head + payload
    return body + hashlib.sha256(body).digest()


def header_text(header, **changes):
    """Return the header as it must stand in the message: sorted keys, no blanks."""
    kind = "update" if isinstance(header, UpdateHeader) else "broadcast"
    values = {"kind": kind, **dataclasses.asdict(header), **changes}
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def encode(name, values):
    """Return the bytes of a vector by a codec that leaves nothing to chance."""
    return make_codec(name).encode(values, np.random.default_rng())


def decode(name, payload, length):
    """Return the vector that such a codec's bytes stand for."""
    return make_codec(name).decode(memoryview(payload), length, np.random.default_rng())


def reason_of(message, kind=UpdateHeader, max_payload=100):
    with pytest.raises(Rejected) as refusal:
        unpack(kind, message, max_payload)
    return refusal.value.reason


class TestWireFormat:
    @settings(deadline=None, max_examples=60)
    @given(st.one_of(updates, broadcasts), st.binary(max_size=300))
    def test_what_is_packed_is_unpacked(self, header, payload):
        message = pack(header, payload)
        again, content = unpack(type(header), message, len(payload))
        assert again == header
        assert bytes(content) == payload
        assert len(message) == FRAME + len(header_text(header)) + len(payload)
        assert message == seal(header_text(header), payload)

    def test_no_changed_byte_goes_unnoticed(self):
        message = pack(UPDATE, b"some payload")
        for i in range(len(message)):
            for flip in (1, 0x80):
                broken = message[:i] + bytes([message[i] ^ flip]) + message[i + 1 :]
                reason_of(broken)

    def test_no_missing_or_added_byte_goes_unnoticed(self):
        message = pack(UPDATE, b"some payload")
        for length in range(len(message)):
            reason_of(message[:length])
        assert reason_of(message + b"x") == Reason.CORRUPT

    def test_size_is_checked_before_anything_else(self):
        fits = pack(UPDATE, bytes(100))
        unpack(UpdateHeader, fits, 100)
        assert reason_of(bytes(FRAME + MAX_HEADER + 101)) == Reason.TOO_LARGE
        assert reason_of(bytes(FRAME + MAX_HEADER + 100)) == Reason.MALFORMED

    def test_other_magic_version_or_kind_is_refused(self):
        head = header_text(UPDATE)
        assert reason_of(seal(head, magic=b"HTTP")) == Reason.MALFORMED
        assert reason_of(seal(head, version=2)) == Reason.VERSION
        assert reason_of(pack(UPDATE, b""), kind=BroadcastHeader) == Reason.MALFORMED
        assert reason_of(pack(BROADCAST, b"")) == Reason.MALFORMED

    @pytest.mark.parametrize(
        "head",
        [
            b"",
            b"[]",
            b"null",
            b"{",
            b"\xff\xfe",
            b"[" * 30_000,
            json.dumps(json.loads(header_text(UPDATE))).encode(),
            header_text(UPDATE).replace(b'"attempt":1', b'"attempt":1,"attempt":1'),
            header_text(UPDATE).replace(b"0.25", b"NaN"),
            header_text(UPDATE).replace(b"0.25", b"1e999"),
            header_text(UPDATE)[:-1] + b',"extra":1}',
            header_text(UPDATE).replace(b'"examples":50,', b""),
        ],
        ids=lambda head: head[:20].decode("latin-1") or "nothing",
    )
    def test_a_header_that_is_not_the_one_canonical_text_is_refused(self, head):
        assert reason_of(seal(head)) == Reason.MALFORMED

    @pytest.mark.parametrize(
        "change",
        [
            {"round": -1},
            {"round": True},
            {"round": 1.0},
            {"round": 2**63},
            {"round": "1"},
            {"round": None},
            {"run": 5},
            {"run": "x" * 65},
            {"loss": "0.25"},
            {"loss": True},
            {"loss": [0.25]},
            {"examples": [1]},
            {"loss": 10**400},
        ],
        ids=lambda change: str(change)[:24],
    )
    def test_a_field_of_another_type_or_range_is_refused(self, change):
        assert reason_of(seal(header_text(UPDATE, **change)), max_payload=1000) == Reason.MALFORMED

    @pytest.mark.parametrize("change", [{"label_seeds": [1, -2]}, {"label_seeds": 1}, {"accepted": [[1]]}], ids=str)
    def test_a_list_of_anything_but_whole_numbers_is_refused(self, change):
        assert reason_of(seal(header_text(BROADCAST, **change)), kind=BroadcastHeader) == Reason.MALFORMED

    @settings(deadline=None, max_examples=60)
    @given(st.binary(max_size=120))
    def test_noise_is_refused_and_never_crashes(self, noise):
        reason_of(noise)
        reason_of(seal(noise), max_payload=1000)


def filled(fed, value):
    """Return a payload of zeros with the value in its last place."""
    values = torch.zeros(fed.task.stack.num_parameters)
    values[-1] = value
    return encode("fp32", values)


def changed(reply, payload=None, **changes):
    """Return the reply with other header fields or payload, sealed again."""
    header, content = unpack(UpdateHeader, reply, 1 << 20)
    return pack(dataclasses.replace(header, **changes), bytes(content) if payload is None else payload)


class TestBytes:
    @pytest.mark.parametrize("up", ["fp32", "fp16"])
    @pytest.mark.parametrize("down", ["fp32", "fp16"])
    def test_a_message_weighs_frame_header_and_payload(self, up, down):
        """What is counted is the length of what was sent, and this is the formula for it."""
        fed = Federation(update_codec=up, broadcast_codec=down)
        state = fed.server.begin()
        for t in (1, 2, 3):
            fed.sent, fed.received = [], []
            state, report = fed.server.run_round(state, fed.exchange())
            assert report.bytes_down == sum(len(m) for m in fed.sent)
            assert report.bytes_up == sum(len(m) for m in fed.received)
            size = fed.task.stack.num_parameters
            for message in fed.sent:
                header, payload = unpack(BroadcastHeader, message, 4 * size)
                assert len(payload) == (0 if t == 1 else size * {"fp32": 4, "fp16": 2}[down])
                assert header.codec == ("initial" if t == 1 else down)
                assert len(message) == FRAME + len(header_text(header)) + len(payload)
            for message in fed.received:
                header, payload = unpack(UpdateHeader, message, 4 * size)
                assert len(payload) == size * {"fp32": 4, "fp16": 2}[up]
                assert len(message) == FRAME + len(header_text(header)) + len(payload)
            assert len(fed.sent) == len(fed.received) == 3

    def test_failed_attempts_are_paid_for(self):
        fed = Federation(quorum=3)
        _, report = fed.server.run_round(
            fed.server.begin(), fed.exchange(lambda attempt, client, reply: [reply[:-1] if attempt == 0 else reply])
        )
        assert report.attempts == 2
        assert len(fed.sent) == len(fed.received) == 6
        assert report.bytes_down == sum(len(m) for m in fed.sent)
        assert report.bytes_up == sum(len(m) for m in fed.received)

    def test_hash_functions_travel_as_seeds(self):
        """The header of a broadcast does not grow with labels or features."""
        small, large = (
            Server(Task(Config(num_buckets=5, hidden_sizes=()), d, p), dict.fromkeys(range(10), 5), CPU)
            for d, p in ((10, 10), (10**6, 10**6))
        )
        assert len(small.broadcast(small.begin(), 0, 1)) == len(large.broadcast(large.begin(), 0, 1)) < 1000


class TestErrorFeedback:
    @staticmethod
    def changes_and_answers(fed, rounds, remember=True):
        """Return what client 0 wanted to send in each round (taken from an fp32 twin), and its decoded answers."""
        exact = Federation(**{**fed, "update_codec": "fp32"})
        lossy = Federation(**fed)
        model, wanted, decoded = exact.server.begin().model, [], []
        memory = Memory()
        for t in range(1, rounds + 1):
            state = ServerState(t, model, {0: (t, 0)} if remember and t > 1 else {})
            reply, _ = exact.clients[0].answer(exact.server.broadcast(state, 0, 0), Memory())
            wanted.append(decode("fp32", unpack(UpdateHeader, reply, 1 << 20)[1], len(model)).double())
            reply, memory = lossy.clients[0].answer(lossy.server.broadcast(state, 0, 0), memory)
            assert memory.staged_in == (t + 1, 0)
            decoded.append(decode("fp16", unpack(UpdateHeader, reply, 1 << 20)[1], len(model)).double())
        return torch.stack(wanted), torch.stack(decoded), memory

    def test_what_is_left_out_is_sent_later(self):
        """Over forty rounds the rounding of single updates adds up without memory; with it, it never grows."""
        fed = {"update_codec": "fp16", "learning_rate": 3e-5}
        wanted, decoded, memory = self.changes_and_answers(fed, 40)
        assert 2**-18 < wanted.abs().max() < 2**-14  # where fp16 has steps of 2^-24
        total, sent = wanted.sum(0), decoded.sum(0)
        # All that can be missing is the last residual, at most half a step, up to float32's rounding.
        torch.testing.assert_close(sent + memory.staged["residual"].double(), total, rtol=0, atol=1e-10)
        assert (total - sent).abs().max() <= 2**-25 + 1e-10
        _, forgetful, _ = self.changes_and_answers(fed, 40, remember=False)
        assert (forgetful.sum(0) - total).abs().max() > 10 * 2**-25

    def test_a_lossless_codec_keeps_nothing(self):
        fed = Federation()
        fed.run(3)
        assert all(not memory.kept and not memory.staged for memory in fed.memories.values())


class TestMemory:
    def test_staged_state_counts_only_for_the_very_attempt_that_was_accepted(self):
        kept, staged = {"residual": torch.zeros(2)}, {"residual": torch.ones(2)}
        memory = Memory(kept, staged, (3, 1), (1, 0))
        assert memory.settle((3, 1)) is staged
        assert memory.settle((1, 0)) is kept
        assert memory.settle(()) == {}, "whoever the server does not remember starts from nothing"
        for accepted in ((3, 0), (3, 2), (2, 1), (4, 1)):
            assert memory.settle(accepted) is None

    def test_an_answer_stages_and_never_writes_into_the_memory_it_was_given(self):
        fed = Federation(update_codec="fp16", learning_rate=1e-4)
        client, state = fed.clients[2], fed.server.begin()
        _, first = client.answer(fed.server.broadcast(state, 0, 2), Memory())
        assert first.kept == {}
        before = first.staged["residual"].clone()
        accepted = ServerState(1, state.model, {2: (1, 0)})
        _, second = client.answer(fed.server.broadcast(accepted, 0, 2), first)
        assert torch.equal(second.kept["residual"], before)
        assert torch.equal(first.staged["residual"], before)
        refused = ServerState(1, state.model, {})
        _, other = client.answer(fed.server.broadcast(refused, 0, 2), first)
        assert other.kept == {}
        assert other.staged_in == second.staged_in == (2, 0)
        assert not torch.equal(other.staged["residual"], second.staged["residual"])

    @pytest.mark.parametrize("codec", ["fp32", "fp16", "int4", "topk-10%+zlib", "sketch-50%"])
    def test_an_abandoned_attempt_leaves_no_trace(self, codec):
        """All clients trained in it and staged their state, yet later rounds are those of a run that never tried it."""
        one, two = (Federation(update_codec=codec, quorum=3, learning_rate=1e-3) for _ in range(2))
        start = one.run(2), two.run(2)
        first, report = one.server.run_round(
            start[0], one.exchange(lambda attempt, client, reply: [] if attempt == 0 else [reply])
        )

        def never_reached(sampled, broadcast):
            if next(attempts):
                yield from two.local.exchange(sampled, broadcast)

        attempts = iter(range(5))
        second, other = two.server.run_round(start[1], never_reached)
        assert report.attempts == other.attempts == 2
        assert set(one.memories) == set(range(5)), "with this seed the two attempts reach different clients"
        assert torch.equal(first.model, second.model)
        assert first.accepted == second.accepted
        assert torch.equal(one.run(3, first).model, two.run(3, second).model)

    def test_an_update_that_was_refused_is_made_up_for(self):
        """Its residual is the old one, so what was accepted plus what is kept is all that the client wanted to say."""
        fed = Federation(update_codec="fp16", learning_rate=1e-3)
        state = fed.run(4)
        sampled = fed.server.sample(5, 0)
        before = {k: fed.memories[k].settle(state.accepted.get(k, ())) for k in sampled if k in fed.memories}
        victim = next(k for k in sampled if before.get(k))
        after, report = fed.server.run_round(
            state, fed.exchange(lambda attempt, client, reply: [reply[:-1] if client == victim else reply])
        )
        assert victim not in report.accepted
        assert after.accepted[victim] == state.accepted[victim]
        assert fed.memories[victim].settle(after.accepted[victim]) == before[victim]
        other = next(k for k in report.accepted if k in before)
        assert fed.memories[other].settle(after.accepted[other]) is fed.memories[other].staged


class TestRounds:
    def test_too_few_updates_mean_another_attempt_with_other_clients(self):
        fed = Federation(quorum=2, max_attempts=3)
        asked = []

        def exchange(sampled, broadcast):
            asked.append(list(sampled))
            replies = list(fed.local.exchange(sampled, broadcast))
            yield from replies[:1] if len(asked) < 3 else replies

        state, report = fed.server.run_round(fed.server.begin(), exchange)
        assert report.attempts == 3
        assert asked == [fed.server.sample(1, attempt) for attempt in range(3)]
        assert len({tuple(clients) for clients in asked}) > 1
        assert report.accepted == asked[2]
        assert state.accepted == dict.fromkeys(asked[2], (1, 2))

    def test_a_round_is_given_up_with_the_old_state_unchanged(self):
        fed = Federation(quorum=1, max_attempts=2)
        state = fed.run(2)
        model, accepted = state.model.clone(), dict(state.accepted)
        with pytest.raises(UserError, match=r"round 3 .* 2 attempts"):
            fed.server.run_round(state, fed.exchange(lambda attempt, client, reply: [reply[:-1]]))
        assert torch.equal(state.model, model)
        assert (state.round, state.accepted) == (2, accepted)

    def test_a_round_with_a_quorum_is_the_average_of_who_answered(self):
        fed = Federation(quorum=2)
        state = fed.server.begin()
        lonely = fed.server.sample(1, 0)[0]
        after, report = fed.server.run_round(
            state, fed.exchange(lambda attempt, client, reply: [] if client == lonely else [reply])
        )
        assert report.attempts == 1
        assert report.accepted == fed.server.sample(1, 0)[1:]
        payloads = [unpack(UpdateHeader, message, 1 << 20)[1] for message in fed.received]
        mean = sum(decode("fp32", p, len(state.model)).double() for p in payloads) / 2
        torch.testing.assert_close(after.model.double(), state.model.double() + mean, rtol=0, atol=1e-7)
        assert lonely not in after.accepted

    @pytest.mark.parametrize(
        ("reason", "spoil"),
        [
            (Reason.ROUND, lambda fed, reply: changed(reply, round=2)),
            (Reason.ROUND, lambda fed, reply: changed(reply, attempt=1)),
            (Reason.RUN, lambda fed, reply: changed(reply, run="another")),
            (Reason.CONFIG, lambda fed, reply: changed(reply, config="another")),
            (Reason.CLIENT, lambda fed, reply: changed(reply, client=fed.server.sample(1, 0)[1])),
            (Reason.CODEC, lambda fed, reply: changed(reply, codec="fp16")),
            (Reason.EXAMPLES, lambda fed, reply: changed(reply, examples=0)),
            (Reason.EXAMPLES, lambda fed, reply: changed(reply, examples=10**6)),
            (Reason.SIZE, lambda fed, reply: changed(reply, payload=b"\0" * 8)),
            (Reason.NON_FINITE, lambda fed, reply: changed(reply, payload=filled(fed, math.nan))),
            (Reason.NON_FINITE, lambda fed, reply: changed(reply, payload=filled(fed, -math.inf))),
            (Reason.RANGE, lambda fed, reply: changed(reply, payload=filled(fed, 2000.0))),
            (Reason.CORRUPT, lambda fed, reply: reply[:-1] + bytes([reply[-1] ^ 1])),
            (Reason.FAILED, lambda fed, reply: Rejected(Reason.FAILED, "out of memory")),
        ],
        ids=lambda value: value.name if isinstance(value, Reason) else "",
    )
    def test_an_update_that_may_not_count_is_refused_with_its_reason_and_changes_nothing(self, reason, spoil):
        fed, without = (Federation(clip="off") for _ in range(2))
        victim = fed.server.sample(1, 0)[0]
        state, report = fed.server.run_round(
            fed.server.begin(),
            fed.exchange(lambda attempt, client, reply: [spoil(fed, reply) if client == victim else reply]),
        )
        expected, _ = without.server.run_round(
            without.server.begin(), without.exchange(lambda attempt, client, reply: [] if client == victim else [reply])
        )
        assert [(entry.client, entry.reason) for entry in report.refused] == [(victim, reason)]
        assert torch.equal(state.model, expected.model)
        assert state.accepted == expected.accepted

    def test_a_reply_counts_once(self):
        fed, once = Federation(), Federation()
        state, report = fed.server.run_round(
            fed.server.begin(), fed.exchange(lambda attempt, client, reply: [reply, reply])
        )
        assert torch.equal(state.model, once.run(1).model)
        assert [entry.reason for entry in report.refused] == [Reason.DUPLICATE] * 3

    def test_workers_and_order_of_arrival_change_no_bit(self):
        """Randomness is an argument, with weights by examples and a codec that keeps state."""
        one, many = (Federation(weighting="examples", update_codec="fp16", learning_rate=1e-3) for _ in range(2))
        many.local.workers = 3
        state = many.server.begin()
        for _ in range(4):
            state, _ = many.server.run_round(
                state, lambda sampled, send: reversed(list(many.local.exchange(sampled, send)))
            )
        assert torch.equal(one.run(4).model, state.model)

    def test_every_round_and_attempt_shuffles_again(self):
        """Else the retry of a round would repeat what failed, and all rounds would go through the points alike."""
        fed = Federation()
        model = fed.server.begin().model
        replies = set()
        for t, attempt in ((1, 0), (1, 1), (2, 0)):
            broadcast = fed.server.broadcast(ServerState(t, model), attempt, 0)
            reply, _ = fed.clients[0].answer(broadcast, Memory())
            again, _ = fed.clients[0].answer(broadcast, Memory())
            assert reply == again
            replies.add(bytes(unpack(UpdateHeader, reply, 1 << 20)[1]))
        assert len(replies) == 3

    def test_a_client_answers_only_broadcasts_that_are_its_own(self):
        fed, other = Federation(), Federation(learning_rate=0.25)
        for server, client, reason in ((fed.server, 1, Reason.CLIENT), (other.server, 0, Reason.CONFIG)):
            with pytest.raises(Rejected) as refusal:
                fed.clients[0].answer(server.broadcast(server.begin(), 0, client), Memory())
            assert refusal.value.reason == reason

    @pytest.mark.parametrize(
        ("reason", "changes", "payload"),
        [
            (Reason.RANGE, {"label_seeds": [1]}, None),
            (Reason.RANGE, {"label_seeds": [1, 2, 3]}, None),
            (Reason.RANGE, {"label_seeds": [1, 2**32]}, None),
            (Reason.RANGE, {"feature_seeds": [5]}, None),
            (Reason.ROUND, {"round": 0}, None),
            (Reason.CODEC, {"codec": "bogus"}, None),
            (Reason.CODEC, {"codec": "initial"}, None),
            (Reason.SIZE, {}, b"1234"),
            (Reason.NON_FINITE, {}, "nan"),
        ],
    )
    def test_a_client_trains_on_nothing_that_does_not_fit_its_task(self, reason, changes, payload):
        fed = Federation()
        broadcast = fed.server.broadcast(ServerState(1, fed.server.begin().model), 0, 0)
        fed.clients[0].answer(broadcast, Memory())
        header, content = unpack(BroadcastHeader, broadcast, 1 << 20)
        content = filled(fed, float("nan")) if payload == "nan" else bytes(content) if payload is None else payload
        with pytest.raises(Rejected) as refusal:
            fed.clients[0].answer(pack(dataclasses.replace(header, **changes), content), Memory())
        assert refusal.value.reason == reason

    def test_what_a_stranger_writes_is_quoted_not_passed_on(self):
        """A run's name with an escape sequence must not reach a terminal or break a log."""
        fed = Federation(max_attempts=1)
        with pytest.raises(UserError) as error:
            fed.server.run_round(
                fed.server.begin(), fed.exchange(lambda a, c, reply: [changed(reply, run="\ud800\x1b[2J")])
            )
        str(error.value).encode()
        assert "\x1b" not in str(error.value)

    def test_sampling_is_uniform_without_repetition_and_fresh_for_each_attempt(self):
        server = Federation().server
        draws = [server.sample(t, a) for t in range(1, 301) for a in (0, 1)]
        assert all(len(set(d)) == 3 and d == sorted(d) and set(d) <= set(range(5)) for d in draws)
        counts = np.bincount(np.concatenate(draws), minlength=5)
        sigma = math.sqrt(600 * 0.6 * 0.4)
        assert (np.abs(counts - 360) < 4 * sigma).all()
        assert any(server.sample(t, 0) != server.sample(t, 1) for t in range(1, 10))
        assert Federation().server.sample(7, 1) == server.sample(7, 1)


def test_clients_trained_at_once_refuse_what_they_must_and_nobody_is_trained_for_nothing():
    """The way of a GPU: each accepts or refuses for itself, then all who accepted are trained in one call."""
    calls, recipe = [], Recipe("bce", "adam", 0.1, 1, 8)

    class Trainer:
        def train_clients(self, models, clients, orders, learning_rate, corrections):
            calls.append(list(clients))
            return [(model + 1, 0.5) for model in models]

    class Stub:
        def __init__(self, good):
            self.good = good

        def read(self, message):
            return message

        def accept(self, broadcast, memory):
            if not self.good:
                raise Rejected(Reason.CONFIG, "another one")
            return Assignment(None, torch.zeros(2), None, recipe, None, None, {}, {})

        def reply(self, work, trained, loss):
            return repr(trained.tolist()).encode(), Memory()

    local = ClientsTogether({0: Stub(True), 1: Stub(False), 2: Stub(True)}, Trainer())
    replies = dict(local.exchange([0, 1, 2], lambda client: b""))
    assert replies[0] == replies[2] == b"[1.0, 1.0]"
    assert isinstance(replies[1], Rejected)
    assert isinstance(dict(local.exchange([1], lambda client: b""))[1], Rejected)
    assert calls == [[0, 2]]
