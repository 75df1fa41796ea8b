"""The page: a form that works without scripts; with them, by keyboard alone, and for those who hear it."""

import base64
import csv
import gzip
import hashlib
import html
import io
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from browser import ENTER, RIGHT, SPACE, TAB, Browser, browse, needs_chromium
from drawn_models import BASE, calibrate, make_bundle, name_labels
from fedmlh.data.text import TextFeatures
from fedmlh.serving.predictor import Model
from fedmlh.web import page as page_module
from fedmlh.web.project import Answer, Project, Question
from served import Client, serve
from waiting import wait_for

HASHED = TextFeatures.hashing(50)
#: Names that would be markup, and one that would steer the direction of reading.
ODD = [
    '<script>alert("odd")</script>',
    "a & b",
    "</textarea><img src=//evil.example/x>",
    "turned \u202e around",
    "{{text}}",
]
TEXT = "olive oil <b>prices</b>"
#: Few bytes that make a table of 2,250,000 cells.
OWN_FIELDS = b"".join(
    json.dumps({"text": "o", **{f"{row}_{field}": 0 for field in range(100)}}).encode() + b"\n" for row in range(150)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    bundle = make_bundle(BASE, 5, d=50, text=HASHED)
    names = [f"{odd} {n}" for n, odd in enumerate(ODD * 6)]
    models = {
        "odd": calibrate(name_labels(bundle, names, [f"key-{n}" for n in range(30)])),
        "raw": replace(bundle, curve=None),
    }
    for name, model in models.items():
        Model(model).save(place / name)
    return {name: place / name for name in models}


@pytest.fixture(scope="module")
def client(folders: dict[str, Path]):
    with serve(folders) as client:
        yield client


class Page(HTMLParser):
    """The elements of a page, their attributes and text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def read_page(client: Client, **fields: Any) -> Page:
    reply = client.post_form("/", **fields) if fields else client.get("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    return Page(reply.body.decode())


def test_every_field_has_a_label_and_the_form_needs_no_script(client: Client) -> None:
    page = read_page(client)
    labelled = {label["for"] for label in page.find("label")}
    for field in (*page.find("input"), *page.find("select"), *page.find("textarea")):
        assert field["id"] in labelled, field
    form = page.find("form")[0]
    assert (form["method"], form["action"]) == ("post", "./")
    assert {field.get("name") for field in page.find("input")} >= {"top", "threshold", "why"}
    assert page.find("html")[0]["lang"] == "en"
    assert [option["value"] for option in page.find("option")] == ["odd", "raw"]


def test_nothing_runs_but_what_the_policy_names(client: Client) -> None:
    reply = client.get("/")
    policy, content = reply.headers["content-security-policy"], reply.body.decode()
    for tag in ("script", "style"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode() in policy
    assert "unsafe" not in policy
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", content)
    page = Page(content)
    assert not [
        name for _, attributes in page.elements for name in attributes if name.startswith("on") or name == "style"
    ]


@pytest.mark.parametrize("why", ["", "yes"])
def test_the_form_shows_the_labels_and_reasons_of_the_predictor(client: Client, folders, why: str) -> None:
    model = Model.load(folders["odd"])
    (expected,) = model.explain([TEXT], 4)
    page = read_page(client, project="odd", text=TEXT, top=4, threshold="0.05", why=why)
    shown = [label for label in expected if label["probability"] >= 0.05]
    bars = page.find("meter")
    assert [float(bar["value"]) for bar in bars] == pytest.approx([label["probability"] for label in shown], abs=1e-5)
    text = "".join(page.texts)
    for label in shown:
        assert label["name"].replace("\u202e", "\\u202e") in text
    assert len(page.find("details")) == (len(shown) if why else 0)
    if why:
        votes = [vote for label in shown for vote in label["tables"]]
        assert all(f"{vote['rank']:,} of {vote['buckets']:,}" in page.texts for vote in votes)
    # What was typed stands in the form, and nothing of it or of names is markup.
    assert TEXT in page.texts
    assert len(page.find("script")) == 1
    assert not page.find("img")
    assert "\u202e" not in text


def test_a_model_without_probabilities_shows_scores(client: Client) -> None:
    page = read_page(client, project="raw", text=TEXT, top=3, threshold="0.5")
    assert len(page.find("li")) == 3
    assert not page.find("meter")


@pytest.mark.parametrize(
    "fields",
    [
        {"text": " "},
        {"text": TEXT, "project": "none"},
        {"text": TEXT, "top": "x"},
        {"text": TEXT, "threshold": "2"},
        {"text": " ".join(f"word{n}" for n in range(501)), "why": "yes"},
    ],
)
def test_what_is_wrong_is_said_on_the_page(client: Client, fields: dict[str, str]) -> None:
    reply = client.post_form("/", **fields)
    assert reply.status in (400, 404)
    page = Page(reply.body.decode())
    assert [each.get("role") for each in page.find("p")].count("alert") == 1


def test_a_file_comes_back_with_its_labels(client: Client, folders) -> None:
    model = Model.load(folders["odd"])
    rows = [["1", "olive, oil"], ["2", "fish\nof the sea"], ["3", 'a "market"'], ["4", "=1+1"]] * 10
    content = io.StringIO()
    csv.writer(content).writerows([["id", "title"], *rows])
    said = urlencode({"project": "odd", "top": 2, "name": "titles.csv", "column": "title"})
    reply = client.ask("POST", f"/file?{said}", content.getvalue(), {"Content-Type": "application/octet-stream"})
    assert reply.status == 200
    (table,) = re.findall(r"<textarea id=\"csv\"[^>]*>(.*?)</textarea>", reply.body.decode(), re.DOTALL)
    parser = Page(f"<p>{table}</p>")
    header, *found = csv.reader(io.StringIO("".join(parser.texts)))
    assert header[:2] == ["id", "title"]
    assert [row[:2] for row in found] == rows
    expected = model.predict([text for _, text in rows], 2)
    at = header.index("keys")
    assert [row[at].split("; ") if row[at] else [] for row in found] == [
        [label["key"] for label in labels] for labels in expected
    ]


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("titles.csv", b"id,title\n1,olive\n", ""),
        ("titles.csv", b"id,title\n1,olive\n", "text"),
        ("titles.csv", b"text,b\n\xff,\xfe\n", ""),
        ("titles.csv.gz", b"\x1f\x8b", ""),
        ("titles.csv", gzip.compress(b"text,n\nolive,1\n", mtime=0), ""),
        ("wide.csv", b"text" + b"," * 1_000_000 + b"\nolive\n", ""),
        ("wide.csv", b"text" + b"," * 600 + b"\n" + b"olive\n" * 2000, ""),
        ("own.jsonl", OWN_FIELDS, ""),
        ("titles.xlsx", b"PK\x03\x04", ""),
        ("titles.csv", b"", ""),
        ("titles.csv", b"text,n\n" + b"olive,1\n" * 2001, ""),
        ("<b>.csv", b'text,b\n"olive', ""),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(client: Client, name, content, column) -> None:
    reply = client.ask("POST", f"/file?{urlencode({'name': name, 'column': column})}", content)
    page = Page(reply.body.decode())
    assert reply.status in (400, 413)
    assert [each.get("role") for each in page.find("p")].count("alert") == 1
    assert "--" not in "".join(page.texts).split("That did not work")[1].split("\n")[1]


def send_file(client: Client, content: str, **said: object) -> Any:
    return client.apart.ask("POST", f"/file?{urlencode({'name': 'a.txt', **said})}", content)


def test_files_wait_for_each_other_and_nothing_else_waits_for_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also nobody works on a file whose client has gone meanwhile."""
    begun, go, open_records = [], threading.Event(), page_module.open_records

    def wait_and_open(*arguments: Any, **more: Any) -> Any:
        begun.append(arguments[0].name)
        go.wait()
        return open_records(*arguments, **more)

    monkeypatch.setattr(page_module, "open_records", wait_and_open)
    with ThreadPoolExecutor(60) as pool:
        try:
            first = [pool.submit(send_file, client, "olive") for _ in range(2)]
            wait_for(lambda: len(begun) == 2)
            for _ in range(9):
                with socket.create_connection(("127.0.0.1", client.port)) as gone:
                    head = b"POST /file?name=gone.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nolive"
                    gone.sendall(head)
            others = [pool.submit(send_file, client, "olive") for _ in range(50)]
            for _ in range(20):
                assert client.suggest("odd", text="olive").status == 200
                assert client.post_form("/", text="olive").status == 200
            assert len(begun) == 2
        finally:
            go.set()
        assert {each.result().status for each in (*first, *others)} == {200}
    assert begun == ["a.txt"] * 52


def test_a_file_is_labelled_by_one_model(client: Client, folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the model is replaced meanwhile, by one without probabilities."""
    odd, raw, ask = Model.load(folders["odd"]), Model.load(folders["raw"]), Project.ask
    for models, expected in (
        ([odd, odd, raw], odd),
        ([odd, raw, raw, raw, odd], raw),
        ([odd, raw, raw, odd, odd], None),
    ):
        following = list(models)

        async def ask_and_replace(self: Project, question: Question, following: list[Model] = following) -> Answer:
            self.model = following.pop(0)
            answer = await ask(self, question)
            self.model = following[0]
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(Project, "ask", ask_and_replace)
            reply = send_file(client, "olive\n" * 40, project="odd", top=2)
        assert len(following) == 1
        if expected is None:
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        else:
            header = reply.body.decode().partition("data-name=")[2].partition("\n")[0]
            assert reply.status == 200
            assert ("probabilities" in header) == (expected is odd)
            assert ("scores" in header) == (expected is raw)


def test_a_refusal_shows_a_text_again_unless_it_is_large(client: Client) -> None:
    small, large = "'" * 200_000, "'" * 200_001
    assert html.escape(small) in client.post_form("/", text=small, top="x").body.decode()
    reply = client.post_form("/", text=large, top="x")
    assert reply.status == 400
    assert len(reply.body) < 50_000
    assert "too long to be shown again" in reply.body.decode()


# In a browser.


@pytest.fixture(params=[1200, 390])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def check_page(browser: Browser, client: Client, width: int) -> None:
    """Nothing is wider than the window, nothing was asked elsewhere, and the console says nothing."""
    assert browser.complaints() == []
    own = f"http://127.0.0.1:{client.port}/"
    asked = [address for address in browser.requests() if not address.startswith(("chrome:", "data:", "blob:"))]
    assert asked
    assert all(address.startswith(own) for address in asked), asked


@pytest.mark.slow
@needs_chromium
def test_the_page_by_keyboard_alone(client: Client, folders, tmp_path: Path, width: int) -> None:
    with browse(tmp_path, width) as browser:
        browser.open(f"http://127.0.0.1:{client.port}/")
        order = []
        for _ in range(20):
            browser.press(TAB)
            order.append(browser.focus)
            if browser.focus == "text":
                browser.press(*"olive oil")
            if browser.focus == "why":
                browser.press(SPACE)
                break
        assert order == ["project", "text", "top", "threshold", "why"]
        browser.press(TAB, ENTER)
        wait_for(lambda: browser.focus == "results-title")
        assert len(browser.find("#results li")) == 10
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        browser.press(TAB, ENTER)  # the first reason
        assert browser.run("return document.querySelector('#results details').open")
        browser.take_picture(tmp_path / "reasons.png")
        browser.run("document.getElementById('threshold').focus()")
        (labels,) = Model.load(folders["odd"]).predict(["olive oil"], 10)
        least = int(100 * labels[4]["probability"]) + 1
        browser.press(*[RIGHT] * least)
        assert browser.read("#threshold-value") == [f"{least} %"]
        shown = browser.run("return [...document.querySelectorAll('#results li')].filter(item => !item.hidden).length")
        assert shown == sum(label["probability"] >= least / 100 for label in labels) < 10
        assert browser.read("#status") == [f"{shown} of 10 labels shown"]
        check_page(browser, client, width)


@pytest.mark.slow
@needs_chromium
def test_the_page_without_scripts(client: Client, tmp_path: Path, width: int) -> None:
    with browse(tmp_path, width, scripts=False) as browser:
        browser.open(f"http://127.0.0.1:{client.port}/")
        browser.fill("#text", "olive oil")
        browser.click("#why")
        browser.click("#form button")
        wait_for(lambda: len(browser.find("#results li")) == 10)
        assert not any(browser.read("#upload"))
        assert "CSV" in " ".join(browser.read("noscript"))
        browser.click("#results summary")
        assert "olive" in browser.read("#results table")[0]
        browser.take_picture(tmp_path / "without-scripts.png")
        check_page(browser, client, width)


@pytest.mark.slow
@needs_chromium
def test_a_file_is_labelled_and_downloaded(client: Client, tmp_path: Path) -> None:
    rows = "".join(f'{n},"olive, oil {n}"\n' for n in range(100))
    (tmp_path / "titles.csv").write_text(f"id,title\n{rows}")
    with browse(tmp_path, 1200) as browser:
        browser.open(f"http://127.0.0.1:{client.port}/")
        browser.fill("#file", str(tmp_path / "titles.csv"))
        browser.fill("#column", "title")
        browser.click("#upload button")
        wait_for(lambda: browser.read("#results h2") == ["100 rows of titles.csv"])
        browser.take_picture(tmp_path / "file.png")
        browser.click("#results a[download]")
        wait_for((tmp_path / "labels.csv").is_file)
        found = list(csv.reader(io.StringIO((tmp_path / "labels.csv").read_text())))
        assert len(found) == 101
        assert found[0][:2] == ["id", "title"]
        check_page(browser, client, 1200)


@pytest.mark.slow
@needs_chromium
def test_what_a_screen_reader_is_told(client: Client, tmp_path: Path) -> None:
    """Each field has a name, each bar its label and value, and results are announced."""
    with browse(tmp_path, 1200) as browser:
        browser.open(f"http://127.0.0.1:{client.port}/")
        browser.fill("#text", "olive oil")
        browser.click("#form button")
        wait_for(lambda: browser.focus == "results-title")
        nodes = [
            (node["role"]["value"], node.get("name", {}).get("value", ""), node.get("value", {}).get("value"))
            for node in browser.tree()
            if "role" in node and not node.get("ignored")
        ]
        fields = {role: name for role, name, _ in nodes if role in ("textbox", "combobox", "slider", "checkbox")}
        assert all(fields.values())
        assert set(fields) == {"textbox", "combobox", "slider", "checkbox"}
        meters = [(name, value) for role, name, value in nodes if role == "meter"]
        assert len(meters) == 10
        assert all(name.startswith("probability of ") for name, _ in meters)
        assert ("heading", "10 labels") in [node[:2] for node in nodes]
        assert "status" in [role for role, _, _ in nodes]
