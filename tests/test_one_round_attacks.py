"""One round under attack: messages that lie, clients whose sums no points have, and runs that are killed."""

import dataclasses
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, triu

from fedmlh import Config, run
from fedmlh.data.source import open_dataset
from fedmlh.engines.local import live_in_process
from fedmlh.engines.replay import read_log, replay
from fedmlh.entropy.coding import encode
from fedmlh.entropy.vectors import by_size, encode_sparse
from fedmlh.errors import UserError
from fedmlh.federated.messages import (
    FRAME,
    MAX_HEADER,
    Reason,
    Rejected,
    RequestHeader,
    StatisticsHeader,
    pack,
    unpack,
)
from fedmlh.federated.task import Task
from fedmlh.oneround import wire
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import COUNTS, SUMS, Respondent
from fedmlh.oneround.points import most_square, round_points
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.oneround.wire import decode_sums, encode_sums
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.journal import Journal
from fedmlh.runs.one_round.suspects import is_possible

ONCE = Config.load("one-round").replace(
    device="cpu",
    synthetic_points=160,
    synthetic_features=80,
    synthetic_labels=30,
    num_clients=6,
    clients_per_round=1,
    top_k=(1, 3),
    ridge=1.0,
    count_power=0.1,
)
BITS = ONCE.point_bits


@pytest.fixture(scope="module")
def data():
    return open_dataset(ONCE)


class Door:
    """A server, one honest client of it, and what that client says."""

    def __init__(self, data, labels):
        config = ONCE.replace(sizes="given", feature_slots=8, num_tables=3, num_buckets=9, **labels)
        self.task = Task(config, data.num_features, data.num_labels)
        self.client = Respondent(self.task, 2, data.train.X[:12], data.train.Y[:12], data.labels)
        self.desk = Desk(self.task, {1: 12, 2: 14})
        self.terms = Terms(Counts.of(data.train.X), 8, weigh=True)
        self.num_slots = self.terms.slots(self.desk.seeds).count
        self.counts, self.sums = (
            self.client.reply(self.desk.request(part, 2, payload))
            for part, payload in ((COUNTS, b""), (SUMS, self.terms.encode()))
        )

    def read(self, message, client=2):
        return self.desk.read_sums(client, message, self.terms, self.num_slots)

    def open(self, message):
        header, payload = unpack(StatisticsHeader, message, 2**20)
        return header, bytes(payload)


@pytest.fixture(scope="module", params=[{"label_map": "identity"}, {"label_map": "murmur3", "label_key": "name"}])
def door(request, data):
    return Door(data, request.param)


def refusal(read, *arguments, **changes):
    with pytest.raises(Rejected) as refused:
        read(*arguments, **changes)
    return refused.value.reason


def test_honest_statistics_are_let_in(door):
    honest = door.client.sum(door.terms, door.desk.seeds)
    found = door.read(door.sums)
    assert (found.gram != honest.gram).nnz == (found.cross != honest.cross).nnz == 0
    assert found.points == 12
    assert door.desk.read_counts(2, door.counts).points == 12


def test_statistics_for_another_purpose_are_refused_by_reason(door):
    header, payload = door.open(door.sums)

    def changed(**changes):
        return pack(dataclasses.replace(header, **changes), payload)

    assert refusal(door.read, changed(run="0" * 16)) == Reason.RUN
    assert refusal(door.read, changed(config="0" * 32)) == Reason.CONFIG
    assert refusal(door.read, changed(terms="0" * 32)) == Reason.CONFIG
    assert refusal(door.read, changed(terms="")) == Reason.CONFIG
    assert refusal(door.read, changed(client=1)) == Reason.CLIENT
    assert refusal(door.read, door.sums, 1) == Reason.CLIENT
    assert refusal(door.read, changed(client=7), 7) == Reason.CLIENT
    assert refusal(door.read, changed(part="counts")) == Reason.ROUND
    assert refusal(door.read, changed(part="x" * 64)) == Reason.ROUND
    assert refusal(door.read, changed(examples=0)) == Reason.EXAMPLES
    assert refusal(door.read, changed(examples=15)) == Reason.EXAMPLES
    assert refusal(door.read, changed(examples=13)) == Reason.MALFORMED  # the payload says 12
    assert refusal(door.read, door.counts) == Reason.CONFIG
    assert refusal(door.read, door.sums[:-1]) == Reason.CORRUPT
    assert refusal(door.read, b"") == Reason.MALFORMED
    assert (
        refusal(door.read, bytes(FRAME + MAX_HEADER + door.desk.most_bytes(2, door.num_slots) + 1)) == Reason.TOO_LARGE
    )
    other = Terms(door.terms.counts, 7, weigh=True)
    assert refusal(door.desk.read_sums, 2, door.sums, other, 7) == Reason.CONFIG


def test_counts_that_lie_are_refused_by_reason(door):
    header, payload = door.open(door.counts)
    frequencies = door.client.X.getnnz(axis=0).astype(np.int64)

    def read(content, **changes):
        return door.desk.read_counts(2, pack(dataclasses.replace(header, **changes), content))

    assert refusal(read, payload, examples=13) == Reason.EXAMPLES
    assert refusal(read, payload + b"\0") == Reason.MALFORMED
    assert refusal(read, payload[:-1]) == Reason.MALFORMED
    assert refusal(read, Counts(12, frequencies + 13 * (frequencies > 0)).encode()) == Reason.MALFORMED
    assert refusal(read, Counts(12, np.append(frequencies, 1)).encode()) == Reason.MALFORMED
    assert refusal(read, Counts(14, frequencies).encode()) == Reason.EXAMPLES
    assert refusal(read, Counts(2**40, frequencies).encode(), examples=12) == Reason.MALFORMED
    rng = np.random.default_rng(0)
    for _ in range(300):
        content = mutated(payload, rng)
        try:
            counts = read(content)
        except Rejected:
            continue
        assert counts.points == 12
        assert 0 <= counts.frequencies.min() <= counts.frequencies.max() <= 12


def test_a_client_refuses_requests_that_are_not_for_it_by_reason(door):
    header, payload = unpack(RequestHeader, door.desk.request(SUMS, 2, door.terms.encode()), 2**20)

    def ask(content=payload, **changes):
        return door.client.reply(pack(dataclasses.replace(header, **changes), content))

    assert refusal(ask, client=1) == Reason.CLIENT
    assert refusal(ask, config="0" * 32) == Reason.CONFIG
    assert refusal(ask, part="points") == Reason.MALFORMED
    assert refusal(ask, feature_seeds=[]) == Reason.RANGE
    assert refusal(ask, feature_seeds=[2**32]) == Reason.RANGE
    assert refusal(ask, b"") == Reason.MALFORMED
    rng = np.random.default_rng(0)
    reasons = set()
    for _ in range(100):
        try:
            assert isinstance(ask(mutated(bytes(payload), rng)), bytes)
        except Rejected as refused:
            reasons.add(refused.reason)
    assert reasons == {Reason.MALFORMED}


# A thousand messages that lie.


def mutated(payload, rng):
    """Change, insert, cut out or cut off some bytes."""
    content = bytearray(payload)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, max(1, len(content))))
        match rng.integers(0, 6):
            case 0 | 1:
                content[at : at + 1] = bytes([content[at] ^ 1 << int(rng.integers(0, 8))]) if content else b""
            case 2:
                content[at : at + 1] = rng.bytes(1)
            case 3:
                content[at:at] = rng.bytes(int(rng.integers(1, 5)))
            case 4:
                del content[at : at + int(rng.integers(1, 5))]
            case 5:
                content[at:] = content[at:][:: int(rng.choice([-1, 1]))]
    return bytes(content)


def twisted(sums, rng):
    """Change some numbers of honest sums, by a little or by a lot."""
    gram, cross = (matrix.toarray() for matrix in (sums.gram, sums.cross))
    points = sums.points
    for _ in range(int(rng.integers(1, 4))):
        amount = int(rng.choice([1, 30, 10**4, 10**9, 2**55])) * int(rng.choice([-1, 1]))
        slot, other = sorted(rng.integers(1, len(gram), 2).tolist())
        match rng.integers(0, 5):
            case 0:
                gram[slot, slot] = abs(gram[slot, slot] + amount)
            case 1:
                gram[0, slot] += (amount >> BITS) << BITS
            case 2:
                gram[slot, other] += amount if slot != other else 0
            case 3:
                cross[slot, rng.integers(0, cross.shape[1])] += amount
            case 4:
                cross[0, rng.integers(0, cross.shape[1])] = abs(amount) % 2**55 << BITS
    return Sums(points, csr_matrix(gram), csr_matrix(cross))


def check_bounds(sums, points, most):
    """Check what holds for the sums of any points, as far as two numbers at a time can say."""
    gram = (sums.gram + triu(sums.gram, 1).T).toarray().astype(object)
    cross = sums.cross.toarray().astype(object)
    squares, counts, one = gram.diagonal()[1:], cross[0] >> BITS, 4**BITS
    assert sums.points == points
    assert gram[0, 0] == points * one
    assert (squares >= 0).all()
    assert squares.sum() <= points * most_square(BITS)
    assert (gram[0, 1:] ** 2 <= points * one * squares).all()
    slack = 1 + 1e-8
    assert (gram[1:, 1:] ** 2 <= np.outer(squares, squares) * slack).all()
    assert (counts >= 0).all()
    assert (counts << BITS == cross[0]).all()
    assert (counts <= points * most).all()
    assert (cross[1:] ** 2 <= np.outer(squares, counts if most == 1 else counts**2) * slack).all()


def test_a_thousand_messages_that_lie_are_refused_or_within_bounds(door):  # 500 for each kind of label
    header, payload = door.open(door.sums)
    honest, rng = door.read(door.sums), np.random.default_rng(1)
    most = 1 if door.task.identity else door.task.num_labels
    check_bounds(honest, 12, most)
    taken, reasons = 0, set()
    for number in range(500):
        content = mutated(payload, rng) if number % 5 else encode_sums(twisted(honest, rng), BITS)
        try:
            found = door.read(pack(header, content))
        except Rejected as refused:
            reasons.add(refused.reason)
            continue
        check_bounds(found, 12, most)
        taken += 1
    assert reasons == {Reason.MALFORMED}
    assert 5 < taken < 100  # neither is everything refused, nor anything taken


@pytest.mark.parametrize("where", ["square", "square and trace", "total", "pair", "count", "cross"])
def test_each_bound_is_kept_to_the_last_number(door, where):
    """The largest number that two slots or a slot and a label can have is taken, and one more is not."""
    header, _ = door.open(door.sums)
    most = 1 if door.task.identity else door.task.num_labels
    size, points, one = door.num_slots + 1, 12, 2**BITS
    honest_count = 9
    for more in (0, 1):
        gram, cross = np.zeros((size, size), np.int64), np.zeros((size, door.desk.num_outputs), np.int64)
        gram[0, 0], gram[1, 1], gram[2, 2], cross[0, 0] = points * one**2, 3 * 400, 3 * 900, honest_count * one
        match where:
            case "square":
                gram[1, 1] = points * most_square(BITS) - gram[2, 2] + more
            case "square and trace":
                gram[np.arange(1, 4), np.arange(1, 4)] = points * most_square(BITS) // 3
                gram[4, 4] = more
            case "total":
                gram[0, 1] = -(120 + more) * one  # of 12 points with the squares 1200
            case "pair":
                gram[1, 2] = -1800 - more  # √(1200 · 2700)
            case "count":
                cross[0, 0] = (points * most + more) * one
            case "cross":
                gram[1, 1], cross[0, 0] = 900, 4 * one
                cross[1, 0] = (60 if most == 1 else 120) + more
        message = pack(header, encode_sums(Sums(points, csr_matrix(gram), csr_matrix(cross)), BITS))
        if more:
            assert refusal(door.read, message) == Reason.MALFORMED
        else:
            assert np.array_equal(door.read(message).gram.toarray(), gram)
            assert np.array_equal(door.read(message).cross.toarray(), cross)


def peak_of(payload, points, num_slots, num_outputs):
    """Return the memory that reading takes, and why the payload is refused; None if it is not."""
    problem = None
    tracemalloc.start()
    try:
        decode_sums(memoryview(payload), points, num_slots, num_outputs, BITS)
    except ValueError as refused:
        problem = str(refused)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, problem


def bound(payload, num_slots, num_outputs):
    """Check what docs/threats.md promises."""
    return 2500 * len(payload) + 128 * (num_slots + num_outputs) + 48 * 2**20


def full(num_slots, num_outputs, share):
    """Return sums in which nothing is 0: all cells of pairs are equal, and a share of the others is not."""
    points, place = 4000, np.arange(1, num_slots + 1)
    gram = np.triu(np.ones((num_slots + 1, num_slots + 1), np.int64))
    gram[0], gram[place, place], gram[0, 0] = 32, 4, points * 4**BITS
    cross = np.random.default_rng(0).random((num_slots + 1, num_outputs)) < share
    cross = cross.astype(np.int64) + 1
    cross[0] = 4 * 2**BITS
    return encode_sums(Sums(points, csr_matrix(gram), csr_matrix(cross)), BITS)


def claim(num_slots, num_outputs, part):
    """Return the beginning of a message that says, as shortly as possible, that no cell is 0."""
    ones, counts = np.ones(num_slots, np.int64), np.ones(num_outputs, np.int64)
    slots, labels = wire._order_slots(ones, ones), wire._order_labels(counts)
    numbers = encode_sparse(ones) + encode(2 * ones, by_size(ones)) + encode_sparse(counts)
    head = wire._HEAD.pack(4000, num_slots, num_outputs, BITS) + numbers
    none = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    if part == "slots":
        return head + b"\0"
    if part == "labels":
        cells = wire._Cells.lay_out(slots, slots, True)
        head += b"\0" + encode(0 * cells.widths, cells.contexts) + encode(*none) + encode(*none)
    cells = wire._Cells.lay_out(slots, slots if part == "pairs" else labels, part == "pairs")
    return head + b"\0" + encode(cells.widths, cells.contexts) + encode(*none)


@pytest.mark.parametrize(
    ("part", "num_slots", "num_outputs", "cells"),
    [("pairs", 6000, 10, 6000 * 5999 // 2), ("labels", 1000, 16000, 16_000_000), ("slots", 300_000, 10, 300_000 * 19)],
)
def test_a_small_message_that_claims_to_be_huge_takes_little_memory(part, num_slots, num_outputs, cells):
    payload = claim(num_slots, num_outputs, part)
    # As many bytes more as the coder needs for this many numbers.
    payload += bytes(cells // 107 + 100)
    peak, problem = peak_of(payload, 4000, num_slots, num_outputs)
    assert f"claim {cells:,} cells, more than sums over points have" in problem
    assert peak < bound(payload, num_slots, num_outputs)
    assert peak < 160 * (num_slots + num_outputs) + 8 * 2**20  # nothing was laid out
    # Nor do vectors that claim more numbers than their bytes can hold, or than there are slots.
    for count in (2**32 - 1, num_slots, num_slots + 1):
        head = wire._HEAD.pack(4000, num_slots, num_outputs, BITS)
        peak, problem = peak_of(head + count.to_bytes(4, "little") + bytes(30), 4000, num_slots, num_outputs)
        assert problem is not None
        assert peak < 2**20


@pytest.mark.parametrize(("num_slots", "num_outputs", "share"), [(700, 370, 0), (2000, 1000, 0.085)])
def test_the_most_that_a_message_may_claim_takes_as_much_memory_as_promised(num_slots, num_outputs, share):
    payload = full(num_slots, num_outputs, share)
    cells = num_slots * (num_slots - 1) // 2 + num_slots * num_outputs
    peak, problem = peak_of(payload, 4000, num_slots, num_outputs)
    assert problem is None
    assert cells > 25 * len(payload)
    assert peak < bound(payload, num_slots, num_outputs) < 2.5 * peak
    # With a little less to say, the same cells are too many for the bytes.
    if share:
        assert "more than sums over points have" in peak_of(full(num_slots, num_outputs, 0.08), 4000, 2000, 1000)[1]


def test_both_tables_together_have_no_more_cells_than_there_may_be():
    payload, cells = full(30, 20, 0.5), 30 * 29 // 2 + 30 * 20
    decode_sums(memoryview(payload), 4000, 30, 20, BITS, cells=cells)
    with pytest.raises(ValueError, match="more cells than there is room for"):
        decode_sums(memoryview(payload), 4000, 30, 20, BITS, cells=cells - 1)


@pytest.mark.parametrize("length", [3, 30, 300])
def test_honest_sums_are_far_from_what_a_message_may_claim(length):
    """Points whose values are all equal say least: many cells per byte."""
    rng, weights = np.random.default_rng(0), 1.0 / np.arange(10, 2010)
    rows = [rng.choice(2000, length, replace=False, p=weights / weights.sum()) for _ in range(100)]
    X = csr_matrix((np.ones(100 * length), np.concatenate(rows), np.arange(101) * length), shape=(100, 2000))
    X.sort_indices()
    Y = csr_matrix((np.ones(100), rng.integers(0, 20, 100), np.arange(101)), shape=(100, 20))
    points = round_points(csr_matrix(X / np.sqrt(length)), BITS)
    payload, claims = encode_sums(Sums.of(points, Y), BITS), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_check_claim", lambda count, rest: claims.append(count / len(rest)))
        decode_sums(memoryview(payload), 100, 2000, 20, BITS)
    assert len(claims) == 4
    assert max(claims) <= wire._PER_BYTE / 3


# A client whose sums are possible in pairs, but of no points.


class Liars:
    """An engine in which some clients send what others make of their sums."""

    def __init__(self, **lies):
        self.lies = {int(name[1:]): lie for name, lie in lies.items()}

    def __call__(self, population, workers):
        self.inner = live_in_process(population, workers)
        return self

    def __enter__(self):
        self.clients = self.inner.__enter__()
        return self

    def __exit__(self, *error):
        return self.inner.__exit__(*error)

    def exchange(self, clients, post):
        for client, reply in self.clients.exchange(clients, post):
            if client in self.lies and post.place[1] == 1:
                reply = self.lies[client](reply)
            yield client, reply


def lie(reply):
    """Claim three slots that agree in pairs and cannot all agree, each pair as much as the squares allow."""
    header, payload = unpack(StatisticsHeader, reply, 2**20)
    _, num_slots, num_outputs, _ = wire._HEAD.unpack_from(payload)
    honest = decode_sums(payload, header.examples, num_slots, num_outputs, BITS)
    gram, cross = (matrix.tolil() for matrix in (honest.gram, honest.cross))
    gram[0, 1:], gram[1:, :], cross[1:, :] = 0, 0, 0
    square = header.examples * most_square(BITS) // 3
    for one, two, sign in ((-3, -2, 1), (-2, -1, 1), (-3, -1, -1)):
        gram[one, one] = gram[two, two] = square
        gram[one, two] = sign * square
    sums = Sums(header.examples, csr_matrix(gram, dtype=np.int64), csr_matrix(cross, dtype=np.int64))
    assert is_possible(honest)
    assert not is_possible(sums)
    return pack(header, encode_sums(sums, BITS))


def refuse(reply):
    return Rejected(Reason.RANGE, "no points have these sums")


def weights_of(run_):
    return (run_.folder / "model" / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("chosen", [{}, {"ridge": 0.0, "count_power": -1.0}])
def test_a_client_whose_sums_no_points_have_is_found_and_left_out(data, tmp_path, chosen):
    config, told = ONCE.replace(**chosen), []
    ended = run(config, data, tmp_path / "run", engine=Liars(c3=lie, c5=lie), tell=told.append)
    without = run(config, data, tmp_path / "without", engine=Liars(c3=refuse, c5=refuse))
    assert weights_of(ended) == weights_of(without)
    for folder in (ended.folder, without.folder):
        record = RunFolder(folder).read_metrics()[0]
        assert record["clients"] == [0, 1, 2, 4]
        assert [(entry["attempt"], entry["client"], entry["reason"]) for entry in record["refused"]] == [
            (1, 3, "out of range"),
            (1, 5, "out of range"),
        ]
    assert sum("no points have its sums" in line for line in told) == 2
    assert ended.summary["training_points"] == without.summary["training_points"] < 144
    # The same happens again when the run is resumed, and its log is that of a run without them.
    assert weights_of(run(config, data, ended.folder, resume=True)) == weights_of(without)
    assert weights_of(replay(*read_log(RunFolder(ended.folder)), data, tmp_path / "again")) == weights_of(without)


def test_too_few_clients_that_are_left_end_the_run(data, tmp_path):
    config = ONCE.replace(quorum=6, clients_per_round=6)
    with pytest.raises(UserError, match=r"only 5 clients sent sums that can be used, .*client 3: out of range"):
        run(config, data, tmp_path / "run", engine=Liars(c3=lie))
    assert not (tmp_path / "run" / "model").exists()


def test_sums_without_a_solution_that_nobody_is_to_blame_for_end_the_run(data, tmp_path):
    config = ONCE.replace(synthetic_points=40, ridge=1e-30, num_clients=3)
    with pytest.raises(UserError, match="set a larger ridge"):
        run(config, open_dataset(config), tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_no_honest_client_is_suspected():
    rng = np.random.default_rng(0)
    for number in range(30):
        num_points, num_slots = rng.integers(1, 40, 2)
        X = rng.integers(-40, 40, (num_points, num_slots + 1)) * (rng.random((num_points, num_slots + 1)) < 0.3)
        X[:, 0] = 32
        X[:, -1] *= 10**5 if number % 2 else 1  # slots of very different sizes
        sums = Sums.of(csr_matrix(X), csr_matrix((num_points, 1), dtype=np.int64))
        assert is_possible(sums)
        if num_slots >= 2:
            worst = sums.gram.tolil()
            worst[1, 1] += 1
            worst[1, 2] = 3 * int(np.sqrt(worst[1, 1] * max(1, worst[2, 2]))) + 3
            worst[2, 2] = max(1, worst[2, 2])
            assert not is_possible(Sums(int(num_points), csr_matrix(worst), sums.cross))


# Killed.


def kill_after(most):
    """Have this process kill itself when its journals hold this many bytes, which may be in the middle of a message."""
    append, written = Journal.append, 0

    def append_some(journal, client, message):
        nonlocal written
        append(journal, client, message)
        written += 12 + len(message)
        if written >= most:
            os.truncate(journal.path, journal.path.stat().st_size - (written - most))
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.append = append_some


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(10))
def test_a_run_that_is_killed_continues_to_the_same_bytes(data, tmp_path, moment):
    whole = run(ONCE, data, tmp_path / "whole", workers=1)
    journals = [Path("checkpoint") / f"{part}.bin" for part in (COUNTS, SUMS)]
    most = sum((whole.folder / name).stat().st_size for name in journals)
    out = tmp_path / "run"
    # From the first byte of the first reply to the last one of the last.
    command = [sys.executable, __file__, out, str(max(1, most * moment // 9))]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    held = {client for name in journals for client in parse(out / name)}
    asked = []

    class Noting(Liars):
        def exchange(self, clients, post):
            asked.extend((post.place[1], client) for client in clients if post.place[1] < 2)  # then comes the result
            return super().exchange(clients, post)

    resumed = run(ONCE, data, out, engine=Noting(), resume=True)
    assert weights_of(resumed) == weights_of(whole)
    assert sorted(asked) == sorted({(part, client) for part in (0, 1) for client in range(6)} - held)


def parse(path):
    """Return part and client of every whole message of a journal."""
    content, found = path.read_bytes() if path.exists() else b"", []
    while len(content) >= 12:
        client, length = int.from_bytes(content[:4], "little"), int.from_bytes(content[4:12], "little")
        if len(content) < 12 + length:
            break
        found.append((int(path.stem == SUMS), client))
        content = content[12 + length :]
    return found


if __name__ == "__main__":
    kill_after(int(sys.argv[2]))
    run(ONCE, open_dataset(ONCE), sys.argv[1], workers=1)
