"""A report of one or more runs: one self-contained HTML file with the table and the curves."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from string import Template

from fedmlh.display import escape_html
from fedmlh.runs.comparison import Row, compare, group
from fedmlh.runs.folder import FinishedRun, RunFolder
from fedmlh.runs.plots import draw_curves
from fedmlh.storage import write_atomically

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; } svg { max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 13px; } .note { color: #555; }
@media print { body { margin: 0; max-width: none; } }
</style></head><body>
<h1>$title</h1>
<p class="note">$selection</p>
<h2>Figures</h2><div class="wide">$table</div>
<h2>Curves</h2><div class="wide">$curves</div>
$clients
<h2>Settings</h2><p class="note">Of the first run; the others differ where their names say so.</p>
<pre>$settings</pre>
</body></html>
""")


def write_report(folders: Sequence[RunFolder], target: Path) -> tuple[list[str], list[Row]]:
    """Write the page for finished runs, with curves.png beside it; returns the heads and rows of its table."""
    runs = [folder.read() for folder in folders]
    groups = group(runs)
    rows = compare(groups)
    notes = []
    if any("validation" in run.summary for run in runs):
        notes.append(
            "The best round was chosen on validation points held out from training; the table is the test part at "
            "that round, measured once. ± is the standard deviation over seeds."
        )
    if any(run.config.selection == "paper" for run in runs):
        notes.append(
            "“Best round on test”: the round was chosen on the test part, as in the paper. Such figures are optimistic "
            "and are for reproduction only."
        )
    picture = None
    curves = '<p class="note">Curves need matplotlib: pip install "fedmlh[plot]", then run fedmlh report again.</p>'
    if importlib.util.find_spec("matplotlib"):
        svg, picture = draw_curves(groups, "svg").decode(), draw_curves(groups, "png")
        curves = svg[svg.index("<svg") :]
    page = _PAGE.substitute(
        title=escape_html(f"fedmlh: {', '.join(dict.fromkeys(run.config.name for run in runs))}"),
        selection=" ".join(notes),
        table=_table(("", *groups), [(row.name, *row.cells) for row in rows]),
        curves=curves,
        clients=_clients(runs),
        settings="\n".join(map(escape_html, runs[0].config.to_toml().split("\n"))),
    )
    write_atomically(target, page.encode())
    if picture is not None:
        write_atomically(target.parent / "curves.png", picture)
    return list(groups), rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape_html(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def _clients(runs: Sequence[FinishedRun]) -> str:
    """What the shared model gives each client, where that was measured."""
    parts = []
    for run in runs:
        clients = run.summary.get("clients", [])
        if not clients:
            continue
        ks = list(run.summary["precision"])
        alone = "precision_alone" in clients[0]
        head = ["client", "points", "held out", *(f"P@{k}" for k in ks), *(f"alone P@{k}" for k in ks if alone)]
        rows = [
            [
                str(client.get("site", client["client"])),
                f"{client['examples']:,}",
                f"{client['held_out']:,}",
                *(f"{100 * client['precision'][k]:.1f}" for k in ks),
                *(f"{100 * client['precision_alone'][k]:.1f}" for k in ks if alone),
            ]
            for client in clients
        ]
        parts.append(f"<h3>{escape_html(run.folder.path.name)}</h3><div class='wide'>{_table(head, rows)}</div>")
    if not parts:
        return ""
    note = "On held-out validation points that follow the client's own law, %; alone: trained on its own points only."
    return f"<h2>Clients</h2><p class='note'>{note}</p>" + "".join(parts)
