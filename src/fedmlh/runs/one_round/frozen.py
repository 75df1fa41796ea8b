"""The terms of a run of one round on disk, from the moment its counts are closed.

A resumed run reads them from there, with the line of its log that says whose counts they contain. So counts that come
later change nothing, and no sums are asked for twice.
"""

import json
import os

from fedmlh.errors import UserError
from fedmlh.federated.participation import Attempt
from fedmlh.oneround.terms import Terms
from fedmlh.runs.one_round.collecting import Exchange
from fedmlh.storage import read_checked, write_checked
from fedmlh.untrusted import parse_json

FILE = "terms.bin"


def write_terms(exchange: Exchange, terms: Terms) -> None:
    """Freeze the terms; the exchange has collected counts and nothing else so far."""
    (line,) = exchange.log
    about = {
        "run": exchange.desk.run,
        "bytes_up": exchange.bytes_up,
        "bytes_down": exchange.bytes_down,
        "counts": line.to_json(),
    }
    write_checked(exchange.folder / FILE, json.dumps(about).encode() + b"\n" + terms.encode())


def read_terms(exchange: Exchange) -> Terms | None:
    """Return the frozen terms, and add the costs of their counts to the exchange; None if there are none yet."""
    path = exchange.folder / FILE
    if not os.path.lexists(path):
        return None
    try:
        first, _, payload = read_checked(path).partition(b"\n")
        about = parse_json(first)
        if about["run"] != exchange.desk.run:
            raise ValueError("they are those of another run")
        terms = Terms.decode(memoryview(payload), exchange.desk.task.num_features)
        line = Attempt.from_json(about["counts"])
        up, down = int(about["bytes_up"]), int(about["bytes_down"])
    except (UserError, KeyError, TypeError, ValueError) as problem:
        exchange.tell(f"the terms in {path} cannot be used ({problem}): counts are collected once more")
        return None
    exchange.bytes_up += up
    exchange.bytes_down += down
    exchange.log.append(line)
    return terms
