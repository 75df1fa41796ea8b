"""A report of one or more runs: one self-contained HTML file with tables and curves."""

import importlib.util
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from string import Template

from fedmlh.comparison.comparison import Comparison, show_difference
from fedmlh.comparison.differences import RESAMPLES
from fedmlh.comparison.labels_and_examples import show_labels_and_examples
from fedmlh.comparison.markup import make_table
from fedmlh.comparison.plots import MOST_SHADED, draw_curves
from fedmlh.comparison.settings import IDLE
from fedmlh.display import escape_html
from fedmlh.errors import how_to_install
from fedmlh.runs.folder import FinishedRun
from fedmlh.runs.summary import read_own
from fedmlh.storage import write_atomically

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { overflow-wrap: anywhere; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: bottom; }
th { max-width: 14rem; } td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 8rem; }
.labels :is(th, td):last-child { text-align: left; white-space: normal; min-width: 12rem; }
summary { margin: .6rem 0; cursor: pointer; }
.example { margin: 1rem 0; border-left: 3px solid #ddd; padding-left: 1rem; } .example h3 { margin: 0; font-size: 1em; }
.example blockquote { margin: .3rem 0; max-width: 48rem; overflow-wrap: anywhere; } .example p { margin: .3rem 0; }
.ranked td:first-child { text-align: right; min-width: 4rem; } .ranked td:nth-child(2) { min-width: 1rem; }
.idle { color: #767676; }
.ranked td:last-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.curves svg { width: 100%; min-width: 44rem; height: auto; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 13px; } .note { color: #555; max-width: 48rem; }
.term { color: #555; font-size: 14px; line-height: 1.35; margin: .3rem 0 0; max-width: 48rem; }
@media (max-width: 40rem) { body { margin: 1rem auto; } th, td { padding: .25rem .5rem; font-size: 14px; } }
@media print { body { margin: 0; max-width: none; } }
</style></head><body>
<h1>$title</h1>
<p class="note">$selection</p>
<h2>Figures</h2><div class="wide">$table</div>$terms
$differing
$differences
<h2>Curves</h2><p class="note">$curves_note</p><div class="wide curves">$curves</div>
$labels
$clients
<h2>Settings</h2><p class="note">$settings_note</p>
<pre>$settings</pre>
</body></html>
""")
_DIFFERENCES = (
    "How much better each method is than {first}, in percentage points, seed by seed on the same test points. Over "
    "seeds: the 95 % t-interval for the mean of the seeds’ differences. It shows what other partitions, initial models "
    "and samples may give. Over test points: the 95 % bootstrap interval ({resamples:,} resamples) of the differences, "
    "averaged over seeds. It shows what other test points may give. A difference is proven only if 0 is outside both."
)
_SIMULATED = (
    "Simulated clients: P@k in %, on the client’s share of the validation points, which the partition distributes "
    "in the same way as training points. These points also chose the model."
)
_AT_SITES = "Real sites: P@k in %, measured by each site on the points that it holds out."
_ALONE = "“Alone”: the model that the client trains on its own points only, at its best round on these points."


def write_page(comparison: Comparison, target: Path, beside: str = "") -> list[Path]:
    """Write the page of a comparison, and the curves beside it as `beside`curves.png; return where these are."""
    runs = [run for method in comparison.methods for run in method.runs]
    notes = []
    if any("validation" in run.summary for run in runs):
        notes.append(
            "The best round was chosen on validation points held out from training; the table shows the "
            "test part at that round, measured once. ± is the standard deviation over seeds."
        )
    if any(run.config.selection == "paper" for run in runs):
        notes.append(
            "“Best round on test”: the round was chosen on the test part, as in the paper. Such figures are too "
            "good, and are for reproduction only."
        )
    picture = None
    curves = f'<p class="note">Curves need matplotlib: {escape_html(how_to_install("plot"))}, then fedmlh report.</p>'
    if importlib.util.find_spec("matplotlib"):
        svg, picture = draw_curves(comparison.methods, "svg").decode(), draw_curves(comparison.methods, "png")
        curves = svg[svg.index("<svg") :]
    several = any(len(method.runs) > 1 for method in comparison.methods)
    shaded = "; the shade spans the lowest to the highest" if len(comparison.methods) <= MOST_SHADED else ""
    page = _PAGE.substitute(
        title=escape_html(f"fedmlh: {', '.join(dict.fromkeys(run.config.name for run in runs))}"),
        selection=" ".join(notes),
        table=make_table(("", *comparison.names), [(row.name, *row.cells) for row in comparison.figures]),
        terms="".join(
            f'<p class="term"><b>{escape_html(term)}</b>: {meaning}</p>' for term, meaning in comparison.terms
        ),
        differing=_show_differing(comparison),
        differences=_show_differences(comparison),
        curves_note=f"Mean over seeds{shaded}." if several else "",
        curves=curves,
        labels=show_labels_and_examples(runs),
        clients=_clients(runs),
        settings_note=f"The settings of {escape_html(comparison.names[0])}, seed {runs[0].config.seed}.",
        settings="\n".join(map(escape_html, runs[0].config.to_toml().split("\n"))),
    )
    write_atomically(target, page.encode())
    if picture is None:
        return []
    write_atomically(target.parent / f"{beside}curves.png", picture)
    return [target.parent / f"{beside}curves.png"]


def _show_differing(comparison: Comparison) -> str:
    if not comparison.settings:
        return ""
    table = make_table(("", *comparison.names), [(row.name, *row.cells) for row in comparison.settings])
    note = "Settings in which the methods differ; – means that a setting has no effect."
    return f'<h2>What differs</h2><p class="note">{note}</p><div class="wide">{table}</div>'


def _show_differences(comparison: Comparison) -> str:
    parts = []
    for method, group in groupby(comparison.differences, lambda difference: difference.method):
        rows = [show_difference(difference) for difference in group]
        head = (method, "difference", "95 % over seeds", "95 % over test points")
        parts.append(f'<div class="wide">{make_table(head, rows)}</div><br>')
    if len(comparison.methods) < 2:
        return ""
    about = _DIFFERENCES.format(first=escape_html(comparison.names[0]), resamples=RESAMPLES) if parts else ""
    notes = "".join(f'<p class="note">{escape_html(note)}</p>' for note in comparison.notes)
    return f'<h2>Differences</h2><p class="note">{about}</p>{"".join(parts)}{notes}'


def _clients(runs: Sequence[FinishedRun]) -> str:
    """Return the section on what the shared model gives each client, if that was measured."""
    parts = []
    for run in runs:
        clients = run.summary.get("clients", [])
        if not clients:
            continue
        ks = list(run.summary["precision"])
        alone = "precision_alone" in clients[0]
        own = [(metric, k) for metric in run.config.metrics if metric in clients[0] for k in ks]
        head = [
            "site" if "site" in clients[0] else "client",
            "points",
            "held out",
            *(f"P@{k}" for k in ks),
            *(f"alone P@{k}" for k in ks if alone),
        ]
        head += [f"{metric}@{k}" for metric, k in own]
        rows = [
            [
                str(client.get("site", client["client"])),
                f"{client['examples']:,}",
                f"{client['held_out']:,}",
                *(f"{100 * client['precision'][k]:.1f}" for k in ks),
                *(f"{100 * client['precision_alone'][k]:.1f}" for k in ks if alone),
                *(IDLE if (value := read_own(client, *one)) is None else f"{value:.4f}" for one in own),
            ]
            for client in clients
        ]
        name = escape_html(run.folder.path.name)
        # Open tables of many runs would bury what follows.
        shown = " open" if len(runs) == 1 else ""
        parts.append(
            f"<details{shown}><summary>{name}</summary><div class='wide'>{make_table(head, rows)}</div></details>"
        )
    at_sites = {"precision_at_sites" in run.summary for run in runs if run.summary.get("clients")}
    note = " ".join(_AT_SITES if real else _SIMULATED for real in sorted(at_sites))
    if any("precision_alone" in client for run in runs for client in run.summary.get("clients", [])):
        note += f" {_ALONE}"
    return f"<h2>Clients</h2><p class='note'>{note}</p>" + "".join(parts) if parts else ""
