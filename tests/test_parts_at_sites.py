"""Parts at real sites: only what a site's own operator installed is executed, and metrics of users add up."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from command_line import call
from fedmlh import parts
from fedmlh.data.readers.convert import write
from fedmlh.data.readers.layout import Reader
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.evaluation.metrics import Metrics
from fedmlh.evaluation.own import LARGEST, AddedMetrics
from fedmlh.evaluation.questions import Report, ask, largest_report, read_report, write_report
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, unpack
from fedmlh.federated.server import Server
from fedmlh.runs.checkpoint import Progress
from fedmlh.runs.rounds import Judge
from fedmlh.sites.agreement import Agreement
from fedmlh.sites.enrolment import Enrolment
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.evaluation import answer_question, compare_sites
from fedmlh.sites.flower.grid import GridSites
from fedmlh.sites.flower.loopback import create_loopback
from fedmlh.sites.flower.processes import largest_reply
from fedmlh.sites.installed import keep_parts
from fedmlh.sites.site import Site
from grid_here import GridHere, act_as_flower
from tiny import TINY

EXAMPLE = Path(__file__).parent / "examples" / "own_parts.py"
SOURCE = EXAMPLE.read_bytes()
HASH = hashlib.sha256(SOURCE).hexdigest()
SITES = {"num_clients": 2, "clients_per_round": 2, "quorum": 1, "synthetic_points": 200, "label_key": "name"}
CHOSEN = {"loss": "focal", "partition": "label-skew", "aggregation": "median", "metrics": ("coverage",)}
CPU = torch.device("cpu")


@pytest.fixture
def federation(tmp_path: Path, forget_parts: Callable[[], None]) -> Federation:
    parts.load_parts(EXAMPLE)
    config = TINY.replace(**SITES, **CHOSEN)
    made = create_loopback(config, open_dataset(config), tmp_path / "fed")
    forget_parts()
    return Federation(made.path)


def test_server_and_sites_use_the_copies_in_their_own_folders(
    federation: Federation, forget_parts: Callable[[], None]
) -> None:
    assert federation.agreement.config.loss == "focal"
    forget_parts()
    assert Site(federation.path / "site-0").agreement.config.metrics == ("coverage",)
    assert parts.find_foreign("loss", "focal") == parts.Foreign("own_parts.py", HASH)
    for folder in (federation.server, federation.path / "site-0"):
        assert (folder / "parts" / f"{HASH}.py").read_bytes() == SOURCE
        assert folder.stat().st_mode & 0o077 == (folder / "parts").stat().st_mode & 0o077 == 0


def test_no_code_is_handed_out(federation: Federation) -> None:
    handed_out = [*(federation.path / "public").rglob("*"), federation.path / "site-0" / "enrolment.json"]
    content = b"".join(path.read_bytes() for path in handed_out)
    assert b"focal" in content
    assert HASH.encode() in content
    assert b"logsigmoid" not in content
    assert b"register" not in content


def marked(tmp_path: Path) -> tuple[bytes, Path]:
    """Write the example in another version, which leaves a file where it is executed."""
    mark = tmp_path / "executed"
    return SOURCE + f"open({str(mark)!r}, 'w').close()\n".encode(), mark


@pytest.mark.parametrize("named", [True, False], ids=["under its own hash", "under the hash that was agreed on"])
def test_another_version_in_a_site_s_folder_is_refused_and_not_executed(
    federation: Federation, tmp_path: Path, named: bool
) -> None:
    other, mark = marked(tmp_path)
    folder = federation.path / "site-0"
    shutil.rmtree(folder / "parts")
    keep_parts(folder / "parts", {hashlib.sha256(other).hexdigest() if named else HASH: ("own_parts.py", other)})
    with pytest.raises(UserError, match=r"site-0/parts does not hold the part .* as partition label-skew .*--parts"):
        Site(folder)
    assert not mark.exists()


def test_a_copy_that_was_touched_is_refused_and_not_executed(federation: Federation, tmp_path: Path) -> None:
    other, mark = marked(tmp_path)
    folder = federation.path / "site-0"
    (folder / "parts" / f"{HASH}.py").write_bytes(other)
    with pytest.raises(UserError, match="is damaged: its content does not match its SHA-256"):
        Site(folder)
    assert not mark.exists()


def test_join_is_refused_with_the_sentence(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(federation.path / "site-0" / "parts")
    keep_parts(federation.path / "site-0" / "parts", {"0" * 64: ("own_parts.py", SOURCE)})
    assert call("federation", "join", federation.path / "site-0") == 2
    assert f"(SHA-256 {HASH[:12]}…): prepare the site" in " ".join(capsys.readouterr().err.split())


def test_code_in_the_folder_that_was_handed_out_is_never_executed(federation: Federation, tmp_path: Path) -> None:
    other, mark = marked(tmp_path)
    public = federation.path / "public"
    keep_parts(public / "parts", {HASH: ("own_parts.py", other)})
    with pytest.raises(UserError, match=r"the partition 'label-skew' comes from own_parts\.py: load that file first"):
        Agreement.load(public)
    assert not mark.exists()


def test_a_site_is_prepared_with_the_very_file_that_was_agreed_on(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str], forget_parts: Callable[[], None]
) -> None:
    data = tmp_path / "data"
    write(open_dataset(TINY.replace(**SITES)), data, "npz")
    other = tmp_path / "own_parts.py"
    other.write_bytes(SOURCE + b"# changed\n")

    def prepare(*more: object) -> tuple[int, str]:
        forget_parts()
        out = ("--site", "site-1", "--data", data, "--out", tmp_path / "site")
        ended = call("site", "prepare", federation.path / "public", *out, *more)
        return ended, " ".join(capsys.readouterr().err.split())

    for ended, said in (prepare(), prepare("--parts", other)):
        assert ended == 2
        assert "Traceback" not in said
        assert not (tmp_path / "site").exists()
    assert "is not the one of own_parts.py that was used before" in said
    assert prepare("--parts", EXAMPLE)[0] == 0
    forget_parts()
    assert Site(tmp_path / "site").agreement.terms["parts"] == dict.fromkeys(
        ("loss focal", "partition label-skew", "aggregation median", "metrics coverage"), HASH
    )


def test_an_enrolment_under_other_parts_is_refused(federation: Federation) -> None:
    enrolment = federation.path / "enrolled" / "site-0.json"
    content = json.loads(enrolment.read_text())
    assert Enrolment.load(enrolment, federation.agreement).site == "site-0"
    content["terms"]["parts"]["aggregation median"] = "0" * 64  # on which no update of a site depends
    enrolment.write_text(json.dumps(content))
    with pytest.raises(UserError, match="parts differs"):
        Enrolment.load(enrolment, federation.agreement)


def test_a_part_without_a_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    parts.register(
        "partition", "by hand", lambda train, config, rng: lambda split, rng: np.array_split(range(len(split)), 2)
    )
    config = TINY.replace(**SITES, partition="by hand")
    with pytest.raises(UserError, match="put it into a file of parts"):
        create_loopback(config, open_dataset(config), tmp_path / "fed")
    assert not (tmp_path / "fed" / "public").exists()


def test_the_server_s_reader_is_no_term_of_the_sites(tmp_path: Path) -> None:
    parts.register("reader", "csv", Reader(lambda folder, names: None, lambda layout: None))
    config = TINY.replace(**SITES, partition="iid", data_format="csv")
    assert create_loopback(config, open_dataset(config), tmp_path / "fed").agreement.config.data_format == "auto"


# Metrics of users over sites.

KS, LABELS = (1, 3), 12
QUESTION = QuestionHeader("run", "f" * 32, 3, 1, 0, [], [], 0)


class Plain:
    """A metric that does not add up."""

    def __init__(self, ks: tuple[int, ...], num_labels: int) -> None:
        self.ks = ks

    def add(self, labels: np.ndarray, Y: csr_matrix) -> None:
        pass

    def values(self) -> dict[int, float]:
        return dict.fromkeys(self.ks, 0.5)


class Share(Plain):
    """Labels of a point; nothing keeps a site from reporting no points."""

    found = (0, 0)

    def add(self, labels: np.ndarray, Y: csr_matrix) -> None:
        self.add_sums({"found": [int(Y.nnz), len(labels)]})

    def sums(self) -> dict[str, list[int]]:
        return {"found": list(self.found)}

    def add_sums(self, sums: dict[str, list[int]]) -> None:
        self.found = tuple(map(sum, zip(self.found, sums["found"], strict=True)))

    def values(self) -> dict[int, float]:
        return dict.fromkeys(self.ks, self.found[0] / self.found[1])


def test_a_metric_that_does_not_add_up_is_refused_where_a_federation_is_made(tmp_path: Path) -> None:
    parts.register("metric", "plain", Plain)
    config = TINY.replace(**SITES, partition="iid", metrics=("plain",))
    with pytest.raises(UserError, match="'plain' cannot be added up over sites"):
        create_loopback(config, open_dataset(config), tmp_path / "fed")
    assert not (tmp_path / "fed" / "public").exists()


@pytest.mark.parametrize("sums", [{"a": [0.5]}, {"a": [-1]}, {3: [1]}, {"a": ["1"]}, {"a": 1}, [1], {"a": [2**60]}])
def test_sums_that_are_not_whole_numbers_are_refused_at_once(sums: object) -> None:
    parts.register("metric", "odd", type("Odd", (Share,), {"sums": lambda self: sums}))
    with pytest.raises(UserError, match="the metric 'odd' failed"):
        AddedMetrics(("odd",), KS, LABELS).check_additive()


def draw(rng: np.random.Generator, points: int) -> tuple[np.ndarray, csr_matrix]:
    ranked = np.argsort(rng.random((points, LABELS)), axis=1)[:, :3]
    return ranked, csr_matrix((rng.random((points, LABELS)) < 0.2).astype(np.float32))


@pytest.mark.parametrize("name", ["coverage", "share"])
def test_sums_of_several_sites_give_what_one_process_gives(name: str) -> None:
    parts.load_parts(EXAMPLE)
    parts.register("metric", "share", Share)
    rng, make, own = np.random.default_rng(0), parts.find("metric", name), AddedMetrics((name,), KS, LABELS)
    whole, reports = make(KS, LABELS), []
    for points in (1, 4, 2):
        one, batch = make(KS, LABELS), draw(rng, points)
        one.add(*batch)
        whole.add(*batch)
        reports.append({name: one.sums()})
        own.check(json.loads(json.dumps(reports[-1])))
    assert own.values(reports) == {name: {str(k): value for k, value in whole.values().items()}}
    assert own.values(reports) != own.values(reports[:1])


def test_a_site_reports_sums_from_which_the_server_has_the_values(federation: Federation) -> None:
    site, task = Site(federation.path / "site-0"), federation.agreement.task
    seeds, model, own = task.draw_seeds(), task.stack.initial(5), AddedMetrics.of(task)
    message = ask(task, seeds, "run", 3, site.client_id, model)
    question, _ = unpack(QuestionHeader, message, len(message))
    answer = answer_question(site, message)
    held_out = len(site.points.held_out)
    report = read_report(answer, question, task.config.top_k, held_out, task.config.rounds, own)
    nobody = LabelCounts(np.zeros(task.num_labels, np.int64), 1)
    evaluator = Evaluator.of_task(task, seeds, federation.agreement.labels, nobody, CPU)
    values = evaluator.evaluate(model, evaluator.prepare(site.points.held_out))
    assert own.values([report.own])["coverage"] == values["coverage"]
    assert len(answer) <= largest_reply(task)
    with pytest.raises(Rejected, match="malformed"):  # a server that did not ask for it
        read_report(answer, question, task.config.top_k, held_out, task.config.rounds)


#: A metric that has a value at each of two sites, and none over both.
LONELY = """
import fedmlh

@fedmlh.register("metric", "lonely")
class Lonely:
    def __init__(self, ks, num_labels):
        self.ks, self.sites = ks, 0

    def add(self, labels, Y):
        self.sites = 1

    def sums(self):
        return {"sites": [self.sites]}

    def add_sums(self, sums):
        self.sites += sums["sites"][0]

    def values(self):
        return dict.fromkeys(self.ks, 1 / (2 - self.sites))
"""


@pytest.mark.parametrize("metrics", [("coverage",), ("coverage", "lonely")])
def test_the_server_shows_each_site_and_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metrics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    act_as_flower(monkeypatch)
    (tmp_path / "lonely.py").write_text(LONELY)
    for file in (EXAMPLE, tmp_path / "lonely.py"):
        parts.load_parts(file)
    config = TINY.replace(**SITES, **CHOSEN).replace(metrics=metrics)
    federation = create_loopback(config, open_dataset(config), tmp_path / "fed")
    server = Server(federation.agreement.task, {0: 9, 1: 9}, CPU)
    state, agreement = server.begin(), federation.agreement
    nobody = LabelCounts(np.zeros(len(agreement.labels), np.int64), 1)
    evaluator = Evaluator.of_task(server.task, server.seeds, agreement.labels, nobody, CPU)
    judge = Judge(evaluator, "validation", evaluator.prepare(federation.server_points().dataset.train), "precision")
    grid = GridHere(federation)
    sites = GridSites(grid, grid.nodes, deadline=60, quorum=1)
    found, _ = compare_sites(federation, server, sites, judge, Progress(state, state.model, 1))
    rows, said = found["clients"], capsys.readouterr().out
    assert len(rows) == 2
    assert all(set(row["coverage"]) == {"1", "3"} for row in rows)
    if "lonely" in metrics:
        assert [row["lonely"]["1"] for row in rows] == [1, 1]
        assert "no figures over all sites: the metric 'lonely' failed (lonely.py, line 19): ZeroDivisionError" in said
        assert "coverage_at_sites" not in found
    else:
        assert found["coverage_at_sites"]["3"] >= max(row["coverage"]["3"] for row in rows) > 0


def honest() -> Report:
    metrics = Metrics(KS, np.zeros(LABELS, bool), np.ones(LABELS))
    coverage = parts.find("metric", "coverage")(KS, LABELS)
    for counted in (metrics, coverage):
        counted.add(*draw(np.random.default_rng(0), 5))
    return Report(metrics.sums(), 3, {"coverage": coverage.sums()})


def read(report: Report, own: AddedMetrics) -> Report:
    return read_report(write_report(QUESTION, report), QUESTION, KS, 10, 5, own)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own.clear(),
        lambda own: own.update(more={"a": [1]}),
        lambda own: own.update(coverage=[1]),
        lambda own: own["coverage"].pop("3"),
        lambda own: own["coverage"].update(more=[1]),
        lambda own: own["coverage"].update({"3": 1}),
        lambda own: own["coverage"]["1"].pop(),
        lambda own: own["coverage"]["1"].append(0),
        lambda own: own["coverage"]["1"].__setitem__(0, -1),
        lambda own: own["coverage"]["1"].__setitem__(0, 0.5),
        lambda own: own["coverage"]["1"].__setitem__(0, True),
        lambda own: own["coverage"]["1"].__setitem__(0, "1"),
        lambda own: own["coverage"]["1"].__setitem__(0, None),
        lambda own: own["coverage"]["1"].__setitem__(0, LARGEST + 1),
        lambda own: own["coverage"]["1"].__setitem__(0, float("nan")),
    ],
)
def test_sums_of_a_user_s_metric_that_cannot_be_are_refused(change) -> None:
    parts.load_parts(EXAMPLE)
    report, own = honest(), AddedMetrics(("coverage",), KS, LABELS)
    assert read(report, own) == report
    change(report.own)
    with pytest.raises(Rejected) as refusal:
        read(report, own)
    assert refusal.value.reason == Reason.MALFORMED


def test_sums_that_give_no_value_are_refused_by_the_site_and_not_by_the_run() -> None:
    parts.load_parts(EXAMPLE)
    parts.register("metric", "share", Share)
    report, own = honest(), AddedMetrics(("share",), KS, LABELS)
    assert read(replace(report, own={"share": {"found": [1, 2]}}), own).own["share"]["found"] == [1, 2]
    with pytest.raises(Rejected, match="malformed"):
        read(replace(report, own={"share": {"found": [1, 0]}}), own)


def test_a_report_is_as_large_as_its_metrics_need_and_no_larger() -> None:
    parts.load_parts(EXAMPLE)
    own = AddedMetrics(("coverage",), KS, 50_000)
    full = {name: {key: [LARGEST] * len(row) for key, row in rows.items()} for name, rows in own.nothing.items()}
    needed = len(json.dumps(full))
    assert needed <= own.most_bytes <= needed + 100
    with pytest.raises(Rejected) as refusal:
        read(
            replace(honest(), own={"coverage": {"1": [LARGEST] * 100_000, "3": []}}), AddedMetrics(("coverage",), KS, 9)
        )
    assert refusal.value.reason == Reason.TOO_LARGE
    assert largest_report(own) > largest_report(AddedMetrics((), KS, 50_000))
