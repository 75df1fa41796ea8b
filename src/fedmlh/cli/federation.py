"""Commands for real sites."""

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmlh.cli.options import (
    ConfigArgument,
    FormatOption,
    PartsOption,
    RoundsOption,
    SeedOption,
    SetOption,
    configure,
)
from fedmlh.cli.terminal import Terminated, console, open_data, print_report, resumable, tell
from fedmlh.config import Config, parse_setting
from fedmlh.errors import UserError, how_to_install

if TYPE_CHECKING:
    from fedmlh.sites.federation import Federation

federation_app = typer.Typer(
    help="Train across real sites, over TLS and with a key for each site (docs/deployment.md).",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
site_app = typer.Typer(
    help="Prepare the data of one site, and make a model at the site.", no_args_is_help=True, rich_markup_mode="rich"
)

FolderArgument = Annotated[Path, typer.Argument(metavar="FEDERATION", help="the folder that `init` made")]


@federation_app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="FEDERATION", help="folder to make")],
    config: ConfigArgument,
    data: Annotated[
        Path, typer.Option(help="server's own data: its training part selects the best round, its test part tests")
    ],
    address: Annotated[str, typer.Option(help="host:port at which sites reach the server")],
    sites: Annotated[str, typer.Option(help="names of the sites, for example north,south,west")],
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    settings: SetOption = None,
    parts: PartsOption = None,
) -> None:
    """Make a federation at the server: its terms, its certificates, and the folder to hand to every site."""
    _need_flower()
    from fedmlh.evaluation.evaluate import LabelCounts
    from fedmlh.runs.remarks import describe_settings
    from fedmlh.sites.federation import Federation, ServerPoints
    from fedmlh.sizing import Shape, choose_sizes

    names = tuple(name.strip() for name in sites.split(",") if name.strip())
    if not names:
        raise UserError("--sites names no site: write for example --sites north,south")
    chosen = _gather(configure(config, settings, data=data, rounds=rounds, seed=seed), len(names), settings)
    if chosen.training == "auto":
        chosen = chosen.replace(training="rounds")
        tell("trains networks in rounds: training=one-round needs sites that agree to show statistics of their data")
    if chosen.label_map != "identity" and chosen.label_key == "id":
        chosen = chosen.replace(label_key="name")
        tell("labels are hashed by name (label_key=name), so that sites need not number them in the same way")
    dataset = open_data(chosen)
    # How many points and words sites have is not known yet.
    shape = replace(Shape.of(dataset.train), points=None, repeated=None)
    chosen, reasons = choose_sizes(chosen.replace(partition="folder", data=""), shape)
    for reason in reasons:
        tell(reason)
    others = "are trained on, but never predicted" if chosen.label_key == "name" else "are refused"
    tell(f"catalogue: the {dataset.num_labels:,} labels of {data}; other labels that sites have {others}")
    if chosen.training == "one-round":
        tell("each site's operator must agree to show statistics of its data: fedmlh site prepare … --open-statistics")
    points = ServerPoints(dataset, LabelCounts.of(dataset.train))
    if chosen.validation_fraction == 0:
        tell(f"validation_fraction is 0: the training points of {data} are not used, neither to choose nor to train")
        points = points.without_validation()
    federation = Federation.create(folder, chosen, points, address=address, sites=names)
    for remark in describe_settings(federation.agreement.task):
        tell(remark)
    console.print(
        f"Made {folder}. Hand {folder / 'public'} to every site; put the enrolment.json that each hands back into "
        f"{folder / 'enrolled'}; then: fedmlh federation start {folder}",
        soft_wrap=True,
    )


@federation_app.command("start")
def start(
    folder: FolderArgument,
    min_sites: Annotated[
        int | None,
        typer.Option(min=1, help="begin once this many sites are connected (default: all)"),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, metavar="MINUTES", help="begin after this time with the sites that are connected"),
    ] = None,
) -> None:
    """Train at the server; if a run was stopped, continue it."""
    _need_flower()
    from fedmlh.sites.federation import Federation
    from fedmlh.sites.flower.processes import supervise
    from fedmlh.sites.flower.waiting import Patience
    from fedmlh.sites.private import private_files

    federation = Federation(folder)
    how = "the same command continues from the last finished round"
    with resumable(how), _watch(federation) as watch:
        supervise(federation, tell, watch, patience=Patience(min_sites, wait))
    with private_files():
        print_report([federation.run.path], federation.run.path / "report.html")


@federation_app.command("confirm")
def confirm(folder: FolderArgument) -> None:
    """Confirm the number of points of each enrolled site, where sites count by it (weighting=examples, one-round)."""
    _need_flower()
    from fedmlh.sites.federation import Federation

    federation = Federation(folder)
    table = Table("site", "training points, confirmed")
    for enrolment in federation.confirm().values():
        table.add_row(enrolment.site, f"{enrolment.examples:,}")
    console.print(table)


@federation_app.command("join")
def join(folder: Annotated[Path, typer.Argument(metavar="SITE", help="the folder that `site prepare` made")]) -> None:
    """Take part at a site, for as long as the command runs."""
    _need_flower()
    from fedmlh.sites.flower.processes import keep_supernode

    try:
        keep_supernode(folder, tell)
    except (KeyboardInterrupt, Terminated):
        tell("left the federation; the site's folder is as it was: join again at any time")


@federation_app.command("status")
def status(folder: FolderArgument) -> None:
    """Show which sites have enrolled and are connected, and how far the run is."""
    _need_flower()
    from fedmlh.sites.federation import Federation
    from fedmlh.sites.flower.control import find_statuses

    federation = Federation(folder)
    enrolments, statuses = federation.enrolments(), find_statuses(federation)
    table = Table("site", "enrolled", "training points", "held out", "connection")
    for client_id, name in enumerate(federation.agreement.sites):
        enrolment = enrolments.get(client_id)
        cells = ["no", "", ""] if enrolment is None else ["yes", f"{enrolment.examples:,}", f"{enrolment.held_out:,}"]
        table.add_row(
            name, *cells, "the server is not running" if statuses is None else statuses.get(client_id, "none yet")
        )
    console.print(table)
    ended, problem = federation.read_outcome()
    rounds = f"round {federation.run.count_rounds()} of at most {federation.agreement.config.most_rounds}"
    state = "" if not ended else ", finished" if problem is None else f", ended: {problem}"
    console.print(rounds + state, soft_wrap=True)


@federation_app.command("rehearse")
def rehearse(
    config: ConfigArgument,
    data: Annotated[Path | None, typer.Option(help="data folder; without it the built-in synthetic data")] = None,
    sites: Annotated[int, typer.Option(min=1, max=64, help="number of sites")] = 4,
    out: Annotated[Path, typer.Option(help="folder to make")] = Path("runs/rehearsal"),
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    settings: SetOption = None,
    parts: PartsOption = None,
) -> None:
    """Train with a server and sites as processes on this machine, then again in one process, and compare the models."""
    _need_flower()
    from fedmlh.sites.flower.loopback import create_loopback, replay_loopback, train_loopback

    chosen = _gather(configure(config, settings, data=data, rounds=rounds, seed=seed), sites, settings)
    dataset = open_data(chosen)
    federation = create_loopback(chosen, dataset, out)
    with resumable(f"remove {out} to begin again"), _watch(federation) as watch:
        train_loopback(federation, tell, watch)
    same = replay_loopback(federation, dataset, out / "replay")
    print_report([federation.run.path], out / "report.html")
    if not same:
        raise UserError("the model of the sites differs from that of one process: this should never happen")
    console.print("one process, told who took part in each round, trains the same model to the bit")


@site_app.command("prepare")
def prepare(
    public: Annotated[Path, typer.Argument(metavar="PUBLIC", help="the folder that the federation handed out")],
    site: Annotated[str, typer.Option(help="name of this site in the federation")],
    data: Annotated[
        Path, typer.Option(help="data folder: the site trains on its training part and holds out its test part")
    ],
    out: Annotated[Path, typer.Option(help="folder to make")],
    data_format: FormatOption = "auto",
    open_statistics: Annotated[
        bool,
        typer.Option(
            "--open-statistics",
            help="for training=one-round: agree that the server sees how often, at this site, each word occurs "
            "together with each label and with each other word",
        ),
    ] = False,
    parts: PartsOption = None,
) -> None:
    """Turn a site's data into training points under the federation's terms, and make the site's key."""
    _need_flower()
    from fedmlh.sites.agreement import Agreement
    from fedmlh.sites.consent import check_consent
    from fedmlh.sites.site import create_site, read_points

    if (public / "public").is_dir():
        raise UserError(f"{public} is the server's folder: pass {public / 'public'}")
    agreement = Agreement.load(public)
    agreement.find_client_id(site)
    check_consent(agreement, site, open_statistics)  # before the data is read, which may take long
    points = read_points(agreement, data, data_format, tell)
    enrolment = create_site(out, agreement, site, points, open_statistics=open_statistics)
    console.print(
        f"Made {out}: {enrolment['examples']:,} points to train on, {enrolment['held_out']:,} held out. Hand "
        f"{out / 'enrolment.json'} back to the server; then: fedmlh federation join {out}",
        soft_wrap=True,
    )


def _need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise UserError(f"real sites need Flower, which is not installed: {how_to_install('flower,fast,plot')}")


def _gather(config: Config, sites: int, settings: list[str] | None) -> Config:
    """Return the config for this number of sites.

    A round asks all sites if the config wants more than there are; training in one round always asks all of them.
    A round needs more than half of the sites that it asks, unless the config or --set sets quorum.
    """
    from fedmlh.planning.choices import MOST_SAMPLED

    most = sites if config.training == "one-round" else min(config.clients_per_round or MOST_SAMPLED, sites)
    chosen = config.quorum != Config().quorum or "quorum" in dict(map(parse_setting, settings or []))
    quorum = min(config.quorum, most) if chosen else most // 2 + 1
    return config.replace(num_clients=sites, clients_per_round=most, quorum=quorum)


@contextmanager
def _watch(federation: "Federation") -> Iterator[Any]:
    """Report each round that finishes in the block; rounds that had finished before are not reported."""
    rounds = federation.agreement.config.most_rounds
    began, seen = time.monotonic(), [federation.run.count_rounds()]

    def watch(finished: int) -> None:
        if finished != seen[0]:
            seen[0] = finished
            tell(f"{time.monotonic() - began:6.0f} s  round {finished} of at most {rounds} finished")

    yield watch


@site_app.command("model")
def make_model(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="the site's folder")],
    out: Annotated[Path, typer.Option(help="model folder to make")],
) -> None:
    """Make a model folder for fedmlh predict from what the server sent this site after training in one round."""
    _need_flower()
    from fedmlh.sites.site import Site
    from fedmlh.sites.site_model import make_site_model

    make_site_model(Site(site), out, tell)
    console.print(f"{out}: ask it with fedmlh predict {out}", soft_wrap=True)
