"""The model's way to the clients as changes: all hold the same bits, whoever missed what, and nothing is sent twice."""

import dataclasses
import struct

import numpy as np
import pytest
import torch

from federation import Federation
from fedmlh.federated.broadcast import (
    drop_old,
    encode_change,
    largest_payload,
    mean_payload,
    read_model,
    sends_changes,
    write_model,
)
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.codecs.grid_changes import snap
from fedmlh.federated.codecs.grid_levels import write_levels
from fedmlh.federated.messages import FRAME, BroadcastHeader, Reason, Rejected, pack, unpack
from fedmlh.federated.participation import Attempt
from fedmlh.federated.task import Task
from fedmlh.runs.checkpoint import Checkpoints, Progress

CHANGES = ["int8", "int4", "int8+zlib", "int4+zlib", "topk-20%", "topk-5%+zlib", "grid-50%", "grid-199%"]
pytestmark = pytest.mark.usefixtures("one_thread")


def bits(tensor):
    return tensor.numpy().tobytes()


def settled(fed, state, client):
    """Return what a client's memory amounts to, as the server's next broadcast to it will say."""
    kept = fed.memories.get(client, Memory()).settle(state.accepted.get(client, ()))
    return {name: bits(vector) for name, vector in kept.items()}


def frozen(state):
    vectors = {name: bits(vector) for name, vector in state.vectors.items()}
    return state.round, bits(state.model), dict(state.accepted), vectors, dict(state.changes)


@pytest.fixture
def starts(monkeypatch):
    """Return the models from which clients have trained, in order."""
    seen = []
    accept = Client.accept

    def spy(self, broadcast, memory):
        work = accept(self, broadcast, memory)
        seen.append((self.client_id, bits(work.model)))
        return work

    monkeypatch.setattr(Client, "accept", spy)
    return seen


def test_a_whole_model_deflated_gives_the_same_run():
    plain, deflated = (Federation(broadcast_codec=codec) for codec in ("fp32", "fp32+zlib"))
    assert torch.equal(plain.run(5).model, deflated.run(5).model)
    assert not sends_changes("fp32+zlib")
    assert not deflated.run(1).changes


@pytest.mark.parametrize("codec", CHANGES)
def test_every_client_trains_from_the_bits_that_the_server_thinks_it_holds(codec, starts):
    """Whoever is asked, refused or cut off in whatever pattern."""
    fed = Federation(broadcast_codec=codec, update_codec="int8", clients_per_round=2, max_attempts=20)
    state, rng = fed.server.begin(), np.random.default_rng(1)
    sent = set()
    for _ in range(25):
        starts.clear()
        fed.sent.clear()
        expected = bits(state.base_model)
        state, _ = fed.server.run_round(
            state,
            fed.exchange(lambda a, c, reply: [[reply], [], [reply[:-1]]][rng.choice(3, p=[0.5, 0.25, 0.25])]),
        )
        assert starts
        assert all(start == expected for _, start in starts)
        sent |= {unpack(BroadcastHeader, message, 1 << 20)[0].codec for message in fed.sent}
    assert sent - {"fp32", "since start"} == {"initial", codec}
    assert not torch.equal(state.base_model, state.model)


def test_the_models_that_clients_hold_lie_in_memory_and_on_disk_once_a_round(tmp_path):
    fed = Federation(broadcast_codec="int4", update_codec="topk-20%", clients_per_round=2)
    state = fed.run(6)
    held = [values for memory in fed.memories.values() for values in (memory.kept, memory.staged) if "held" in values]
    rounds = {int(values["held_round"]) for values in held}
    assert len(rounds) < len(held)
    assert {id(values["held"]) for values in held} == {id(tensor) for tensor in fed.local._base_models.values()}
    assert set(fed.local._base_models) == rounds  # those that no client holds any more are gone

    checkpoints = Checkpoints(tmp_path, "run", fed.task.stack, torch.device("cpu"), fed.task.config.num_clients)
    history = [{"bytes_up": 0, "bytes_down": 0, "seconds_training": 0.0, "seconds_evaluation": 0.0}] * 6
    log = [Attempt(number, 0, [0, 1], [0, 1], []) for number in range(1, 7)]
    checkpoints.save(Progress(state, state.model, 1, 0.5, dict(fed.memories), history, log))
    files = {path.name for path in (tmp_path / "round-000006").iterdir()}
    assert {name for name in files if name.startswith("held")} == {
        f"held-{number:06d}.safetensors" for number in rounds
    }
    back, problems = checkpoints.load()
    assert not problems
    for client, memory in fed.memories.items():
        for part in ("kept", "staged"):
            before, after = (getattr(m, part) for m in (memory, back.memories[client]))
            assert {name: bits(value) for name, value in before.items()} == {n: bits(v) for n, v in after.items()}


@pytest.mark.parametrize(("codec", "bytes_a_value"), [("fp32", 4), ("fp16", 2), ("int4", 4), ("topk-5%+zlib", 4)])
def test_the_whole_model_fits_into_the_largest_payload_and_nothing_more(codec, bytes_a_value):
    task = Federation(broadcast_codec=codec).task
    assert largest_payload(task) == bytes_a_value * task.stack.num_parameters


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int4", "int8+zlib"])
@pytest.mark.parametrize("clients", [2, 4, 400])
def test_on_average_a_client_is_sent_the_changes_of_the_rounds_it_misses(codec, clients):
    config = Federation(broadcast_codec=codec).config.replace(num_clients=clients, clients_per_round=2)
    task = Task(config, num_features=300, num_labels=50)
    one = 4 + make_codec(codec).size(task.stack.num_parameters)
    expected = one * clients // 2 if sends_changes(codec) else largest_payload(task)
    assert mean_payload(task) == min(expected, largest_payload(task))


def test_every_change_is_rounded_by_draws_of_its_own():
    """The same draws in every round would push the same values the same way."""
    model, held = torch.linspace(-1, 1, 500), torch.zeros(500)
    payloads = {encode_change("int4", seed, number, model, held)[0] for seed in (0, 1) for number in (1, 2, 3)}
    assert len(payloads) == 6


@pytest.mark.parametrize("codec", CHANGES)
def test_what_clients_hold_stays_near_the_model(codec):
    """What a change leaves out is in the next: the distance settles instead of adding up."""
    fed = Federation(broadcast_codec=codec, learning_rate=0.05)
    state, far = fed.server.begin(), []
    for _ in range(60):
        state = fed.run(1, state)
        far.append(float((state.base_model - state.model).norm()))
    travelled = float((state.model - fed.server.begin().model).norm())
    assert max(far[30:]) <= 1.5 * max(far[:30])
    assert far[-1] < travelled


def test_who_missed_rounds_is_sent_what_it_missed_or_the_whole_and_it_is_counted():
    fed = Federation(broadcast_codec="int4", clients_per_round=1, quorum=1)
    state, size = fed.server.begin(), fed.task.stack.num_parameters
    one = 4 + make_codec("int4").size(size)
    kinds = set()
    for _ in range(25):
        (client,) = fed.server.sample(state.round + 1, 0)
        held = state.accepted[client][0] - 1 if client in state.accepted else 0
        missed = state.round - held
        message = fed.server.broadcast(state, 0, client)
        header, payload = unpack(BroadcastHeader, message, 4 * size)
        whole = missed * one >= 4 * size
        assert len(payload) == (4 * size if whole else missed * one)
        assert header.codec == ("initial" if state.round == 0 else "fp32" if whole else "int4")
        kinds.add((header.codec, missed > 1))
        state, report = fed.server.run_round(state, fed.exchange())
        assert report.bytes_down == len(message) > FRAME + len(payload)
    assert kinds >= {("int4", False), ("int4", True), ("fp32", True)}


def test_changes_that_nobody_can_be_sent_are_dropped():
    fed = Federation(broadcast_codec="int4", clients_per_round=2)
    state, size = fed.server.begin(), fed.task.stack.num_parameters
    one = 4 + make_codec("int4").size(size)
    for _ in range(25):
        state = fed.run(1, state)
        oldest = min(state.accepted[client][0] - 1 if client in state.accepted else 0 for client in range(5))
        useful = [n for n in range(oldest + 1, state.round + 1) if (state.round - n + 1) * one < 4 * size]
        assert sorted(state.changes) == useful
    assert set(drop_old({1: b"ab", 2: b"c", 3: b"de"}, [1, 2], 100)) == {2, 3}
    assert set(drop_old({1: b"ab", 2: b"c", 3: b"de"}, [0], 2)) == {3}
    assert write_model("int4", 0, 3, torch.zeros(100), {3: b"de", 2: b"c"}, 0)[0] == "fp32"


def test_changes_as_long_as_the_whole_model_are_neither_kept_nor_sent():
    for length, few in ((8, False), (7, True)):  # and 4 bytes that say so: 12 are the whole model
        changes = {1: bytes(length)}
        assert set(drop_old(changes, [0], 3)) == ({1} if few else set())
        assert write_model("int4", 0, 1, torch.zeros(3), changes, 0)[0] == ("int4" if few else "fp32")


@pytest.mark.parametrize("codec", ["int8", "topk-20%+zlib"])
def test_an_abandoned_attempt_leaves_server_and_clients_as_they_were(codec):
    one, two = (Federation(broadcast_codec=codec, update_codec="topk-20%", quorum=3) for _ in range(2))
    start = one.run(3), two.run(3)
    before = frozen(start[0]), {client: settled(one, start[0], client) for client in range(5)}

    def failing(attempt, client, reply):
        if attempt == 0:
            assert before == (frozen(start[0]), {client: settled(one, start[0], client) for client in range(5)})
            return []
        return [reply]

    def never_reached(sampled, broadcast):
        if next(attempts):
            yield from two.local.exchange(sampled, broadcast)

    attempts = iter(range(5))
    first, report = one.server.run_round(start[0], one.exchange(failing))
    second, other = two.server.run_round(start[1], never_reached)
    assert report.attempts == other.attempts == 2
    assert frozen(first) == frozen(second)
    assert frozen(one.run(4, first)) == frozen(two.run(4, second))


def test_a_refused_update_leaves_the_client_with_what_it_held():
    fed = Federation(broadcast_codec="int8", update_codec="topk-20%")
    state = fed.run(4)
    victim = next(client for client in fed.server.sample(5, 0) if state.accepted.get(client, (0,))[0] > 1)
    before = settled(fed, state, victim)
    after, report = fed.server.run_round(
        state, fed.exchange(lambda attempt, client, reply: [reply[:-1] if client == victim else reply])
    )
    assert victim not in report.accepted
    assert settled(fed, after, victim) == before
    assert {"held", "held_round", "residual"} == before.keys()
    taken = report.accepted[0]
    assert settled(fed, after, taken)["held"] == bits(state.base_model)


def test_a_client_that_lost_its_state_says_so_and_is_then_served_as_if_it_were_new(starts):
    fed = Federation(broadcast_codec="int4", clients_per_round=5)
    state = fed.run(4)
    del fed.memories[3]
    state, report = fed.server.run_round(state, fed.exchange())
    assert [(entry.client, entry.reason) for entry in report.refused] == [(3, Reason.STATE)]
    assert 3 not in state.accepted
    assert report.accepted == [0, 1, 2, 4]
    starts.clear()
    expected = bits(state.base_model)
    state, report = fed.server.run_round(state, fed.exchange())
    assert report.accepted == [0, 1, 2, 3, 4]
    assert dict(starts) == dict.fromkeys(range(5), expected)


def test_where_all_are_needed_a_client_that_lost_its_state_is_served_in_the_next_attempt():
    """Else every attempt at the round would fail for the same reason."""
    fed = Federation(update_codec="topk-10%", clients_per_round=5, quorum=5)
    state = fed.run(3)
    del fed.memories[3]
    state, report = fed.server.run_round(state, fed.exchange())
    assert [(line.attempt, [entry.client for entry in line.refused]) for line in report.log] == [(0, [3]), (1, [])]
    assert report.accepted == [0, 1, 2, 3, 4]


def test_a_client_with_an_old_state_does_not_take_it_for_the_new_one():
    """As after restoring a backup: adding changes to another model would go unnoticed for ever."""
    fed = Federation(broadcast_codec="int4", clients_per_round=5)
    state = fed.run(3)
    backup = fed.memories[3]
    state = fed.run(2, state)
    with pytest.raises(Rejected) as refusal:
        fed.clients[3].answer(fed.server.broadcast(state, 0, 3), backup)
    assert refusal.value.reason == Reason.STATE


def test_changes_are_added_to_no_model_but_the_one_they_build_on():
    """Even where a memory claims to be of the right round."""
    fed = Federation(broadcast_codec="int4", clients_per_round=5)
    state = fed.run(3)
    header, payload = unpack(BroadcastHeader, fed.server.broadcast(state, 0, 3), 1 << 20)
    kept = fed.memories[3].settle(state.accepted[3])
    assert torch.equal(read_model(header, payload, fed.task, kept), state.base_model)
    for wrong in ({}, {**kept, "held_round": kept["held_round"] - 1}, {**kept, "held_round": kept["held_round"] + 1}):
        with pytest.raises(Rejected) as refusal:
            read_model(header, payload, fed.task, wrong)
        assert refusal.value.reason == Reason.STATE


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        (Reason.SIZE, lambda payload: payload[:-1]),
        (Reason.SIZE, lambda payload: payload + b"\0"),
        (Reason.SIZE, lambda payload: payload + payload),
        (Reason.SIZE, lambda payload: payload[: len(payload) // 2]),
        (Reason.SIZE, lambda payload: b""),
        (Reason.SIZE, lambda payload: struct.pack("<I", 2**32 - 1) + payload[4:]),
        (Reason.SIZE, lambda payload: struct.pack("<I", 0) + payload[4:]),
        (Reason.NON_FINITE, lambda payload: payload[:4] + b"\x80\x7f" + payload[6:]),
    ],
)
def test_changes_that_do_not_lead_to_the_round_are_refused(reason, spoil):
    fed = Federation(broadcast_codec="int4", clients_per_round=2)
    state = fed.run(5)
    client = next(c for c, (last, _) in state.accepted.items() if last == 4)
    header, payload = unpack(BroadcastHeader, fed.server.broadcast(state, 0, client), 1 << 20)
    assert header.codec == "int4"
    assert len(payload) == 2 * (4 + make_codec("int4").size(len(state.model)))
    for changes in ({}, {"codec": "int8"}):
        broken = pack(dataclasses.replace(header, **changes), spoil(bytes(payload)))
        with pytest.raises(Rejected) as refusal:
            fed.clients[client].answer(broken, fed.memories[client])
        assert refusal.value.reason == (Reason.CODEC if changes else reason)


@pytest.mark.parametrize(("agreed", "sent"), [("fp16", "fp32"), ("fp32", "fp16"), ("fp32", "fp32+zlib")])
def test_a_whole_model_comes_as_was_agreed_or_not_at_all(agreed, sent):
    fed = Federation(broadcast_codec=agreed)
    state = fed.run(1)
    header, _ = unpack(BroadcastHeader, fed.server.broadcast(state, 0, 1), 1 << 20)
    right, wrong = (make_codec(codec).encode(state.model, np.random.default_rng(0)) for codec in (agreed, sent))
    model = read_model(header, memoryview(right), fed.task, {})
    torch.testing.assert_close(model, state.model, rtol=1e-3, atol=1e-3)
    with pytest.raises(Rejected) as refusal:
        read_model(dataclasses.replace(header, codec=sent), memoryview(wrong), fed.task, {})
    assert refusal.value.reason == Reason.CODEC


def test_changes_go_well_with_server_optimizers_and_averages():
    """Each keeps vectors of its own; none sees another's."""
    settings = {"server_optimizer": "adam", "server_learning_rate": 0.1, "model_average": 0.5}
    fed = Federation(broadcast_codec="int8", **settings)
    state = fed.run(6)
    assert state.vectors.keys() == {"m", "v", "average", "held"}
    assert torch.equal(state.shown, state.vectors["average"])
    near, far = (float((state.base_model - other).norm()) for other in (state.model, fed.server.begin().model))
    assert near < far / 10


# A grid, whose changes add up exactly.


GRID = "grid-150%"


@pytest.mark.parametrize("missed", [1, 2, 16, 10_000])
def test_with_a_grid_a_sum_is_planned_with_a_bit_per_doubling_of_what_was_missed(missed):
    config = Federation(broadcast_codec=GRID).config.replace(num_clients=2 * missed, clients_per_round=2)
    task = Task(config, num_features=300, num_labels=50)
    size = task.stack.num_parameters
    planned = make_codec(GRID).size(size) + round(size * np.log2(missed) / 8)
    assert mean_payload(task) == min(planned, largest_payload(task))
    assert largest_payload(task) == 4 * size


def test_what_a_client_missed_is_sent_as_one_change_that_is_much_shorter_than_all_of_them():
    fed = Federation(broadcast_codec=GRID, clients_per_round=1, quorum=1)
    state, size = fed.server.begin(), fed.task.stack.num_parameters
    seen = set()
    for _ in range(40):
        (client,) = fed.server.sample(state.round + 1, 0)
        held = state.accepted[client][0] - 1 if client in state.accepted else 0
        header, payload = unpack(BroadcastHeader, fed.server.broadcast(state, 0, client), 4 * size)
        missed = range(held + 1, state.round + 1)
        if state.round:
            assert len(payload) < 4 * size
            kept = [len(state.changes[number]) for number in missed if number in state.changes]
            assert header.codec == (GRID if len(kept) == len(missed) else "since start")
            seen.add((header.codec, len(missed) > 2 and len(payload) < sum(kept)))
            assert len(missed) > 1 or bytes(payload) == state.changes[state.round]
        state, _ = fed.server.run_round(state, fed.exchange())
    assert (GRID, True) in seen


def test_the_order_in_which_changes_are_added_up_does_not_change_a_bit():
    """So that the sum of all that a client missed gives the bits that others hold."""
    sums, rng = make_codec(GRID).sums, np.random.default_rng(0)
    initial = torch.from_numpy(rng.normal(size=1000).astype(np.float32))
    model, held, changes, models = initial, initial, {}, [snap(initial)]
    for number in range(1, 30):
        step = rng.normal(size=1000) * 10 ** rng.uniform(-6, 3)
        model = (model + torch.from_numpy(step.astype(np.float32))).clamp(-1024, 1024)
        changes[number], held = sums.encode_change(model, held)
        models.append(held)
    assert float(held.abs().max()) > 900
    added = sums.add_up(changes, 29, 1000, range(29))
    assert added.keys() == set(range(29))
    for start, payload in added.items():
        assert bits(sums.add(models[start], memoryview(payload))) == bits(held)
    del changes[12]
    assert sums.add_up(changes, 29, 1000, [5, 11, 12, 20]).keys() == {12, 20}


def test_a_grid_holds_no_value_beyond_what_a_model_may_have():
    sums, held = make_codec(GRID).sums, torch.tensor([1023.25, -1023.25, 0.0, 5.0])
    payload, new = sums.encode_change(torch.tensor([1024.0, -1024.0, 0.0, -700.0]), held)
    assert float(new.abs().max()) <= 1024
    assert bits(sums.add(held, memoryview(payload))) == bits(new)
    with pytest.raises(ValueError, match="beyond 1024"):
        sums.add(new.sign() * 1024, memoryview(write_levels(new.sign().numpy(), -3)))


def test_a_sum_with_too_many_steps_is_sent_as_floats():
    fed = Federation(broadcast_codec=GRID)
    state = fed.run(3)
    far = state.base_model.clone()
    start = snap(fed.task.initial(fed.server.seeds.run))
    place = int(start.argmin())
    far[place], far[place - 1] = 1024.0, start[place - 1] + 2.0**-14
    assert start[place] < 0
    state = dataclasses.replace(state, vectors={**state.vectors, "held": far}, changes={}, accepted={})
    header, payload = unpack(BroadcastHeader, fed.server.broadcast(state, 0, 1), 1 << 20)
    assert header.codec == "fp32"
    assert bits(read_model(header, payload, fed.task, {})) == bits(far)


def test_a_client_that_is_too_far_behind_gets_all_since_the_start(starts):
    fed = Federation(broadcast_codec=GRID, clients_per_round=5)
    state = fed.run(6)
    assert {fed.server.broadcast(state, 0, client).find(b"since start") for client in range(5)} == {-1}
    state = dataclasses.replace(state, changes={})
    whole = unpack(BroadcastHeader, fed.server.broadcast(state, 0, 3), 1 << 20)[0]
    assert whole.codec == "since start"
    starts.clear()
    fed.run(1, state)
    assert {start for _, start in starts} == {bits(state.base_model)}


@pytest.mark.parametrize("codec", ["fp16", "int4", "grid-100%"])
def test_all_since_the_start_is_for_a_grid_only(codec):
    fed = Federation(broadcast_codec=GRID, clients_per_round=5)
    state = dataclasses.replace(fed.run(2), changes={})
    header, payload = unpack(BroadcastHeader, fed.server.broadcast(state, 0, 3), 1 << 20)
    other = Federation(broadcast_codec=codec, clients_per_round=5)
    if codec.startswith("grid"):
        assert torch.equal(read_model(header, payload, other.task, {}), state.base_model)
        return
    with pytest.raises(Rejected) as refusal:
        read_model(header, payload, other.task, {})
    assert refusal.value.reason == Reason.CODEC


def test_damaged_sums_are_refused_or_give_a_model_that_is_finite():
    fed = Federation(broadcast_codec=GRID, clients_per_round=2)
    state, source = fed.run(5), np.random.default_rng(0)
    client = next(c for c, (last, _) in state.accepted.items() if last == 4)
    header, payload = unpack(BroadcastHeader, fed.server.broadcast(state, 0, client), 1 << 20)
    kept, reasons = fed.memories[client].settle(state.accepted[client]), set()
    for trial in range(300):
        broken = bytearray(payload)
        if trial % 3 == 0:
            broken = broken[: source.integers(len(broken))]
        else:
            for bit in source.integers(0, 8 * len(broken), 1 + trial % 4).tolist():
                broken[bit // 8] ^= 1 << bit % 8
        if broken == payload:
            continue
        for codec in (GRID, "since start"):
            try:
                model = read_model(dataclasses.replace(header, codec=codec), memoryview(broken), fed.task, kept)
                assert float(model.abs().max()) <= 1024
            except Rejected as refusal:
                reasons.add(refusal.reason)
    assert reasons == {Reason.SIZE}
    for spoilt, reason in ((b"\xff", Reason.NON_FINITE), (b"", Reason.SIZE)):
        with pytest.raises(Rejected) as refusal:
            read_model(header, memoryview(spoilt), fed.task, kept)
        assert refusal.value.reason == reason


def test_snapping_moves_nothing_that_clients_hold():
    values = torch.from_numpy((np.random.default_rng(0).uniform(-1024, 1024, 1000)).astype(np.float32))
    snapped = snap(values)
    assert torch.equal(snap(snapped), snapped)
    assert float((snapped - values).abs().max()) <= 2.0**-15
