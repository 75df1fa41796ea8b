"""The report as one HTML file that needs no other file."""

import base64
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import groupby
from string import Template

from fedmlh.display import count, escape_html
from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.figures.drawing import Figure
from fedmlh.reproduction.findings import tell_findings
from fedmlh.reproduction.paper import SLIPS
from fedmlh.reproduction.tables.table import Row, Table

_TITLE = "FedMLH, measured again"


def render_page(evidence: Evidence, parts: Sequence[tuple[str, Sequence[Table | Figure]]], command: str) -> str:
    """Return the page; a part is a heading with its tables and figures."""
    template = Template((resources.files("fedmlh") / "reproduction" / "page.html").read_text("utf-8"))
    # A lemma's figure follows its table: one link is enough for both.
    anchors = {thing.title.partition(".")[0]: thing.id for _, things in reversed(parts) for thing in reversed(things)}
    links = {"Findings": "findings", **dict(reversed(anchors.items())), "Slips": "slips", "How it was made": "made"}
    body = []
    for title, things in parts:
        body.append(f"<h2>{escape_html(title)}</h2>")
        body += [_table(thing) if isinstance(thing, Table) else _figure(thing) for thing in things]
    return template.substitute(
        title=_TITLE,
        lead=escape_html(
            "Every table, figure and theorem of “Federated Multiple Label Hashing (FedMLH): Communication Efficient "
            "Federated Learning on Extreme Classification Tasks” (Dai et al.), measured again and shown beside the "
            "printed values."
        ),
        scale=_scale(evidence),
        contents="".join(f'<a href="#{name}">{escape_html(text)}</a>' for text, name in links.items()),
        findings=_items(tell_findings(evidence)),
        body="\n".join(body),
        slips=_items(SLIPS),
        made=_made(evidence, command),
    )


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{escape_html(sentence)}</li>" for sentence in sentences)


def _scale(evidence: Evidence) -> str:
    scale = evidence.scale
    names = {source.name for source in evidence.trained}
    said = [f"Scale “{scale.name}”: {count(scale.rounds, 'round')}, {count(scale.seeds, 'seed')}."]
    if scale.rounds < 70:
        said.append("That is less than the paper's 70 rounds: curves have not converged.")
    if any(source.kind == "synthetic" for source in evidence.sources):
        said.append("The data is synthetic: accuracy on it cannot be compared with the paper's.")
    rest = [source.name for source in evidence.sources if source.name not in names]
    if names and rest:
        said.append(f"Trained on {', '.join(sorted(names))}; of {', '.join(rest)} only labels and sizes are shown.")
    return f'<p class="said note">{escape_html(" ".join(said))}</p>'


def _made(evidence: Evidence, command: str) -> str:
    results = evidence.results.found.values()
    machines = sorted({", ".join(f"{name} {value}" for name, value in found["machine"].items()) for found in results})
    hours = sum(found["seconds"] for found in results) / 3600
    missing = evidence.results.missing
    parts = [
        f"<pre>{escape_html(command)}</pre>",
        "<p class='note'>The same command continues where it was stopped. Beside this page: <code>tables/</code> (CSV "
        "and Markdown), <code>figures/</code> (PNG and SVG), <code>results/</code> (one JSON file per "
        "measurement).</p>",
        f"<p class='note'>{count(len(results), 'measurement')}, {hours:.2f} hours of work in all, seeds 0 to "
        f"{evidence.scale.seeds - 1}, on: {escape_html('; '.join(machines))}.</p>",
    ]
    if missing:
        parts.append(
            "<h3 id='missing'>What is missing</h3><ul>" + _items(f"{k}: {v}" for k, v in missing.items()) + "</ul>"
        )
    return "".join(parts)


def _figure(figure: Figure) -> str:
    image = f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}"
    width = f'width="{figure.width}" style="min-width: min(36rem, {figure.width}px)"'
    return (
        f'<section id="{figure.id}"><h3>{escape_html(figure.title)}</h3><figure><div class="scroll" tabindex="0">'
        f'<img alt="{escape_html(figure.title)}" {width} src="{image}"></div>'
        f"<figcaption>{escape_html(figure.caption)}</figcaption></figure></section>"
    )


def _table(table: Table) -> str:
    notes = "".join(f'<p class="note">{escape_html(note)}</p>' for note in table.notes)
    head, rows = table.head[table.groups :], []
    for group, members in groupby(table.rows, lambda row: row[: table.groups]):
        if table.groups:
            name = escape_html(", ".join(part for part in group if part))
            rows.append(f'<tr class="group"><th colspan="{len(head)}"><span>{name}</span></th></tr>')
        rows += [_row(head, row[table.groups :]) for row in members]
    shown = '<p class="note">Nothing was measured for this table.</p>'
    if rows:
        body = f"<table><thead>{_head(head)}</thead><tbody>{''.join(rows)}</tbody></table>"
        shown = f'<div class="scroll" tabindex="0">{body}</div>'
    return f'<section id="{table.id}"><h3>{escape_html(table.title)}</h3>{shown}{notes}</section>'


def _row(head: Row, row: Row) -> str:
    cells = [f'<th scope="row">{escape_html(row[0])}</th>']
    previous = ""
    for name, cell in zip(head[1:], row[1:], strict=True):
        group, _, part = name.rpartition(" · ")
        kinds = [part if part in ("ours", "paper", "difference") else "", "first" if group != previous else ""]
        previous = group
        cells.append(f'<td class="{" ".join(kinds).strip()}">{escape_html(cell)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _head(head: Row) -> str:
    """Return the head of a table; columns whose names share the part before ' · ' get one cell above them."""
    parts = [name.rpartition(" · ") for name in head]
    above, below = [], []
    for group, members in groupby(parts, lambda part: part[0]):
        names = [escape_html(name) for *_, name in members]
        if group and len(names) > 1:
            above.append(f'<th colspan="{len(names)}" class="first">{escape_html(group)}</th>')
            below += [f"<th{' class=first' if number == 0 else ''}>{name}</th>" for number, name in enumerate(names)]
        elif group:
            above.append(f'<th rowspan="2" class="first">{escape_html(group)}</th>')
        else:
            above += [f'<th rowspan="2">{name}</th>' for name in names]
    return f"<tr>{''.join(above)}</tr><tr>{''.join(below)}</tr>"
