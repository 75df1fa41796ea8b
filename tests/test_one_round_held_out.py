"""λ from held-out sums, where the server has no points: the same for every partition, and nobody can lie far."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.readers.formats import load
from fedmlh.engines.local import live_in_process
from fedmlh.engines.replay import read_log, replay
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason, Rejected, StatisticsHeader, pack, unpack
from fedmlh.federated.task import Task
from fedmlh.oneround import holding
from fedmlh.oneround.choose import RIDGES, Problem
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import HELD_OUT, SUMS, Respondent, spread
from fedmlh.oneround.holding import Extent, choose_ridge, is_held_out, measure_error, pick_outputs
from fedmlh.oneround.points import round_points
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.oneround.wire import decode_sums, encode_sums
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.one_round import held_out
from fedmlh.runs.one_round.suspects import is_possible
from once import DATA, VARIANTS, differing, left

BIBTEX = Path(__file__).parents[2] / "shared" / "data" / "Bibtex"
BASE = VARIANTS["labels, held out"]
CPU = torch.device("cpu")
#: Parts of the exchange as the log counts them.
ALL, PART, RESULT = 1, 2, 3
WITH_HELD_OUT = [name for name in VARIANTS if "held out" in name]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "weights.safetensors").read_bytes()


# Which points are held out.


def plain_mix(number: int) -> int:
    most = 2**64
    number = (number + 0x9E3779B97F4A7C15) % most
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % most
    number = (number ^ number >> 27) * 0x94D049BB133111EB % most
    return number ^ number >> 31


def test_one_point_in_ten_is_held_out_by_what_it_holds() -> None:
    """As plain whole numbers say, in any order and company; a changed value or feature changes the lot."""
    rng = np.random.default_rng(0)
    dense = (rng.random((6000, 40)) < 0.2) * rng.exponential(1, (6000, 40)).astype(np.float32)
    dense[:5] = 0
    X = csr_matrix(dense.astype(np.float32))
    found = is_held_out(X)
    for row in range(200):
        total = 0
        for column, value in zip(X[row].indices.tolist(), X[row].data, strict=True):
            total += plain_mix(column << 32 | int(value.view(np.uint32)))
        assert found[row] == (plain_mix(total % 2**64) < 2**64 // 10)
    assert 0.09 < found.mean() < 0.11
    order = rng.permutation(6000)
    assert np.array_equal(is_held_out(X[order]), found[order])
    assert np.array_equal(is_held_out(X[7:9]), found[7:9])
    for changed in (X * np.float32(1 + 2**-20), csr_matrix((X.data, X.indices + 1, X.indptr), shape=(6000, 41))):
        assert 0.15 < (is_held_out(changed.astype(np.float32)) != found).mean() < 0.21
    assert is_held_out(X[:0]).tolist() == []


# λ by the squared error on sums.


def parts(config: Config, data: Dataset) -> tuple[Any, ...]:
    """Return what a run learns about points: X and outputs of those to fit and of those held out."""
    task = Task(config, data.num_features, data.num_labels)
    seeds = task.draw_seeds()
    terms = Terms(Counts.of(data.train.X), config.feature_slots, weigh=False)
    X = round_points(terms.slots(seeds).apply(data.train.X), config.point_bits)
    Y = data.train.Y.astype(np.int64)
    if not task.identity:
        Y = Y @ spread(task.label_map(seeds, data.labels.keys))
    held = is_held_out(data.train.X)
    return X[~held], Y[~held], X[held], Y[held]


def errors(config: Config, data: Dataset) -> dict[float, float]:
    """Return the squared error on held-out points of the solution for the others, by another library."""
    X, Y, held_X, held_Y = (part.toarray() for part in parts(config, data))
    one = 2.0**config.point_bits
    found = {}
    for ridge in RIDGES:
        model = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky").fit(X / one, Y.astype(float))
        found[ridge] = float(((held_Y - model.predict(held_X / one)) ** 2).sum())
    return found


@pytest.mark.parametrize("name", WITH_HELD_OUT)
def test_the_squared_error_of_sums_is_that_of_their_points(name: str) -> None:
    config = VARIANTS[name]
    X, Y, held_X, held_Y = parts(config, DATA)
    bits, one = config.point_bits, 2.0**config.point_bits
    fit, held = (Problem.of(Sums.of(*points), bits, None) for points in ((X, Y), (held_X, held_Y)))
    expected = errors(config, DATA)
    for ridge in RIDGES:
        solution = np.linalg.solve(fit.system(ridge).matrix.toarray(), fit.cross.toarray())
        found = measure_error(held, solution, held.cross.toarray()) + float(held_Y.multiply(held_Y).sum())
        assert found == pytest.approx(expected[ridge], rel=1e-9)
        assert found == pytest.approx(((held_Y.toarray() - held_X.toarray() / one @ solution) ** 2).sum())
    assert choose_ridge(fit, held, CPU) == min(expected, key=lambda ridge: expected[ridge])


def test_of_many_slots_the_first_choose_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VARIANTS[WITH_HELD_OUT[0]]
    X, Y, held_X, held_Y = parts(config, DATA)
    bits = config.point_bits

    def pose(most: int) -> list[Problem]:
        return [
            Problem.of(Sums.of(csr_matrix(points[:, : most + 1]), labels), bits, None)
            for points, labels in ((X, Y), (held_X, held_Y))
        ]

    chosen = {most: choose_ridge(*pose(most), CPU) for most in (2, 5, 20, X.shape[1] - 1)}
    assert len(set(chosen.values())) > 1
    for most, ridge in chosen.items():
        monkeypatch.setattr(holding, "MOST_CLIMBED", most)
        assert choose_ridge(*pose(X.shape[1] - 1), CPU) == ridge


def test_outputs_are_spread_from_the_most_frequent_to_the_rarest(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.random.default_rng(0).permutation(np.arange(1, 1001))
    found = pick_outputs(counts)
    assert len(found) == len(set(found.tolist())) == 256
    assert {counts.argmax(), counts.argmin()} <= set(found.tolist())
    assert np.abs(np.sort(counts[found]) - np.linspace(1, 1000, 256)).max() < 2
    assert sorted(pick_outputs(counts[:7]).tolist()) == list(range(7))


# Runs.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("held-out")
    return {name: run(VARIANTS[name], DATA, folder / name).folder for name in WITH_HELD_OUT}


@pytest.mark.parametrize("name", WITH_HELD_OUT)
def test_lambda_is_the_best_on_the_held_out_points_and_all_points_are_in_the_model(
    name: str, finished: dict[str, Path], tmp_path: Path
) -> None:
    summary, expected = RunFolder(finished[name]).read_summary(), errors(VARIANTS[name], DATA)
    assert summary["ridge"] == min(expected, key=lambda ridge: expected[ridge]) != 1
    assert (summary["ridge_from"], summary["count_power"]) == ("held-out sums", holding.POWER)
    assert summary["training_points"] == len(DATA.train)
    given = VARIANTS[name].replace(ridge=summary["ridge"], count_power=holding.POWER)
    told = run(given, DATA, tmp_path / "given")
    assert weights(told.folder) == weights(finished[name])
    assert told.summary["ridge_from"] == "set"
    assert "validation" not in summary
    (record,) = RunFolder(finished[name]).read_metrics()
    assert record["test"]["precision"] == summary["precision"]


@pytest.mark.parametrize("name", WITH_HELD_OUT)
@pytest.mark.parametrize("number", [1, 10, 100])
@pytest.mark.parametrize("partition", [{"partition": "iid"}, {"partition": "dirichlet", "dirichlet_alpha": 0.05}])
def test_whoever_holds_which_point_lambda_and_weights_are_the_same(
    name: str, number: int, partition: dict[str, Any], finished: dict[str, Path], tmp_path: Path
) -> None:
    config = VARIANTS[name].replace(num_clients=number, clients_per_round=1, **partition)
    again = run(config, DATA, tmp_path / "run")
    assert weights(again.folder) == weights(finished[name])
    assert again.summary["ridge"] == RunFolder(finished[name]).read_summary()["ridge"]


Change = Callable[[int, int, bytes], bytes | Rejected]


class Post:
    """An engine that notes what is asked and answered, and may change answers; or the process ends before one."""

    def __init__(self, change: Change = lambda part, client, reply: reply, life: float = float("inf")) -> None:
        self.change, self.life = change, life
        self.asked: list[tuple[int, int]] = []
        self.sent, self.answered = 0, 0

    @contextmanager
    def __call__(self, population: Any, workers: int | None) -> Iterator["Post"]:
        with live_in_process(population, 1) as self.clients:
            yield self

    def exchange(self, clients: Any, post: Any) -> Iterator[tuple[int, bytes | Rejected]]:
        part = post.place[1]

        def ask(client: int) -> bytes:
            request: bytes = post(client)
            self.asked.append((part, client))
            self.sent += len(request)
            return request

        for client, reply in self.clients.exchange(clients, ask):
            if self.life == 0:
                raise KeyboardInterrupt
            self.life -= 1
            changed = self.change(part, client, reply) if isinstance(reply, bytes) else reply
            self.answered += len(changed) if isinstance(changed, bytes) else 0
            yield client, changed


def test_the_second_message_is_asked_for_once_and_counted(tmp_path: Path) -> None:
    engine = Post()
    ended = run(BASE, DATA, tmp_path / "run", engine=engine)
    clients = range(BASE.num_clients)
    assert sorted(engine.asked) == [(part, client) for part in (0, ALL, PART, RESULT) for client in clients]
    assert (ended.summary["bytes_up"], ended.summary["bytes_down"]) == (engine.answered, engine.sent)
    assert [line.attempt for line in RunFolder(ended.folder).read_participation()] == [0, ALL, PART, RESULT]
    # Where λ is set or the server has points, nobody is asked for it.
    for config in (BASE.replace(ridge=3.0), VARIANTS["labels"]):
        engine = Post()
        run(config, DATA, tmp_path / f"{config.ridge}", engine=engine)
        assert sorted(engine.asked) == [(part, client) for part in (0, 1, 2) for client in clients]
        assert not (tmp_path / f"{config.ridge}" / "checkpoint" / "held-out.bin").exists()


@pytest.mark.parametrize(
    "life", [6, 12, 15, 18]
)  # after the counts, after the sums, amid held-out sums, before the end
def test_a_run_that_was_stopped_asks_only_for_what_is_missing(
    life: int, finished: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(BASE, DATA, folder, engine=Post(life=life))
    engine = Post()
    run(BASE, DATA, folder, engine=engine, resume=True)
    assert len(engine.asked) == 4 * BASE.num_clients - life
    assert {part for part, _ in engine.asked} == set(range(life // BASE.num_clients, 4))
    assert differing(folder, finished["labels, held out"]) == []


def drop(part: int, *clients: int) -> Change:
    return lambda asked, client, reply: (
        Rejected(Reason.FAILED, "no power") if asked == part and client in clients else reply
    )


def test_who_sends_no_held_out_sums_is_named_and_its_points_count_all_the_same(
    finished: dict[str, Path], tmp_path: Path
) -> None:
    """Of 20 held-out points fewer are left, which choose nothing."""
    told: list[str] = []
    ended = run(BASE, DATA, tmp_path / "run", engine=Post(drop(PART, 2)), tell=told.append)
    assert (ended.summary["ridge"], ended.summary["ridge_from"]) == (1.0, "default")
    assert (
        sum(
            "λ 1, scores divided by count^0.05: not chosen, since 19 held-out points are fewer than 20" in line
            for line in told
        )
        == 1
    )
    record = left(ended.folder)
    assert record["metrics 1 clients"] == list(range(BASE.num_clients))
    assert [(entry["attempt"], entry["client"]) for entry in record["metrics 1 refused"]] == [(PART, 2)]
    same = run(BASE.replace(ridge=1.0), DATA, tmp_path / "one")
    assert weights(ended.folder) == weights(same.folder) != weights(finished["labels, held out"])
    again = replay(*read_log(RunFolder(ended.folder)), DATA, tmp_path / "again")
    assert weights(again.folder) == weights(ended.folder)
    # It sends them later.
    resumed = run(BASE, DATA, ended.folder, resume=True)
    assert weights(resumed.folder) == weights(finished["labels, held out"])


@pytest.mark.parametrize("name", WITH_HELD_OUT)
def test_the_log_replays(name: str, finished: dict[str, Path], tmp_path: Path) -> None:
    replay(*read_log(RunFolder(finished[name])), DATA, tmp_path / "again")
    assert differing(tmp_path / "again", finished[name]) == []


# Held-out sums that lie.


class Door:
    """A server, one honest client of it, and what that client holds out."""

    def __init__(self, config: Config) -> None:
        self.task = Task(config, DATA.num_features, DATA.num_labels)
        self.bits = config.point_bits
        self.client = Respondent(self.task, 2, DATA.train.X[:60], DATA.train.Y[:60], DATA.labels)
        self.desk = Desk(self.task, {1: 60, 2: 70})
        self.terms = Terms(Counts.of(DATA.train.X), config.feature_slots, weigh=False)
        self.num_slots = self.terms.slots(self.desk.seeds).count
        self.held = self.client.reply(self.desk.request(HELD_OUT, 2, self.terms.encode()))
        self.sums = self.client.reply(self.desk.request(SUMS, 2, self.terms.encode()))
        self.whole = self.desk.read_sums(2, self.sums, self.terms, self.num_slots)
        self.header, self.payload = unpack(StatisticsHeader, self.held, 2**20)

    def read(self, message: bytes) -> Sums:
        return self.desk.read_held_out(2, message, self.terms, self.num_slots, Extent.of(self.whole))

    def refusal(self, message: bytes) -> Reason:
        with pytest.raises(Rejected) as refused:
            self.read(message)
        return refused.value.reason

    def write(self, sums: Sums) -> bytes:
        return pack(dataclasses.replace(self.header, examples=sums.points), encode_sums(sums, self.bits))


@pytest.fixture(scope="module", params=WITH_HELD_OUT)
def door(request: pytest.FixtureRequest) -> Door:
    return Door(VARIANTS[request.param])


def test_honest_held_out_sums_are_let_in_and_the_rest_is_that_of_the_other_points(door: Door) -> None:
    held, rows = door.read(door.held), is_held_out(DATA.train.X[:60])
    assert 0 < held.points == rows.sum() < 60
    rest = Respondent(door.task, 2, DATA.train.X[:60][~rows], DATA.train.Y[:60][~rows], DATA.labels)
    other = rest.sum(door.terms, door.desk.seeds)
    left_over = door.whole - held
    assert (left_over.gram != other.gram).nnz == (left_over.cross != other.cross).nnz == 0
    # Of a client that holds nothing out, or everything.
    nothing = Sums.empty(door.num_slots, door.desk.num_outputs)
    assert door.read(door.write(nothing)).points == 0
    assert door.read(door.write(door.whole)).points == 60


def test_messages_for_another_purpose_are_refused(door: Door) -> None:
    assert door.refusal(door.sums) == Reason.ROUND
    with pytest.raises(Rejected, match="where 'sums' was asked for"):
        door.desk.read_sums(2, door.held, door.terms, door.num_slots)
    for change, reason in (
        ({"examples": 71}, Reason.EXAMPLES),
        ({"examples": door.header.examples + 1}, Reason.MALFORMED),
        ({"terms": "0" * 32}, Reason.CONFIG),
        ({"client": 1}, Reason.CLIENT),
        ({"run": "0" * 16}, Reason.RUN),
    ):
        assert door.refusal(pack(dataclasses.replace(door.header, **change), bytes(door.payload))) == reason  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["points", "square", "count"])
def test_no_more_is_held_out_than_there_is(door: Door, where: str) -> None:
    """All that there is, is let in; one more is not."""
    one = 2**door.bits
    for more in (0, 1):
        size = door.num_slots + 1
        gram, cross = np.zeros((size, size), np.int64), np.zeros((size, door.desk.num_outputs), np.int64)
        points = 60 + more * (where == "points")
        gram[0, 0] = points * one**2
        slot, label = int(door.whole.diagonal.argmin()), int(door.whole.counts(door.bits).argmin())
        gram[slot + 1, slot + 1] = door.whole.diagonal[slot] + more * (where == "square")
        cross[0, label] = (door.whole.counts(door.bits)[label] + more * (where == "count")) * one
        message = door.write(Sums(points, csr_matrix(gram), csr_matrix(cross)))
        if more:
            assert door.refusal(message) == Reason.RANGE
        else:
            assert np.array_equal(door.read(message).gram.toarray(), gram)


def test_hundreds_of_messages_that_lie_are_refused_or_within_bounds(door: Door) -> None:
    rng, taken, reasons = np.random.default_rng(1), 0, set()
    for _ in range(300):
        content = bytearray(door.payload)
        for _ in range(int(rng.integers(1, 4))):
            content[int(rng.integers(0, len(content)))] ^= 1 << int(rng.integers(0, 8))
        try:
            found = door.read(pack(door.header, bytes(content)))
        except Rejected as refused:
            reasons.add(refused.reason)
            continue
        taken += 1
        assert found.points <= 60
        assert (found.diagonal <= door.whole.diagonal).all()
        assert (found.counts(door.bits) <= door.whole.counts(door.bits)).all()
    assert Reason.MALFORMED in reasons <= {Reason.MALFORMED, Reason.RANGE}
    assert taken < 100


def rewrite(lie: Callable[[Sums], Sums]) -> Callable[[bytes], bytes]:
    def change(reply: bytes) -> bytes:
        header, payload = unpack(StatisticsHeader, reply, len(reply))
        size = Desk(Task(BASE, DATA.num_features, DATA.num_labels), {0: 1})
        slots = np.count_nonzero(Counts.of(DATA.train.X).frequencies)
        honest = decode_sums(payload, header.examples, int(slots), size.num_outputs, BASE.point_bits)
        sums = lie(honest)
        return pack(dataclasses.replace(header, examples=sums.points), encode_sums(sums, BASE.point_bits))

    return change


def test_a_client_that_holds_out_more_than_it_has_is_refused_and_named(tmp_path: Path) -> None:
    twice = rewrite(lambda sums: Sums(sums.points, sums.gram * 4, sums.cross * 4))

    def change(part: int, client: int, reply: bytes) -> bytes:
        return twice(reply) if part == PART and client == 3 else reply

    ended = run(BASE, DATA, tmp_path / "run", engine=Post(change))
    refused = left(ended.folder)["metrics 1 refused"]
    assert [(entry["attempt"], entry["client"]) for entry in refused] == [(PART, 3)]
    without = run(BASE, DATA, tmp_path / "without", engine=Post(drop(PART, 3)))
    assert weights(ended.folder) == weights(without.folder)


def turn(sums: Sums) -> Sums:
    """Claim as much as there is of everything, with every product reversed: without it, no points are left."""
    gram = sums.gram.copy().tolil()
    diagonal = gram.diagonal()
    gram = -gram
    gram[0, :] = -gram[0, :]
    gram.setdiag(diagonal)
    return Sums(sums.points, csr_matrix(gram, dtype=np.int64), sums.cross)


def test_sums_that_leave_no_points_choose_nothing_and_the_run_continues(tmp_path: Path) -> None:
    config, told = BASE.replace(num_clients=1, clients_per_round=1), list[str]()
    seen: dict[int, bytes] = {}

    def change(part: int, client: int, reply: bytes) -> bytes:
        seen[part] = reply
        if part != PART:
            return reply
        header, _ = unpack(StatisticsHeader, reply, len(reply))
        whole, payload = unpack(StatisticsHeader, rewrite(turn)(seen[ALL]), 2**20)
        return pack(dataclasses.replace(header, examples=whole.examples), bytes(payload))

    ended = run(config, DATA, tmp_path / "run", engine=Post(change), tell=told.append)
    assert left(ended.folder)["metrics 1 refused"] == []
    assert sum("not chosen, since no points have" in line for line in told) == 1
    assert (ended.summary["ridge"], ended.summary["ridge_from"]) == (1.0, "default")
    given = run(config.replace(ridge=1.0), DATA, tmp_path / "given")
    assert weights(ended.folder) == weights(given.folder)


def tangle(sums: Sums) -> Sums:
    """Claim three slots that agree in pairs and cannot all agree, each pair as much as the squares allow."""
    gram, cross = sums.gram.tolil(), sums.cross.tolil()
    gram[0, 1:], gram[1:, :], cross[1:, :] = 0, 0, 0
    square = sums.points * 4**BASE.point_bits
    for one, two, sign in ((-3, -2, 1), (-2, -1, 1), (-3, -1, -1)):
        gram[one, one] = gram[two, two] = square
        gram[one, two] = sign * square
    lie = Sums(sums.points, csr_matrix(gram, dtype=np.int64), csr_matrix(cross, dtype=np.int64))
    assert not is_possible(lie)
    return lie


def test_a_client_whose_sums_no_points_have_is_left_out_with_what_it_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its held-out part was let in, and comes out again; so the log is that of a run without it."""
    monkeypatch.setattr(held_out, "LEAST", 15)  # so that the held-out points of the others can choose
    tangled = rewrite(tangle)
    few = rewrite(lambda sums: Sums(sums.points + 2, sums.gram * 0, sums.cross * 0))

    def change(part: int, client: int, reply: bytes) -> bytes:
        return reply if client != 2 or part not in (ALL, PART) else tangled(reply) if part == ALL else few(reply)

    told: list[str] = []
    ended = run(BASE, DATA, tmp_path / "run", engine=Post(change), tell=told.append)
    without = run(BASE, DATA, tmp_path / "without", engine=Post(drop(ALL, 2)))
    assert "on 19 held-out points" in [line for line in told if "λ" in line][-1]
    assert ended.summary["ridge_from"] == without.summary["ridge_from"] == "held-out sums"
    assert weights(ended.folder) == weights(without.folder)
    lines, others = (RunFolder(folder.folder).read_participation() for folder in (ended, without))
    assert [(line.sampled, line.accepted) for line in lines] == [(line.sampled, line.accepted) for line in others]
    assert [(entry.client, entry.reason) for entry in lines[ALL].refused] == [(2, Reason.RANGE)]
    assert lines[PART].refused == []
    assert weights(run(BASE, DATA, ended.folder, resume=True).folder) == weights(without.folder)
    again = replay(*read_log(RunFolder(ended.folder)), DATA, tmp_path / "again")
    assert weights(again.folder) == weights(without.folder)


# What was agreed on.


def test_nobody_holds_points_out_where_that_was_not_agreed_on() -> None:
    for change in ({"validation_fraction": 0.1}, {"ridge": 1.0}):
        task = Task(BASE.replace(**change), DATA.num_features, DATA.num_labels)
        client = Respondent(task, 2, DATA.train.X[:60], DATA.train.Y[:60], DATA.labels)
        request = Desk(task, {2: 60}).request(HELD_OUT, 2, Terms(Counts.of(DATA.train.X), 0, weigh=False).encode())
        with pytest.raises(Rejected, match="were not agreed on") as refused:
            client.reply(request)
        assert refused.value.reason == Reason.CONFIG


def test_too_small_a_part_on_either_side_is_not_sent() -> None:
    """However many points there are, both the part and the rest have enough."""
    door = Door(BASE)
    rows = is_held_out(DATA.train.X)
    inside, outside = np.flatnonzero(rows), np.flatnonzero(~rows)
    request = door.desk.request(HELD_OUT, 2, door.terms.encode())
    for held, rest, sent in ((5, 5, True), (4, 30, False), (20, 4, False), (5, 40, True)):
        chosen = np.concatenate([inside[:held], outside[:rest]])
        client = Respondent(door.task, 2, DATA.train.X[chosen], DATA.train.Y[chosen], DATA.labels, least=5)
        if sent:
            assert unpack(StatisticsHeader, client.reply(request), 2**20)[0].examples == held
            continue
        with pytest.raises(Rejected, match=f"{held} of {held + rest} points are held out: fewer than") as refused:
            client.reply(request)
        assert refused.value.reason == Reason.EXAMPLES


def test_other_algorithms_still_need_points_to_select_on() -> None:
    with pytest.raises(UserError, match="needs a validation_fraction above 0"):
        Config(validation_fraction=0.0)


@pytest.mark.skipif(not BIBTEX.is_dir(), reason="the data set is not there")
def test_on_real_points_lambda_is_next_to_the_one_that_validation_chooses(tmp_path: Path) -> None:
    config = Config.load("one-round").replace(data=str(BIBTEX), device="cpu", count_power=0.05)
    points, sums = (
        run(config.replace(validation_fraction=share), load(BIBTEX), tmp_path / f"{share}").summary
        for share in (0.1, 0.0)
    )
    assert (points["ridge_from"], sums["ridge_from"]) == ("validation", "held-out sums")
    assert abs(RIDGES.index(points["ridge"]) - RIDGES.index(sums["ridge"])) <= 1
    assert fmean(sums["precision"].values()) > fmean(points["precision"].values()) - 0.015
    assert load_bundle(tmp_path / "0.0" / "model").task.config.ridge == sums["ridge"]
