"""The credential of a server's or a site's own processes: a random word in a file that only their account can read.

Flower does not check who calls its control and its runtime interface. Here every such call carries the word, and a
Guard in front of the interface refuses all others. The word is new with each start of the process that is guarded.
"""

import os
import secrets
from pathlib import Path
from typing import Any

from flwr.supercore.runtime import RuntimeHttpClient

from fedmlh.errors import UserError
from fedmlh.sites.keys import write_secret

HEADER = "fedmlh-credential"
#: Names the file to the processes that Flower starts; the word is sent only in guarded calls.
VARIABLE = "FEDMLH_CREDENTIAL"
_BYTES = 32


class Credential:
    """Adds the word to calls of a Flower client; it is read for each, since a new start brings a new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def renew(self) -> None:
        """Write a new word."""
        self.path.unlink(missing_ok=True)
        write_secret(self.path, secrets.token_hex(_BYTES).encode())

    def read(self) -> str:
        """Return the word, or raise a UserError that names the file."""
        try:
            return self.path.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not written by fedmlh"
            raise UserError(f"{self.path} cannot be read ({reason})") from None

    def intercept(self, context: Any, call_next: Any) -> Any:
        """Do what Flower asks of an interceptor."""
        context.request.headers[HEADER] = self.read()
        return call_next(context)


def read_own() -> str:
    """Return the word of the interface that this process may call."""
    return Credential(Path(os.environ[VARIABLE])).read()


def send_own() -> None:
    """Make all calls of this process to a runtime interface carry the word."""
    connect = RuntimeHttpClient.from_server_address.__func__
    credential = Credential(Path(os.environ[VARIABLE]))

    def connect_with_credential(cls: Any, /, *arguments: Any, interceptors: Any, **settings: Any) -> Any:
        return connect(cls, *arguments, interceptors=[*interceptors, credential], **settings)

    RuntimeHttpClient.from_server_address = classmethod(connect_with_credential)
