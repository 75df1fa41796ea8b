"""The page at `/`: a form that works without scripts, and with them without loading the page again."""

import asyncio
import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedmlh.data.readers.files import PACKED, Incoming
from fedmlh.display import count, escape_html
from fedmlh.errors import UserError
from fedmlh.serving.answers import write_table
from fedmlh.serving.records import Record, Records, TooManyCells, open_records
from fedmlh.web.ask import read_form, take_share, take_whole
from fedmlh.web.problem import LATER, Problem
from fedmlh.web.project import BATCH, MOST_EXPLAINED, MOST_LABELS, Answer, Project, Question

#: Rows of an uploaded file, and how many of them the page shows.
MOST_ROWS, _SHOWN = 2000, 20
#: Its rows times its columns, and the files that are worked on at a time: others wait, and forms do not wait for them.
MOST_CELLS, MOST_FILES = 1_000_000, 2
_LONGEST_TEXT, _MOST_WORDS = 2000, 12
#: Characters of a text that a refusal shows again; as escapes they take up to six times the bytes.
_LONGEST_ECHO = 200_000
#: An option of the command line, in a sentence.
_OPTION = re.compile(r" \(--[^)]*\)")
_FIELD = re.compile(r"\{\{(\w+)\}\}")


def make_routes(projects: Mapping[str, Project]) -> list[Route]:
    """Return the routes of the page."""
    turns = asyncio.Semaphore(MOST_FILES)

    async def show(_: Request) -> Response:
        return _answer(projects, {}, "")

    async def propose(request: Request) -> Response:
        form = await read_form(request)
        try:
            project = _find(projects, form)
            why = form.get("why", "") != ""
            top = take_whole(form.get("top", "10"), "the number of labels", 1, MOST_EXPLAINED if why else MOST_LABELS)
            threshold = take_share(form.get("threshold", "0"), "the least probability")
            text = form.get("text", "")
            if not text.strip():
                raise Problem(400, "there is no text: type or paste one")
            has_chances = project.model.bundle.curve is not None
            answer = await project.ask(Question([text], top, threshold if has_chances else 0.0, why))
        except (Problem, UserError) as problem:
            return _complain(projects, form, problem)
        return _answer(projects, form, _show_one(answer))

    async def label_file(request: Request) -> Response:
        said = request.query_params
        try:
            project = _find(projects, said)
            top = take_whole(said.get("top", "10"), "the number of labels", 1, MOST_LABELS)
            threshold = take_share(said.get("threshold", "0"), "the least probability")
            content = await request.body()
            async with turns:
                shown = await _label(project, said, content, top, threshold)
        except (Problem, UserError) as problem:
            return _complain(projects, said, problem)
        return _answer(projects, said, shown)

    return [
        Route("/", show),
        Route("/", propose, methods=["POST"]),
        Route("/file", label_file, methods=["POST"]),
    ]


def _find(projects: Mapping[str, Project], said: Mapping[str, str]) -> Project:
    found = projects.get(said.get("project", next(iter(projects))))
    if found is None:
        raise Problem(404, "there is no such model: choose one")
    return found


async def _label(project: Project, said: Mapping[str, str], content: bytes, top: int, threshold: float) -> str:
    """Return what the page shows of a file whose rows have been labelled."""
    column = said.get("column", "").strip()
    name = said.get("name", "").rpartition("/")[2].rpartition("\\")[2] or "texts.csv"
    if name.lower().endswith(".gz") or content.startswith(PACKED):
        raise Problem(400, f"{name} is packed: unpack it first")
    try:
        records = await run_in_threadpool(_open, name, content, column)
    except TooManyCells as problem:
        raise Problem(413, f"{problem}: use fedmlh predict") from None
    if len(records) > MOST_ROWS:
        raise Problem(413, f"{name} has {len(records):,} rows, and may have {MOST_ROWS:,}: use fedmlh predict")
    rows = await run_in_threadpool(list, records)
    model, labels = await _ask_all(project, [row.text for row in rows], top, threshold)
    answers = list(zip(rows, labels, strict=True))
    table = await run_in_threadpool(lambda: "".join(write_table(model, records, answers)))
    return _show_file(name, answers, table)


def _open(name: str, content: bytes, column: str) -> Records:
    return open_records(Incoming.of(name, content), (column,) if column else (), most_cells=MOST_CELLS)


async def _ask_all(project: Project, texts: Sequence[str], top: int, threshold: float) -> Answer:
    """Return the labels of all texts by one model: if it is replaced meanwhile, all are asked again, once."""
    for _ in range(2):
        found = Answer(project.model, [])
        for begin in range(0, len(texts), BATCH):
            some = await project.ask(Question(texts[begin : begin + BATCH], top, threshold))
            if begin and some.model is not found.model:
                break
            found = Answer(some.model, found.labels + some.labels)
        else:
            return found
    raise Problem(503, "the model is being replaced: try again", LATER)


def _answer(projects: Mapping[str, Project], said: Mapping[str, str], results: str, status: int = 200) -> Response:
    """Return the page, filled in as it was sent."""
    page, policy = _read_page()
    chosen = said.get("project", "")
    options = (
        f'<option value="{name}"{" selected" if name == chosen else ""}>{name} ({len(project.model.bundle.labels):,} '
        f"labels)</option>"
        for name, project in projects.items()
    )
    threshold = said.get("threshold", "0")
    if not re.fullmatch(r"[01]|0?\.\d{1,4}", threshold):
        threshold = "0"
    fields = {
        "title": "fedmlh: labels for a text",
        "projects": "".join(options),
        # As it was sent: a text area shows no markup, and keeps line breaks.
        "text": html.escape(said.get("text", "")),
        "top": escape_html(said.get("top", "10")),
        "most": str(MOST_LABELS),
        "rows": f"{MOST_ROWS:,}",
        "threshold": threshold,
        "percent": f"{100 * float(threshold):.0f} %",
        "why": " checked" if said.get("why") else "",
        "results": results,
    }
    content = _FIELD.sub(lambda found: fields[found[1]], page)
    return Response(content, status, {"Content-Security-Policy": policy}, media_type="text/html")


def _complain(projects: Mapping[str, Project], said: Mapping[str, str], problem: Problem | UserError) -> Response:
    """Return the page with one sentence about what is wrong; options of the command line mean nothing here."""
    sentence = _OPTION.sub("", str(problem))
    if len(said.get("text", "")) > _LONGEST_ECHO:
        said = {**said, "text": ""}
        sentence += " (the text is too long to be shown again)"
    shown = f'<h2 id="results-title">That did not work</h2>\n<p class="alert" role="alert">{escape_html(sentence)}</p>'
    answer = _answer(projects, said, shown, problem.status if isinstance(problem, Problem) else 400)
    answer.headers.update((isinstance(problem, Problem) and problem.headers) or {})
    return answer


@cache
def _read_page() -> tuple[str, str]:
    """Return the page and its policy: nothing but its own style and script, and questions to its own server."""
    page = files("fedmlh.web").joinpath("page.html").read_text("utf-8")
    hashes = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'; "
        "connect-src 'self'; form-action 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _show_one(answer: Answer) -> str:
    """Return the labels of the one text of an answer."""
    (labels,), model = answer.labels, answer.model
    meanings = f'<p class="note">{escape_html(model.score_meaning)}. {escape_html(model.probability_meaning)}.</p>'
    return f'<h2 id="results-title">{count(len(labels), "label")}</h2>\n{_list_labels(labels)}\n{meanings}'


def _show_file(name: str, answers: Sequence[tuple[Record, list[Any]]], table: str) -> str:
    """Return the first rows of a file with their labels, and the whole of it for the script to offer."""
    parts = [
        f'<h2 id="results-title">{count(len(answers), "row")} of {escape_html(name)}</h2>',
        f'<textarea id="csv" hidden readonly data-name="labels.csv">{html.escape(table)}</textarea>',
    ]
    for record, labels in answers[:_SHOWN]:
        text = record.text if len(record.text) <= _LONGEST_TEXT else f"{record.text[:_LONGEST_TEXT]} …"
        parts.append(f"<h3>Line {record.lineno:,}</h3>")
        parts.append(f'<p class="text" dir="auto">{escape_html(text)}</p>\n{_list_labels(labels)}')
    if len(answers) > _SHOWN:
        parts.append(f'<p class="note">and {count(len(answers) - _SHOWN, "row")} more, in the file</p>')
    return "\n".join(parts)


def _list_labels(labels: Sequence[Mapping[str, Any]]) -> str:
    if not labels:
        return "<p>No label: the model knows no word of this text, or no label is probable enough.</p>"
    return "<ol>\n" + "\n".join(map(_show_label, labels)) + "\n</ol>"


def _show_label(label: Mapping[str, Any]) -> str:
    key = "" if label["key"] == label["name"] else f' <span class="key">{escape_html(label["key"])}</span>'
    name, chance = escape_html(label["name"]), label["probability"]
    if chance is None:
        item, bar = "<li>", f'<span class="chance">score</span> <span class="chance">{label["score"]:.3f}</span>'
    else:
        item, percent = f'<li data-probability="{chance:.6f}">', f"{100 * chance:.1f} %"
        bar = (
            f'<meter min="0" max="1" value="{chance:.6f}" aria-label="probability of {name}">{percent}</meter> '
            f'<span class="chance">{percent}</span>'
        )
    why = _show_why(label) if "words" in label else ""
    return f'{item}<div class="label"><span dir="auto"><strong>{name}</strong>{key}</span> {bar}</div>{why}</li>'


def _show_why(label: Mapping[str, Any]) -> str:
    """Return the reasons for a label: what words add, and how tables voted."""
    words = _show_table(
        "What the score loses without a word",
        ("word", "adds"),
        ((word["word"], f"{word['adds']:+.3f}") for word in label["words"][:_MOST_WORDS]),
    )
    votes = _show_table(
        "How each table voted",
        ("table", "rank of the bucket", "score", "labels in the bucket", "among them"),
        (
            (
                str(vote["table"]),
                f"{vote['rank']:,} of {vote['buckets']:,}",
                f"{vote['score']:.3f}",
                f"{vote['labels_in_bucket']:,}",
                "; ".join(vote["shared_with"]) or "no other",
            )
            for vote in label["tables"]
        ),
    )
    return f"<details><summary>Why {escape_html(label['name'])}</summary>{words}{votes}</details>"


def _show_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    # Focusable: a table that is wider than the page is scrolled by keyboard as well.
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
