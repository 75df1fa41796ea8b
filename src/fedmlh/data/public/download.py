"""One file over HTTP: an interrupted download resumes where it stopped, unless the file has changed since."""

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fedmlh.errors import UserError
from fedmlh.storage import write_atomically
from fedmlh.untrusted import parse_json, read_bytes

SECONDS_OF_SILENCE = 60
BLOCK_BYTES = 1 << 18
_MOST_NOTE = 2**20
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")

#: Called with the number of bytes so far, and of the whole file (None if the server does not say).
Watch = Callable[[int, int | None], None]


class NoDownload(UserError):
    """A file that could not be downloaded, and why."""


@dataclass(frozen=True)
class Origin:
    """What a server said about the file whose beginning lies on disk; if it changes, so has the file."""

    url: str
    size: int | None
    etag: str | None
    modified: str | None

    @property
    def validator(self) -> str | None:
        """Return the value that identifies exactly this file in a request; a weak ETag does not tell bytes apart."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def fits(self, other: "Origin") -> bool:
        """Return whether both may be the same file: nothing that both say differs."""
        pairs = ((self.size, other.size), (self.etag, other.etag), (self.modified, other.modified))
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


def download(url: str, target: Path, watch: Watch) -> None:
    """Put the file at `target`; until it is whole it is `target`.part."""
    part, note = (target.with_name(target.name + end) for end in (".part", ".part.json"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "ab", opener=open_part) as file:
            lock(file, part)
            receive(url, file, note, watch)
            os.fsync(file.fileno())
        os.replace(part, target)
        note.unlink(missing_ok=True)
    except NoDownload:
        if not part.stat().st_size:
            for path in (part, note):
                path.unlink(missing_ok=True)
        raise
    except OSError as problem:
        raise UserError(
            f"{part}: cannot be written ({problem.strerror or problem}); what has arrived is kept, and the same "
            "command continues from there"
        ) from problem


def open_part(path: str, flags: int) -> int:
    """Open the part of a file that has arrived; a link or pipe planted under its name is not followed."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a file")
    return handle


def lock(file: BinaryIO, part: Path) -> None:
    """Refuse a second download into one file: the two would mix."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{part}: another process is downloading it at this moment") from None


def receive(url: str, file: BinaryIO, note: Path, watch: Watch) -> None:
    """Write to `file` what it lacks, or everything if its beginning may be that of another file."""
    known = read_note(note)
    done = file.tell() if known is not None and known.url == url and known.validator else 0
    response = connect(url, done, known)
    start, origin = read_head(url, response)
    if start and not (start == done and known is not None and known.fits(origin)):
        # A server that ignores If-Range sends the rest of another file.
        response.close()
        response = connect(url, 0, None)
        start, origin = read_head(url, response)
        done = 0
    with response:
        if start not in (0, done):
            raise NoDownload(f"the server starts at byte {start:,} of the file, without being asked to")
        if start == 0:
            file.truncate(0)
            write_atomically(note, json.dumps(asdict(origin)).encode())
        done = start
        watch(done, origin.size)
        while block := read_block(response, done, origin.size):
            file.write(block)
            done += len(block)
            watch(done, origin.size)
    if origin.size not in (None, done):
        raise NoDownload(describe_stop(done, origin.size, "the connection ended"))


def read_note(note: Path) -> Origin | None:
    """Return what was noted of the beginning on disk; None if there is no note, or a damaged one."""
    try:
        origin = Origin(**parse_json(read_bytes(note, _MOST_NOTE)))
    except (FileNotFoundError, UserError, ValueError, TypeError):
        return None
    texts = (origin.url, origin.etag or "", origin.modified or "")
    return origin if all(isinstance(text, str) and text.isprintable() for text in texts) else None


def connect(url: str, start: int, known: Origin | None) -> HTTPResponse:
    """Request everything from byte `start` on, and return the server's answer."""
    headers = {"User-Agent": "fedmlh", "Accept-Encoding": "identity"}
    if start and known is not None and known.validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": known.validator}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=SECONDS_OF_SILENCE)
    except HTTPError as problem:
        with problem:
            # The part on disk is as long as the file, or longer, so it cannot be trusted.
            if problem.code == 416 and start:
                return connect(url, 0, None)
            raise NoDownload(f"the server answers {problem.code} {problem.reason}") from None
    except URLError as problem:
        reason = getattr(problem.reason, "strerror", None) or problem.reason
        raise NoDownload(f"the server cannot be reached ({reason})") from None
    except (OSError, HTTPException) as problem:
        raise NoDownload(f"the server does not answer ({problem})") from None
    return response


def read_head(url: str, response: HTTPResponse) -> tuple[int, Origin]:
    """Return the byte that an answer starts with and what it says of the file; refuse an answer that is no file."""
    headers: HTTPMessage = response.headers
    problem = None
    if headers.get_content_type() == "text/html":
        problem = "the server answers with a web page instead of the file"
    elif urlsplit(url).scheme == "https" and urlsplit(response.url).scheme != "https":
        problem = f"the server leads on to {response.url}, which anyone on the way could change"
    start, size = 0, int(headers["Content-Length"]) if (headers["Content-Length"] or "").isdigit() else None
    if response.status == 206:
        found = CONTENT_RANGE.fullmatch(headers["Content-Range"] or "")
        if found is None:
            problem = "the server answers with a piece and does not say of what"
        else:
            start, size = int(found[1]), int(found[2])
    if problem is not None:
        response.close()
        raise NoDownload(problem)
    return start, Origin(url, size, headers["ETag"], headers["Last-Modified"])


def read_block(response: HTTPResponse, done: int, size: int | None) -> bytes:
    """Return the next bytes, none at the end."""
    try:
        return response.read(BLOCK_BYTES)
    except (OSError, HTTPException) as problem:
        raise NoDownload(describe_stop(done, size, str(problem) or type(problem).__name__)) from None


def describe_stop(done: int, size: int | None, reason: str) -> str:
    """Return how far a download came, in words, and that nothing of it is lost."""
    whole = "" if size is None else f" of {size:,}"
    return f"it stopped after {done:,}{whole} bytes ({reason}), and the same command continues from there"
