"""Parts that the operator of a server or a site has installed: copies of their files, in a separate folder.

The terms of a federation name parts by their hashes and carry no code. Only the operator's own command writes the
folder that is read here, and a copy is executed only if the terms name its hash.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from fedmlh.errors import UserError
from fedmlh.parts import MOST_SOURCE, load_source
from fedmlh.storage import Sealed, write_sealed
from fedmlh.untrusted import MOST_JSON, parse_json

_NAMES = "names.json"


def keep_parts(folder: Path, sources: Mapping[str, tuple[str, bytes]]) -> None:
    """Write copies of files of parts, given by hash; if there are none, no folder is made."""
    if sources:
        names = json.dumps({sha256: file for sha256, (file, _) in sources.items()}, indent=1)
        copies = {f"{sha256}.py": source for sha256, (_, source) in sources.items()}
        write_sealed(folder, {_NAMES: names.encode(), **copies})


def load_kept(folder: Path, root: Path, agreed: Mapping[str, str]) -> None:
    """Execute the copies whose hashes the terms name for each part; no link is followed below `root`."""
    if not agreed:
        return
    sealed = Sealed(folder, root)
    for part, sha256 in agreed.items():
        try:
            names, source = parse_json(sealed.read(_NAMES, MOST_JSON)), sealed.read(f"{sha256}.py", MOST_SOURCE)
            file = names[sha256]
            if not isinstance(file, str) or hashlib.sha256(source).hexdigest() != sha256:
                raise ValueError("another file")
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{folder} does not hold the part that the federation agreed on as {part} (SHA-256 {sha256:.12}…): "
                f"prepare the site (or make the federation) again, with --parts and that file"
            ) from None
        load_source(file, source)
