"""What requests say, checked: a body in JSON or as a form, and its fields."""

import json
from collections.abc import Collection
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from fedmlh.untrusted import parse_json
from fedmlh.web.problem import Problem

#: Lists and objects in a body: each takes more memory than bytes.
_MOST_BRACKETS = 200_000
_MOST_FIELDS = 100
#: Bytes of a form whose escapes are replaced at once.
_PIECE = 1 << 16


async def read_json(request: Request) -> Any:
    """Return the value of a body in JSON."""
    _check_kind(request, "application/json")
    body = await request.body()
    if body.count(b"[") + body.count(b"{") > _MOST_BRACKETS:
        raise Problem(413, f"the JSON has more than {_MOST_BRACKETS:,} brackets: send fewer points")
    try:
        return parse_json(body)
    except UnicodeDecodeError:
        raise Problem(400, "the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON ({error.msg}, at character {error.pos:,})") from None
    except ValueError as error:
        raise Problem(400, f"the body cannot be read as JSON ({error})") from None


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of a field that stands twice, the last."""
    _check_kind(request, "application/x-www-form-urlencoded")
    # In a thread: a large text takes a second, and others are answered meanwhile.
    form: dict[str, str] = await run_in_threadpool(parse_form, await request.body())
    return form


def parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form in UTF-8."""
    if body.count(b"&") >= _MOST_FIELDS:
        raise Problem(400, f"the form has more than {_MOST_FIELDS} fields")
    try:
        pairs = (field.partition(b"=") for field in body.replace(b"+", b" ").split(b"&") if field)
        return {_unescape(name): _unescape(value) for name, _, value in pairs}
    except UnicodeDecodeError:
        raise Problem(400, "the form is not UTF-8") from None


def _unescape(value: bytes) -> str:
    """Return a text without its escapes, taken in pieces: the library splits at each, which takes much memory."""
    pieces, begin = [], 0
    while begin < len(value):
        end = begin + _PIECE
        if end < len(value):  # no escape is cut in two
            end -= 1 if value[end - 1 : end] == b"%" else 2 if value[end - 2 : end - 1] == b"%" else 0
        pieces.append(unquote_to_bytes(value[begin:end]))
        begin = end
    return b"".join(pieces).decode()


def take_object(value: Any, what: str, known: Collection[str]) -> dict[str, Any]:
    """Return an object that has no other fields than these."""
    if not isinstance(value, dict):
        raise Problem(400, f"{what} should be a JSON object")
    if unknown := sorted(set(value) - set(known)):
        raise Problem(400, f"{what} has a field that is not known ({unknown[0]!a:.40}); there are {', '.join(known)}")
    return value


def take_list(value: Any, what: str, most: int) -> list[Any]:
    """Return a list of at most `most` entries."""
    if not isinstance(value, list):
        raise Problem(400, f"{what} should be a list")
    if len(value) > most:
        raise Problem(400, f"{what} has {len(value):,} entries, and may have {most:,}: send several requests")
    return value


def take_text(value: Any, what: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise Problem(400, f"{what} should be a text")
    return value


def take_whole(value: Any, what: str, least: int, most: int) -> int:
    """Return a whole number, also one that is written in a form or an address."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("-")
        value = int(value) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Problem(400, f"{what} should be a whole number from {least:,} to {most:,}")
    return value


def take_share(value: Any, what: str) -> float:
    """Return a number from 0 to 1, also one that is written in a form or an address."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= 1:
        raise Problem(400, f"{what} should be a number from 0 to 1")
    return number


def _check_kind(request: Request, wanted: str) -> None:
    kind, _, more = request.headers.get("content-type", "").partition(";")
    name, _, charset = more.partition("=")
    if kind.strip().lower() != wanted:
        raise Problem(415, f"the Content-Type should be {wanted}")
    if name.strip().lower() == "charset" and charset.strip().strip('"').lower() not in ("utf-8", "us-ascii"):
        raise Problem(415, "the charset should be utf-8")
