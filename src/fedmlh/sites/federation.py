"""The server's folder of a federation.

public/          the agreement, for every site
enrolled/        what sites hand back: one enrolment.json each, under any name
server/          certificate and key, points to evaluate on, copies of installed parts, Flower's database and logs
run/             the run folder, as of any run
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.csr import pack_matrices, unpack_matrices
from fedmlh.data.dataset import Dataset, Split
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import LabelCounts
from fedmlh.lock import hold, is_empty
from fedmlh.parts import find_foreign, find_sources
from fedmlh.runs.folder import RunFolder
from fedmlh.sites.agreement import Agreement, split_address
from fedmlh.sites.enrolment import Enrolment
from fedmlh.sites.installed import keep_parts
from fedmlh.sites.keys import make_server_identity, write_secret
from fedmlh.sites.private import close_folder, private_files
from fedmlh.storage import Sealed, write_atomically, write_sealed
from fedmlh.untrusted import MOST_BINARY, MOST_JSON, parse_json, read_bytes

#: How many days certificates are valid.
DAYS = 730
#: Seconds to wait for a process that is about to end.
_PATIENCE = 60.0


@dataclass(frozen=True)
class ServerPoints:
    """What the server measures models on: validation points (the training part of `dataset`) and a test part."""

    dataset: Dataset
    #: Label counts of all training points, which tell frequent labels from rare ones.
    frequencies: LabelCounts

    def without_validation(self) -> "ServerPoints":
        """Return these points without the validation part; label frequencies still count it."""
        none = self.dataset.train.take(np.zeros(0, np.int64))
        return ServerPoints(replace(self.dataset, train=none), self.frequencies)

    def save(self, folder: Path) -> None:
        """Write the folder in one step."""
        parts: dict[str, csr_matrix] = {}
        for name, split in (("validation", self.dataset.train), ("test", self.dataset.test)):
            matrices = {"X": split.X, "Y": split.Y, "excluded": split.excluded}
            parts |= {f"{name}.{part}": matrix for part, matrix in matrices.items() if matrix is not None}
        about = {"name": self.dataset.name, "counts": self.frequencies.counts.tolist()}
        about["points"] = self.frequencies.points
        write_sealed(folder, {"about.json": json.dumps(about).encode(), "points.safetensors": pack_matrices(parts)})

    @classmethod
    def load(cls, folder: Path, agreement: Agreement) -> "ServerPoints":
        """Read the folder."""
        sealed = Sealed(folder)
        try:
            about = parse_json(sealed.read("about.json", MOST_JSON))
            parts = unpack_matrices(sealed.read("points.safetensors", MOST_BINARY), str(folder))
            validation, test = (
                Split(parts[f"{name}.X"], parts[f"{name}.Y"], parts.get(f"{name}.excluded"))
                for name in ("validation", "test")
            )
            counts = np.array(about["counts"], np.int64)
            if counts.shape != (len(agreement.labels),):
                raise ValueError("counts of other labels")
            labels, text, first = agreement.labels, agreement.text, agreement.first_feature
            dataset = Dataset(about["name"], validation, test, labels, text, first_feature=first)
            return cls(dataset, LabelCounts(counts, int(about["points"])))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder} does not hold points ({type(error).__name__}: {error})") from None


@dataclass(frozen=True)
class Federation:
    """The server's folder."""

    path: Path

    @classmethod
    def create(
        cls, folder: Path, config: Config, points: ServerPoints, *, address: str, sites: tuple[str, ...]
    ) -> "Federation":
        """Write a new federation: agreement, certificates, points to evaluate on."""
        with hold(folder):
            if not is_empty(folder):
                raise UserError(f"{folder} is not empty: choose another folder")
            return cls._write(folder, config, points, address, sites)

    @classmethod
    def _write(
        cls, folder: Path, config: Config, points: ServerPoints, address: str, sites: tuple[str, ...]
    ) -> "Federation":
        if find_foreign("reader", config.data_format) is not None:  # each site reads its own files in its own way
            config = config.replace(data_format="auto")
        host, _ = split_address(address)
        identity = make_server_identity([host, "localhost", "127.0.0.1"], DAYS)
        dataset = points.dataset
        agreement = Agreement(
            address,
            sites,
            config,
            dataset.num_features,
            dataset.labels,
            dataset.text,
            dataset.first_feature,
            identity.authority,
        )
        # Sizes that do not fit the data, and parts without a file, are refused before anything is written.
        _, parts = agreement.task, find_sources(config.foreign)
        server = folder / "server"
        folder.chmod(0o700)  # also if it existed before
        with private_files():
            server.mkdir()
            (folder / "enrolled").mkdir()
            write_secret(server / "server.key", identity.key)
            (server / "server.pem").write_bytes(identity.certificate)
            (server / "ca.crt").write_bytes(identity.authority)
            points.save(server / "yardstick")
            keep_parts(server / "parts", parts)
        agreement.save(folder / "public")  # every site gets a copy
        return cls(folder)

    def close(self) -> None:
        """Close files to other accounts, which an earlier version may have left open."""
        self.path.chmod(0o700)
        for folder in (self.server, self.path / "enrolled", self.run.path):
            if folder.is_dir():
                close_folder(folder)

    @cached_property
    def agreement(self) -> Agreement:
        """The terms that all sites have agreed to."""
        if not (self.path / "public").is_dir():
            raise UserError(f"{self.path} is not a federation's folder: make one with `fedmlh federation init`")
        return Agreement.load(self.path / "public", self.path, self.server / "parts")

    @property
    def server(self) -> Path:
        """The folder of files that only the server may see."""
        return self.path / "server"

    @property
    def run(self) -> RunFolder:
        """Where the run keeps its state and results."""
        return RunFolder(self.path / "run")

    def server_points(self) -> ServerPoints:
        """Return the points that the server measures models on."""
        return ServerPoints.load(self.server / "yardstick", self.agreement)

    def enrolments(self) -> dict[int, Enrolment]:
        """Return the enrolments by client_id."""
        found: dict[int, Enrolment] = {}
        keys: dict[str, str] = {}
        for path in sorted((self.path / "enrolled").glob("*.json")):
            enrolment = Enrolment.load(path, self.agreement)
            client_id = self.agreement.find_client_id(enrolment.site)
            if client_id in found:
                raise UserError(f"{path}: site {enrolment.site} has enrolled already: leave one of its files")
            if keys.setdefault(enrolment.public_key, enrolment.site) != enrolment.site:
                raise UserError(f"{path}: site {enrolment.site} has the key of site {keys[enrolment.public_key]}")
            found[client_id] = enrolment
        return found

    def all_enrolments(self) -> dict[int, Enrolment]:
        """Return all enrolments, or raise UserError if a site is missing."""
        found = self.enrolments()
        missing = [name for client_id, name in enumerate(self.agreement.sites) if client_id not in found]
        if missing:
            raise UserError(
                f"not enrolled yet: {', '.join(missing)}; put the enrolment.json that `fedmlh site prepare` wrote at "
                f"each of them into {self.path / 'enrolled'}, or begin without them (start --min-sites)"
            )
        return found

    def confirm(self) -> dict[int, Enrolment]:
        """Record that the operator confirms the number of points of each enrolled site; return the enrolments."""
        found = self.enrolments()
        claims = {enrolment.site: [enrolment.public_key, enrolment.examples] for enrolment in found.values()}
        with private_files():
            write_atomically(self.server / "confirmed.json", json.dumps(claims, indent=1).encode())
        return found

    def check_confirmed(self, enrolments: Mapping[int, Enrolment]) -> None:
        """Refuse numbers of points that weigh in the result if the operator has not confirmed exactly these."""
        config = self.agreement.config
        if config.training != "one-round" and config.weighting != "examples":
            return
        path = self.server / "confirmed.json"
        known = _read_json(path) if path.exists() else {}
        claims = list(enrolments.values())
        if any(known.get(claim.site) != [claim.public_key, claim.examples] for claim in claims):
            numbers = ", ".join(f"{claim.site} {claim.examples:,}" for claim in claims)
            why = "weighting is 'examples'"
            if config.training == "one-round":
                why = "in one round a site weighs as much as the points it has"
            raise UserError(
                f"{why}, and these numbers of points are the sites' own claims: {numbers}; check them with the sites, "
                f"then confirm them: fedmlh federation confirm {self.path}"
            )

    def lock(self) -> AbstractContextManager[None]:
        """Hold the lock of the run folder; wait for a process that is about to end."""
        return hold(self.run.path, _PATIENCE)

    def write_nodes(self, nodes: dict[int, int]) -> None:
        """Record under which node each site's key is registered."""
        write_atomically(self.server / "nodes.json", json.dumps(nodes).encode())

    def read_nodes(self) -> dict[int, int]:
        """Return the node of each site by client_id."""
        return {int(client_id): int(node) for client_id, node in _read_json(self.server / "nodes.json").items()}

    def write_outcome(self, problem: str | None) -> None:
        """Record how the run ended: with a model (None), or with this sentence."""
        write_atomically(self.server / "outcome.json", json.dumps({"problem": problem}).encode())

    def clear_outcome(self) -> None:
        """Record that the run has not ended."""
        (self.server / "outcome.json").unlink(missing_ok=True)

    def read_outcome(self) -> tuple[bool, str | None]:
        """Return whether the run has ended, and the sentence if it ended without a model."""
        if not (self.server / "outcome.json").is_file():
            return False, None
        problem = _read_json(self.server / "outcome.json")["problem"]
        return True, None if problem is None else str(problem)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(read_bytes(path, MOST_JSON)))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__})") from None
