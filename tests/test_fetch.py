"""Public data sets by name, against a server of our own: what arrives is whole, the right thing, or not there."""

import dataclasses
import fcntl
import hashlib
import io
import json
import random
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import call
from fedmlh.cli import terminal
from fedmlh.config import Config
from fedmlh.data.public import archive, catalog, download
from fedmlh.data.public import fetch as fetching
from fedmlh.data.public.catalog import CATALOG, Counts, Entry, find
from fedmlh.data.public.fetch import Fetched, fetch
from fedmlh.data.readers import convert
from fedmlh.data.readers.formats import load
from fedmlh.errors import UserError

TRAIN = "3 4 2\n0,1 3:1.5 0:2\n\n1 1:4\n"
TEST = "1 4 2\n1 2:1\n"
FILES = {
    "Set/train.txt": TRAIN,
    "Set/test.txt": TEST,
    "Set/filter_labels_test.txt": "0 0\n",
    "Set/README": "not for us",
}
COUNTS = Counts(train=3, test=1, features=4, labels=2)
PADDING = random.Random(0).randbytes(3 * download.BLOCK_BYTES)


def pack(files: dict[str, str], padding: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, content in {**files, "padding": padding}.items():
            pack.writestr(name, content)
    return buffer.getvalue()


@dataclasses.dataclass
class Server:
    """A file behind an address, and the ways in which a server may serve it."""

    url: str = ""
    content: bytes = b""
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True
    heeds_if_range: bool = True
    tells_length: bool = True
    cut_after: int | None = None
    status: int = 200
    kind: str = "application/zip"
    silent: bool = False
    asked: list[Message] = dataclasses.field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/moved":
            handler.send_response(302)
            handler.send_header("Location", "/file")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        self.asked.append(handler.headers)
        if self.silent:
            return
        start, status = 0, self.status
        same = handler.headers["If-Range"] in (self.etag, self.modified) or not self.heeds_if_range
        if self.ranges and status == 200 and handler.headers["Range"] and same:
            start, status = int(handler.headers["Range"].removeprefix("bytes=").rstrip("-")), 206
            if start >= len(self.content):
                start, status = 0, 416
        body = self.content[start:]
        handler.send_response(status)
        handler.send_header("Content-Type", self.kind)
        for name, value in (("ETag", self.etag), ("Last-Modified", self.modified)):
            if value is not None:
                handler.send_header(name, value)
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.tells_length:
            handler.send_header("Content-Length", str(len(body)))
        else:
            handler.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        handler.end_headers()
        handler.wfile.write(body if self.cut_after is None else body[: self.cut_after])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    shelf = Server(content=pack(FILES, PADDING))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            shelf.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore a client that has heard enough and hangs up."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        shelf.url = f"http://127.0.0.1:{http.server_port}/file"
        yield shelf
        http.shutdown()
        thread.join()


def make_entry(server: Server, **changes: Any) -> Entry:
    return dataclasses.replace(Entry("set-2", "Set-2", server.url, "http://page", COUNTS), **changes)


def get(server: Server, target: Path, source: Path | None = None, **changes: Any) -> Fetched:
    return fetch(make_entry(server, **changes), target, source, lambda *_: None)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def assert_whole(target: Path) -> None:
    data = load(target)
    assert data.train.X.toarray().tolist() == [[2, 0, 0, 1.5], [0, 0, 0, 0], [0, 4, 0, 0]]
    assert data.train.Y.toarray().tolist() == [[1, 1], [0, 0], [0, 1]]
    assert data.test.X.toarray().tolist() == [[0, 0, 1, 0]]


def test_from_a_name_to_a_folder(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = tmp_path / "deep" / "set-2"
    fetched = fetch(make_entry(server), target, None, lambda *step: seen.append(step))
    assert_whole(target)
    excluded = load(target).test.excluded
    assert excluded is not None
    assert excluded.toarray().tolist() == [[1, 0]]
    size, digest = len(server.content), hashlib.sha256(server.content).hexdigest()
    assert fetched == Fetched(target, COUNTS, target.with_name("set-2.zip"), digest)
    assert json.loads((target / "source.json").read_text())["sha256"] == digest
    assert names(target.parent) == {"set-2", "set-2.zip"}
    assert seen[0] == ("downloading", 0, size)
    assert ("downloading", size, size) in seen
    assert [stage for stage, *_ in seen[-3:]] == ["checking", "unpacking", "converting"]
    # What is there is not fetched again, even without its archive.
    target.with_name("set-2.zip").unlink()
    assert get(server, target) == Fetched(target, COUNTS, None, digest)
    assert len(server.asked) == 1
    assert not (tmp_path / "cache").exists()


def test_the_folder_one_stands_in(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert get(server, Path(".")).folder == tmp_path / "here"
    assert_whole(tmp_path / "here")
    assert (tmp_path / "here.zip").exists()


def test_a_download_that_broke_off_continues(server: Server, tmp_path: Path) -> None:
    server.cut_after = 300_000
    with pytest.raises(UserError, match=r"stopped after 300,000 of [\d,]+ bytes .*same command continues.*http://page"):
        get(server, tmp_path / "s")
    assert (tmp_path / "s.zip.part").read_bytes() == server.content[:300_000]
    with pytest.raises(UserError, match="stopped after 600,000 of"):
        get(server, tmp_path / "s")
    server.cut_after = None
    get(server, tmp_path / "s")
    assert_whole(tmp_path / "s")
    assert (tmp_path / "s.zip").read_bytes() == server.content
    assert [(asked["Range"], asked["If-Range"]) for asked in server.asked] == [
        (None, None),
        ("bytes=300000-", '"one"'),
        ("bytes=600000-", '"one"'),
    ]
    assert names(tmp_path) == {"s", "s.zip"}


def test_a_server_that_tells_no_length(server: Server, tmp_path: Path) -> None:
    server.tells_length, server.cut_after = False, 400_000
    with pytest.raises(UserError, match=r"stopped after [\d,]+ bytes \(IncompleteRead"):
        get(server, tmp_path / "s")
    assert 0 < (tmp_path / "s.zip.part").stat().st_size < 400_000
    server.cut_after = None
    get(server, tmp_path / "s")
    assert (tmp_path / "s.zip").read_bytes() == server.content
    assert server.asked[1]["Range"]


def change_file(server: Server) -> None:
    server.content = pack(FILES, PADDING[::-1])
    server.etag = '"two"'


def change_file_silently(server: Server) -> None:
    change_file(server)
    server.heeds_if_range = False


def change_file_to_a_longer_one(server: Server) -> None:
    server.content = pack(FILES, PADDING + b"longer")
    server.heeds_if_range = False


def shrink_file(server: Server) -> None:
    server.content = pack(FILES)


def ignore_ranges(server: Server) -> None:
    server.ranges = False


@pytest.mark.parametrize(
    "happens", [ignore_ranges, change_file, change_file_silently, change_file_to_a_longer_one, shrink_file]
)
def test_a_beginning_of_no_use_is_thrown_away(server: Server, tmp_path: Path, happens: Any) -> None:
    server.cut_after = 300_000
    with pytest.raises(UserError):
        get(server, tmp_path / "s")
    server.cut_after = None
    happens(server)
    get(server, tmp_path / "s")
    assert server.asked[1]["Range"] == "bytes=300000-"
    assert (tmp_path / "s.zip").read_bytes() == server.content
    assert_whole(tmp_path / "s")


@pytest.mark.parametrize(
    ("etag", "modified", "validator"),
    [
        ('W/"weak"', "Mon, 01 Jan 2024 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 GMT"),
        (None, "Mon, 01 Jan 2024 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 GMT"),
        ('"strong"', "Mon, 01 Jan 2024 00:00:00 GMT", '"strong"'),
        (None, None, None),
    ],
)
def test_the_rest_is_asked_of_the_same_file_only(
    server: Server, tmp_path: Path, etag: str | None, modified: str | None, validator: str | None
) -> None:
    server.etag, server.modified, server.cut_after = etag, modified, 300_000
    with pytest.raises(UserError):
        get(server, tmp_path / "s")
    server.cut_after = None
    get(server, tmp_path / "s")
    assert server.asked[1]["If-Range"] == validator
    assert bool(server.asked[1]["Range"]) == (validator is not None)
    assert (tmp_path / "s.zip").read_bytes() == server.content


@pytest.mark.parametrize("note", [None, b"", b"{}", b'{"url": 1, "size": 2, "etag": "\\n", "modified": []}', b"[1]"])
def test_a_beginning_of_unknown_origin_is_not_used(server: Server, tmp_path: Path, note: bytes | None) -> None:
    (tmp_path / "s.zip.part").write_bytes(b"junk" * 1000)
    if note is not None:
        (tmp_path / "s.zip.part.json").write_bytes(note)
    get(server, tmp_path / "s")
    assert server.asked[0]["Range"] is None
    assert names(tmp_path) == {"s", "s.zip"}


def test_a_beginning_from_another_address_is_not_used(server: Server, tmp_path: Path) -> None:
    server.cut_after = 300_000
    with pytest.raises(UserError):
        get(server, tmp_path / "s")
    server.cut_after = None
    get(server, tmp_path / "s", url=server.url + "?other")
    assert server.asked[1]["Range"] is None


def test_redirects_are_followed_also_by_the_rest(server: Server, tmp_path: Path) -> None:
    server.cut_after = 300_000
    moved = server.url.replace("/file", "/moved")
    with pytest.raises(UserError):
        get(server, tmp_path / "s", url=moved)
    server.cut_after = None
    get(server, tmp_path / "s", url=moved)
    assert server.asked[1]["Range"] == "bytes=300000-"
    assert_whole(tmp_path / "s")


def test_a_redirect_must_stay_encrypted() -> None:
    answer: Any = SimpleNamespace(headers=Message(), status=200, url="http://elsewhere/file", close=lambda: None)
    assert download.read_head("http://here/file", answer)[0] == 0
    with pytest.raises(download.NoDownload, match="leads on to http://elsewhere/file"):
        download.read_head("https://here/file", answer)


def test_what_is_no_file_says_where_to_get_it(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(UserError) as caught:
        get(server, tmp_path / "s")
    assert "the server answers 404 Not Found" in str(caught.value)
    assert f"open http://page in a browser, save the file as {tmp_path / 's.zip'}" in str(caught.value)
    server.status, server.kind = 200, "text/html; charset=utf-8"
    with pytest.raises(UserError, match="a web page instead of the file"):
        get(server, tmp_path / "s")
    server.silent = True
    with pytest.raises(UserError, match="does not answer"):
        get(server, tmp_path / "s")
    with pytest.raises(UserError, match=r"cannot be reached \(Connection refused\).*in a browser"):
        get(server, tmp_path / "s", url="http://127.0.0.1:9/file")
    assert names(tmp_path) == set()
    # The advice works: the file is put there, and no server is asked.
    asked = len(server.asked)
    (tmp_path / "s.zip").write_bytes(server.content)
    get(server, tmp_path / "s", url="http://127.0.0.1:9/file")
    assert_whole(tmp_path / "s")
    assert len(server.asked) == asked


def test_an_error_page_leaves_the_beginning_alone(server: Server, tmp_path: Path) -> None:
    server.cut_after = 300_000
    with pytest.raises(UserError):
        get(server, tmp_path / "s")
    server.status, server.cut_after = 503, None
    with pytest.raises(UserError, match="answers 503"):
        get(server, tmp_path / "s")
    assert (tmp_path / "s.zip.part").stat().st_size == 300_000


def test_two_downloads_do_not_mix(server: Server, tmp_path: Path) -> None:
    with (tmp_path / "s.zip.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is downloading it"):
            get(server, tmp_path / "s")
    assert server.asked == []


def fail_with_a_full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(download.os, "fsync", fail_with_a_full_disk)
        with pytest.raises(UserError, match=r"s\.zip\.part: cannot be written \(No space left on device\)"):
            get(server, tmp_path / "s")
    assert "s" not in names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(archive.shutil, "copyfileobj", fail_with_a_full_disk)
        with pytest.raises(UserError, match=r"s: cannot be written \(No space left on device\); nothing was left"):
            get(server, tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(convert, "save_npz", fail_with_a_full_disk)
        with pytest.raises(UserError, match=rf"^{tmp_path / 's'}: cannot be written \(No space left on device\)"):
            get(server, tmp_path / "s")
    assert names(tmp_path) == {"s.zip"}
    get(server, tmp_path / "s")
    assert_whole(tmp_path / "s")


def test_an_interrupted_conversion_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        assert any(name.startswith(".fedmlh-") for name in names(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching.os, "replace", interrupt)
    (tmp_path / "s.zip").write_bytes(server.content)
    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path / "s")
    assert names(tmp_path) == {"s.zip"}


def test_other_archives_and_folders(server: Server, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "mine.tar.bz2", "w:bz2") as bundle:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content.encode()))
    get(server, tmp_path / "tar", tmp_path / "mine.tar.bz2")
    assert_whole(tmp_path / "tar")
    with zipfile.ZipFile(io.BytesIO(server.content)) as pack:
        pack.extractall(tmp_path / "unpacked")
    fetched = get(server, tmp_path / "folder", tmp_path / "unpacked" / "Set")
    assert (fetched.archive, fetched.sha256) == (None, None)
    assert_whole(tmp_path / "folder")
    with pytest.raises(UserError, match=r"unpacked: holds no pair of files"):
        get(server, tmp_path / "above", tmp_path / "unpacked")
    with pytest.raises(UserError, match=r"nowhere: there is no such file or folder"):
        get(server, tmp_path / "none", tmp_path / "nowhere")
    assert server.asked == []


def test_hidden_twins_are_passed_over(server: Server, tmp_path: Path) -> None:
    server.content = pack({"a_train.txt": TRAIN, "a_test.txt": TEST, "__MACOSX/._a_train.txt": "a twin"})
    get(server, tmp_path / "s")
    assert_whole(tmp_path / "s")


def test_features_and_labels_apart(server: Server, tmp_path: Path) -> None:
    apart = {
        "S/trn_X_Xf.txt": "3 4\n3:1.5 0:2\n\n1:4\n",
        "S/trn_X_Y.txt": "3 2\n0:1.0 1:1.0\n\n1:1.0\n",
        "S/tst_X_Xf.txt": "1 4\n2:1\n",
        "S/tst_X_Y.txt": "1 2\n1:1.0\n",
    }
    server.content = pack(apart)
    get(server, tmp_path / "s")
    assert_whole(tmp_path / "s")


@pytest.mark.parametrize("path", ["../train.txt", "Set/../../train.txt", "/train.txt", "..\\train.txt", "../other"])
def test_a_path_that_leads_out_is_refused(server: Server, tmp_path: Path, path: str) -> None:
    server.content = pack({path: TRAIN, "test.txt": TEST})
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="leads out of its folder, and is refused"):
        get(server, tmp_path / "in" / "s")
    assert names(tmp_path) == {"in"}
    assert names(tmp_path / "in") == {"s.zip"}


def test_a_link_is_not_followed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(TRAIN)
    with tarfile.open(tmp_path / "links.tar", "w") as bundle:
        for kind, name in ((tarfile.SYMTYPE, "train.txt"), (tarfile.LNKTYPE, "test.txt")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret")
            bundle.addfile(member)
    with pytest.raises(UserError, match=r"links\.tar: holds no pair of files"):
        get(server, tmp_path / "s", tmp_path / "links.tar")


def test_a_bomb_is_refused_before_it_goes_off(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.content = pack({"train.txt": TRAIN + " " * 20_000_000, "test.txt": TEST})
    assert len(server.content) < 100_000
    monkeypatch.setattr(archive.shutil, "copyfileobj", fail_with_a_full_disk)
    with pytest.raises(UserError, match="would unpack to more than 100 times its size"):
        get(server, tmp_path / "s")


def damage(content: bytes) -> bytes:
    at = content.index(b"test.txt") + 12
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<html>not a zip</html>", "s.zip: is neither a zip nor a tar file, or is cut short"),
        (pack(FILES)[:-30], "s.zip: is neither a zip nor a tar file, or is cut short"),
        (damage(pack(FILES)), "s.zip: cannot be unpacked"),
        (pack({"a/train.txt": TRAIN, "b/train.txt": TRAIN}), "s.zip: holds two files train.txt"),
        (pack({"notes.txt": "hello"}), "s.zip: holds no pair of files that could be the data set"),
        (pack({"train.txt": TRAIN}), "s.zip: train.txt is there, but no test file beside it"),
        (pack({"train.txt": "1 4 2\nx 1:1\n", "test.txt": TEST}), "s.zip/train.txt, line 2: label 'x'"),
        (
            pack({"train.txt": "2 4 2\n\n\n", "test.txt": "1 4 2\n\n"}),
            "s.zip: has 2 training points instead of 3, so it is not Set-2 as published",
        ),
        (
            pack({"train.txt": "3 5 1\n\n\n\n", "test.txt": "1 5 1\n\n"}),
            "s.zip: has 5 features instead of 4, 1 labels instead of 2, so",
        ),
    ],
)
def test_wrong_content(server: Server, tmp_path: Path, content: bytes, problem: str) -> None:
    server.content = content
    with pytest.raises(UserError) as caught:
        get(server, tmp_path / "s")
    assert problem in str(caught.value)
    assert str(caught.value).endswith(f"; remove {tmp_path / 's.zip'}, and the same command downloads it again")
    assert ".part" not in str(caught.value)
    assert names(tmp_path) == {"s.zip"}


def test_a_known_digest_is_checked(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"its SHA-256 is [0-9a-f]{64}, and Set-2 has 00: .*remove .*s\.zip"):
        get(server, tmp_path / "s", sha256="00")
    assert names(tmp_path) == {"s.zip"}
    get(server, tmp_path / "s", sha256=hashlib.sha256(server.content).hexdigest())
    assert_whole(tmp_path / "s")


OTHER = json.dumps({"name": "other", "counts": dataclasses.asdict(COUNTS), "sha256": None})


@pytest.mark.parametrize("record", [None, OTHER, "[]", '{"name": "set-2"}'])
def test_what_is_there_is_left_alone(server: Server, tmp_path: Path, record: str | None) -> None:
    target = tmp_path / "s"
    target.mkdir()
    (target / "mine").write_text("dear to me")
    if record is not None:
        (target / "source.json").write_text(record)
    before = names(target)
    for taken in (target, target / "mine"):
        with pytest.raises(UserError, match="is there already and is not set-2"):
            get(server, taken)
    assert names(target) == before
    assert server.asked == []


def test_the_command(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "CATALOG", {"set-2": make_entry(server)})
    server.status = 404
    assert call("data", "fetch", "set-2") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert (
        "404 Not Found; to get it by hand, open http://page in a browser, save the file as data/set-2.zip" in shown.err
    )
    server.status = 200
    assert call("data", "fetch", "SET-2") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines() == [
        "Set-2 is in data/set-2 (3 train, 1 test, 4 features, 2 labels)",
        f"data/set-2.zip is no longer needed (SHA-256 {hashlib.sha256(server.content).hexdigest()})",
        "next: fedmlh run recommended --data data/set-2",
    ]
    assert_whole(tmp_path / "data" / "set-2")
    assert call("data", "fetch", "set-2", "--from", "data/set-2.zip", "--to", "again") == 0
    assert_whole(tmp_path / "again")
    capsys.readouterr()
    assert call("data", "fetch", "set-3") == 2
    assert "no data set 'set-3' is listed: did you mean 'set-2'? `fedmlh data fetch` shows" in capsys.readouterr().err


def test_the_bar_shows_on_a_terminal(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "errors", terminal.PlainConsole(force_terminal=True, width=120, stderr=True))
    monkeypatch.setattr(catalog, "CATALOG", {"set-2": make_entry(server)})
    assert call("data", "fetch", "set-2", "--to", tmp_path / "s") == 0
    shown = capsys.readouterr()
    assert "set-2  converting" in shown.err
    assert "converting" not in shown.out


def test_the_list_shows_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("data", "fetch") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in CATALOG)
    assert "312,330" in shown


def test_the_papers_sets_have_the_papers_sizes() -> None:
    in_paper = [entry for entry in CATALOG.values() if entry.in_paper]
    assert len(in_paper) == 4
    for entry in in_paper:
        config = Config.load(entry.name)
        assert entry.counts.train == config.synthetic_points
        assert entry.counts.features == config.synthetic_features
        assert entry.counts.labels == config.synthetic_labels


def test_the_catalogue_covers_napkinxc() -> None:
    napkin = pytest.importorskip("napkinxc.datasets").DATASETS
    known = {entry.url.split("id=")[1].split("&")[0]: entry for entry in CATALOG.values()}
    assert len(known) == len(CATALOG) == len(napkin)
    for name, theirs in napkin.items():
        ours = find(name)
        ids = {theirs[kind]["url"].split("id=")[1] for kind in theirs["formats"] if kind.startswith("bow")}
        assert ids & {file_id for file_id, entry in known.items() if entry is ours}
