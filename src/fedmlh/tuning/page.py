"""The page of a search: the best trials, accuracy against bytes, all trials, and which settings mattered."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import optuna

from fedmlh.display import count, escape_html
from fedmlh.storage import write_atomically
from fedmlh.tuning.drawing import Mark, draw_bars, draw_marks
from fedmlh.tuning.goal import Goal
from fedmlh.tuning.results import MIB, find_best, find_front, rank
from fedmlh.tuning.search import FINISHED, REPEATED, Row, describe
from fedmlh.tuning.space import IDENTITY, ONCE, Side

#: Fewer trials cannot show which settings mattered.
_FEWEST = 8
_SHOWN = 10
#: Colour-blind safe (Okabe and Ito).
_COLOURS = {
    "rounds, hashed labels": "#0072b2",
    "rounds, one output per label": "#d55e00",
    "one round, hashed labels": "#cc79a7",
    "one round, one output per label": "#009e73",
}
_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
.wide { overflow-x: auto; } .row { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.row > div { flex: 1 1 22rem; max-width: 36rem; min-width: 0; }
table { border-collapse: collapse; } th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th { white-space: nowrap; } th:first-child, td:first-child { text-align: left; white-space: nowrap; }
td:last-child, th:last-child { text-align: left; min-width: 20rem; font-size: 14px; } svg { width: 100%; height: auto; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 13px; } .note { color: #555; }
.key span { margin-right: 1.2rem; display: inline-block; }
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; }
@media print { body { margin: 0; max-width: none; } }
</style></head><body>
<h1>$title</h1>
<p>$lead</p>
<p class="note">$note</p>
<h2>Best trials</h2><div class="wide">$table</div>
<h2>Accuracy and bytes</h2>
<p class="key">$key</p>
<div class="row"><div><h3>Against bytes</h3>$scatter</div><div><h3>Trial by trial</h3>$history</div></div>
<h2>What mattered</h2>
$mattered
<h2>The best settings</h2><pre>$settings</pre>
</body></html>
""")


def write_page(rows: Sequence[Row], goal: Goal, target: Path) -> None:
    """Write the page; at least one trial has finished."""
    best = find_best(rows)
    if best is None or best.config is None:
        raise ValueError("no trial has finished")
    sides = {side.name: side for side in goal.sides}
    said, rows = _tell_how(rows, goal), [row for row in rows if row.state != REPEATED]
    page = _PAGE.substitute(
        title=escape_html(f"fedmlh tune: {goal.dataset.name}"),
        lead=escape_html(_tell_best(rows, best)),
        note=escape_html(said),
        table=_list_best(rows, best, sides),
        key=_explain_colours(rows),
        scatter=_draw_bytes(rows, best),
        history=_draw_history(rows, best),
        mattered=_draw_importances(rows, sides),
        settings="\n".join(map(escape_html, best.config.to_toml().split("\n"))),
    )
    write_atomically(target, page.encode())


def _tell_best(rows: Sequence[Row], best: Row) -> str:
    """Return a text that compares the best trial with the first trial of each side."""
    said = f"Best: trial {best.name}, mean of P@k {_percent(best.score)} on validation."
    if best.number == 0:
        said += " It has the settings of the preset: no trial was better."
    presets = [row for row in rows if row.number == 0 and row.state == FINISHED and row is not best]
    if presets:
        said += f" Presets: {', '.join(f'{row.name} {_percent(row.score)}' for row in presets)}."
    return said


def _tell_how(rows: Sequence[Row], goal: Goal) -> str:
    counts = Counter(row.state for row in rows)
    named = ", ".join(f"{number} {state}" for state, number in counts.items())
    limit = goal.wish.bytes_per_round
    return (
        f"{count(len(rows), 'trial')}: {named}. Models of at most {goal.budget / MIB:,.2f} MiB"
        + ("" if limit is None else f", and at most {limit / MIB:,.2f} MiB per round both ways")
        + f", seed {goal.wish.seed}. The test part was not read: all figures are measured on validation "
        "points, on which the best of many trials looks a little better than it is."
    )


def _list_best(rows: Sequence[Row], best: Row, sides: dict[str, Side]) -> str:
    ks = list(best.precision or {})
    shown = rank(rows)[:_SHOWN]
    shown += [row for row in rank(rows) if row.number == 0 and row not in shown]
    heads = ["trial", *(f"P@{k}" for k in ks), "mean", "MiB", "MiB per round", "rounds", "settings"]
    lines = [_line(heads, "th")]
    for row in shown:
        precision = row.precision or {}
        cells = [row.name, *(f"{100 * precision[k]:.1f}" for k in ks), _percent(row.score)]
        cells += [
            f"{row.bytes_total / MIB:,.2f}",
            f"{row.bytes_total / MIB / max(1, row.rounds):,.2f}",
            str(row.rounds),
        ]
        lines.append(_line([*cells, _tell_settings(row, sides[row.side])], "td"))
    return f"<table>{''.join(lines)}</table>"


def _line(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape_html(cell)}</{tag}>" for cell in cells) + "</tr>"


def _tell_settings(row: Row, side: Side) -> str:
    """Return the settings of a trial in short: sizes, then knobs that differ from the usual."""
    config = row.config
    if config is None:
        return ""
    said = []
    if row.side == ONCE:
        identity = config.label_map == "identity"
        said.append("output per label" if identity else f"{config.num_tables} × {config.num_buckets:,} buckets")
    else:
        identity = config.is_fedavg
        said.append("output per label" if identity else f"{config.num_tables} × {config.num_buckets:,} buckets")
        features = "all features" if config.feature_map == "none" else f"{config.feature_dim:,} features"
        said.append(f"{features}, hidden {'·'.join(map(str, config.hidden_sizes))}, step {config.learning_rate:g}")
    if row.number == 0:
        return ", ".join([*said, "the preset"])
    usual = {knob.name: knob.usual for knob in side.knobs}
    hidden = {"labels", "tables", "buckets", "step"} | (set() if row.side == ONCE else {"features"})
    others = [(name, value) for name, value in row.values.items() if name not in hidden and value != usual[name]]
    if row.side == ONCE:
        others = [(name, config.feature_slots) if name == "features" else (name, value) for name, value in others]
        others = [("slots" if name == "features" else name, value) for name, value in others]
    return ", ".join([*said, *(f"{name} {_short(value)}" for name, value in others)])


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.1f}"


def _kind(row: Row) -> str:
    side = "one round" if row.side == ONCE else "rounds"
    labels = "one output per label" if row.values.get("labels") == IDENTITY else "hashed labels"
    return f"{side}, {labels}"


def _explain_colours(rows: Sequence[Row]) -> str:
    there = {_kind(row) for row in rows if row.score is not None}
    parts = [
        f'<span><i style="background: {colour}"></i> {name}</span>'
        for name, colour in _COLOURS.items()
        if name in there
    ]
    return "".join(parts) + "<span>○ stopped early or over the limit</span><span>◎ the best</span>"


def _mark(row: Row, best: Row, x: float) -> Mark:
    cost = f"{row.bytes_total / MIB:,.2f} MiB, {count(row.rounds, 'round')}"
    text = f"{row.name}: {_percent(row.score)}, {cost}, {row.state}"
    hollow = row.state != FINISHED
    return Mark(x, 100 * (row.score or 0.0), _COLOURS[_kind(row)], text, hollow, row.name == best.name)


def _draw_bytes(rows: Sequence[Row], best: Row) -> str:
    marks = [_mark(row, best, row.bytes_total / MIB) for row in rows if row.score is not None and row.bytes_total]
    front = [(row.bytes_total / MIB, 100 * (row.score or 0.0)) for row in find_front(rows)]
    picture = draw_marks(marks, front, ("MiB sent, both ways, all rounds", "mean of P@k, validation, %"), log=True)
    return (
        picture + "<p class='note'>On the line: trials that no finished trial beats with the same bytes or fewer.</p>"
    )


def _draw_history(rows: Sequence[Row], best: Row) -> str:
    """Draw trials by number; trials of the same number, one per side, stand beside each other."""
    marks = [_mark(row, best, row.number) for row in rows if row.score is not None]
    line: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: row.number):
        score = 100 * (row.score or 0.0)
        if row.state == FINISHED and (not line or score > line[-1][1]):
            line.append((row.number, score))
    picture = draw_marks(marks, line, ("trial", "mean of P@k, validation, %"), log=False)
    return picture + "<p class='note'>The line: the best trial so far.</p>"


def _draw_importances(rows: Sequence[Row], sides: dict[str, Side]) -> str:
    parts = []
    for kind in _COLOURS:
        own = [row for row in rows if row.score is not None and _kind(row) == kind]
        shares = find_importances(own, sides[own[0].side]) if len(own) >= _FEWEST else {}
        if shares:
            parts.append(
                f"<div><h3>{kind[0].upper()}{kind[1:]}, {count(len(own), 'trial')}</h3>{draw_bars(shares)}</div>"
            )
    if not parts:
        return f"<p class='note'>Too few trials to tell: it takes at least {_FEWEST} of a kind.</p>"
    note = (
        "How much of the spread between trials each setting explains (fANOVA). Trials that were stopped early count "
        "with what they had reached. With few trials this is a hint, not a result."
    )
    return f"<p class='note'>{note}</p><div class='row'>{''.join(parts)}</div>"


def find_importances(rows: Sequence[Row], side: Side) -> dict[str, float]:
    """Return the share of the spread of scores that each knob explains, the largest first."""
    names = [name for name in rows[0].values if all(name in row.values for row in rows)]
    names = [name for name in names if len({row.values[name] for row in rows}) > 1]
    if not names or len({row.score for row in rows}) == 1:
        return {}
    knobs = {knob.name: knob for knob in side.knobs}
    study = optuna.create_study(direction="maximize")
    for row in rows:
        study.add_trial(
            optuna.trial.create_trial(
                params={name: row.values[name] for name in names},
                distributions={name: describe(knobs[name]) for name in names},
                value=row.score,
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0), params=names
        )
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
