"""Who took part is written down, and repeating it in process gives the same bits, whatever went wrong in the run."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from command_line import call
from fedmlh.data.source import open_dataset
from fedmlh.engines.local import live_in_process
from fedmlh.engines.replay import read_log, replay
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.runs.folder import RunFolder
from tiny import TINY

BASE = TINY.replace(
    partition="iid",
    num_clients=6,
    clients_per_round=4,
    quorum=2,
    max_attempts=20,
    rounds=9,
)
#: Clients keep nothing, a residual and the model, or a control; squares of updates count; weights are not all one.
VARIANTS = {
    "plain": BASE.replace(weighting="examples"),
    "changes": BASE.replace(update_codec="topk-20%+zlib", broadcast_codec="int8+zlib"),
    "grid": BASE.replace(update_codec="grid-100%", broadcast_codec="grid-150%"),
    "scaffold": BASE.replace(update_codec="fp16", correction="scaffold", optimizer="sgd", learning_rate=0.1),
    "fedexp": BASE.replace(server_optimizer="fedexp", shared_fraction=0.1),
}
DATA = open_dataset(BASE)


class Faulty:
    """Clients that fail, say nothing, are cut off or lose all that they kept, in a pattern that no run's seed knows."""

    def __init__(self, local, seed):
        self.local = local
        self.rng = np.random.default_rng(seed)

    @property
    def memories(self):
        return self.local.memories

    def exchange(self, sampled, outbox):
        fate = {
            client: self.rng.choice(["fine", "failed", "silent", "cut", "lost", "twice"], p=P) for client in sampled
        }
        for client in sampled:
            if fate[client] == "lost":
                self.memories.pop(client, None)
        for client, reply in self.local.exchange(sampled, outbox):
            if fate[client] == "failed":
                yield client, Rejected(Reason.FAILED, "out of paper")
            elif fate[client] == "cut":
                yield client, reply[:-1] if isinstance(reply, bytes) else reply
            elif fate[client] != "silent":
                yield client, reply
            if fate[client] == "twice":
                yield client, reply


P = [0.3, 0.15, 0.15, 0.15, 0.15, 0.1]


def faulty(seed):
    @contextlib.contextmanager
    def live(population, workers):
        with live_in_process(population, workers) as local:
            yield Faulty(local, seed)

    return live


def lines(folder):
    return [json.loads(line) for line in (folder / "participation.jsonl").read_text().splitlines()]


def weights(folder):
    return (folder / "model" / "weights.safetensors").read_bytes()


def measured(folder):
    """Return what the rounds measured, without time and without the bytes of replies that did not count."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in record.items() if not key.startswith("seconds") and key != "bytes_up"}
        for record in records
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run each variant while much goes wrong."""
    place = tmp_path_factory.mktemp("runs")
    for seed, (name, config) in enumerate(VARIANTS.items()):
        run(config, DATA, place / name, engine=faulty(seed))
    return place


@pytest.mark.parametrize("name", VARIANTS)
def test_every_attempt_is_written_down(runs, name):
    log, records = lines(runs / name), measured(runs / name)
    assert [(line["round"], line["attempt"]) for line in log] == [
        (record["round"], attempt) for record in records for attempt in range(record["attempts"])
    ]
    for line in log:
        named = [entry["client"] for entry in line["refused"]]
        assert line["sampled"] == sorted(line["sampled"])
        assert line["accepted"] == sorted(line["accepted"])
        assert named == sorted(named)
        assert set(line["sampled"]) == {*line["accepted"], *named}
        last = records[line["round"] - 1]["attempts"] - 1 == line["attempt"]
        assert (len(line["accepted"]) >= BASE.quorum) == last
    finished = {line["round"]: line["accepted"] for line in log}
    assert finished == {record["round"]: record["clients"] for record in records}


def test_the_runs_had_everything_go_wrong(runs):
    """Else the tests of this file show little."""
    log = [line for name in VARIANTS for line in lines(runs / name)]
    reasons = {entry["reason"] for line in log for entry in line["refused"]}
    assert reasons >= {Reason.FAILED, Reason.LATE, Reason.CORRUPT, Reason.STATE, Reason.DUPLICATE}
    assert any(line["attempt"] and line["accepted"] for line in log)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_replay_gives_the_same_bits(runs, name, tmp_path):
    config, log = read_log(RunFolder(runs / name))
    replay(config, log, DATA, tmp_path / "again")
    assert weights(tmp_path / "again") == weights(runs / name)
    assert measured(tmp_path / "again") == measured(runs / name)
    assert lines(tmp_path / "again") == lines(runs / name)


def test_a_replay_of_another_participation_gives_other_bits(runs, tmp_path):
    config, log = read_log(RunFolder(runs / "plain"))
    spot = next(n for n, line in enumerate(log) if len(line.accepted) > BASE.quorum)
    values = log[spot].to_json()
    dropped = values["accepted"].pop()
    values["refused"].append({"client": dropped, "reason": "late", "detail": ""})
    log[spot] = type(log[spot]).from_json(values)
    replay(config, log, DATA, tmp_path / "again")
    assert weights(tmp_path / "again") != weights(runs / "plain")


def test_a_replay_under_other_settings_is_refused(runs, tmp_path):
    config, log = read_log(RunFolder(runs / "plain"))
    with pytest.raises(UserError, match="round 1, attempt 0 does not match the log"):
        replay(config.replace(seed=1), log, DATA, tmp_path / "again")


def test_a_resumed_run_has_the_log_of_an_unbroken_one(tmp_path):
    """Also where the stop came between the checkpoint and the log, or the log was lost."""
    config = VARIANTS["plain"].replace(rounds=4)
    run(config, DATA, tmp_path / "whole")
    expected = (tmp_path / "whole" / "participation.jsonl").read_bytes()
    for name, spoil in {"kept": None, "older": expected[: expected.index(b"\n") + 1], "lost": b""}.items():
        run(config.replace(rounds=3), DATA, tmp_path / name)
        log = tmp_path / name / "participation.jsonl"
        assert log.read_bytes() == b"".join(expected.splitlines(keepends=True)[:3])
        if spoil is not None:
            log.write_bytes(spoil)
        run(config, DATA, tmp_path / name, resume=True)
        assert log.read_bytes() == expected
    log.unlink()
    run(config, DATA, tmp_path / name, resume=True)
    assert log.read_bytes() == expected, "also where there is no round left to run"


@pytest.mark.parametrize("dead_round", [1, 3])
def test_a_round_given_up_ends_with_a_clear_message_and_others_are_asked_when_the_run_continues(tmp_path, dead_round):
    class Silent(Faulty):
        def exchange(self, sampled, outbox):
            if outbox.place[0] == dead_round:
                outbox(sampled[0])  # sent, never answered
                return iter(())
            return self.local.exchange(sampled, outbox)

    @contextlib.contextmanager
    def live(population, workers):
        with live_in_process(population, workers) as local:
            yield Silent(local, 0)

    config, folder = VARIANTS["changes"].replace(max_attempts=2), tmp_path / "run"
    given_up = rf"round {dead_round} was given up after 2 attempts .*: late, no reply came"
    with pytest.raises(UserError, match=given_up):
        run(config, DATA, folder, engine=live)
    with pytest.raises(UserError, match=given_up):
        run(config, DATA, folder, engine=live, resume=True)
    tried = [(line["attempt"], tuple(line["sampled"])) for line in lines(folder) if line["round"] == dead_round]
    assert [attempt for attempt, _ in tried] == [0, 1, 2, 3]
    assert len({sampled for _, sampled in tried}) > 2, "a start asks others than the one before"
    assert RunFolder(folder).checkpoints.is_dir()
    run(config, DATA, folder, resume=True)
    record = RunFolder(folder).read_metrics()[dead_round - 1]
    assert record["attempts"] == 5
    # What was sent in vain counts, and the log says all there is to say: the run comes out again from it.
    rerun, log = read_log(RunFolder(folder))
    replay(rerun, log, DATA, tmp_path / "again")
    assert weights(tmp_path / "again") == weights(folder)
    healthy = run(config, DATA, tmp_path / "whole")
    assert record["bytes_down"] > RunFolder(healthy.folder).read_metrics()[dead_round - 1]["bytes_down"]


def test_the_command_says_whether_the_model_came_out_again(runs, tmp_path, capsys):
    assert call("replay", runs / "changes", "--out", tmp_path / "again") == 0
    assert "the same model to the bit" in capsys.readouterr().out
    other = tmp_path / "other"
    run(BASE.replace(seed=1), DATA, other)
    (other / "participation.jsonl").unlink()
    assert call("replay", other, "--out", tmp_path / "b") == 2
    assert "has no participation.jsonl" in capsys.readouterr().err
    (runs / "plain" / "model" / "weights.safetensors").rename(tmp_path / "kept")
    (runs / "plain" / "model" / "weights.safetensors").write_bytes(weights(runs / "changes"))
    assert call("replay", runs / "plain", "--out", tmp_path / "c") == 1
    (tmp_path / "kept").replace(runs / "plain" / "model" / "weights.safetensors")
    assert re.search("another model.*damaged: its content does not match its SHA-256", capsys.readouterr().out)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text.replace('"round": 2', '"round": 7'),
        lambda text: text.replace('"attempt": 0', '"attempt": true'),
        lambda text: "".join(text.splitlines(keepends=True)[1:]),
        lambda text: text + text.splitlines()[-1],
        lambda text: text.replace('"reason": "late"', '"reason": "weather"'),
        lambda text: text.replace('"accepted": [', '"accepted": [99, '),
        lambda text: text[:-5],
    ],
)
def test_a_damaged_log_is_refused(runs, tmp_path, spoil):
    folder = RunFolder(tmp_path)
    for name in ("config.toml", "metrics.jsonl", "participation.jsonl"):
        (tmp_path / name).write_bytes((runs / "fedexp" / name).read_bytes())
    assert read_log(folder)
    log = Path(tmp_path / "participation.jsonl")
    assert spoil(log.read_text()) != log.read_text()
    log.write_text(spoil(log.read_text()))
    with pytest.raises(UserError, match="is damaged"):
        read_log(folder)
