"""What a federation agrees on before it trains: the folder that the server writes and every site gets a copy of.

It holds settings, sizes, the catalogue of labels and the certificate by which sites recognise the server. Nothing in it
is secret, and nothing in it comes from a site's data.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmlh.config import SETTINGS, Config
from fedmlh.data.dataset import Labels
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.evaluation.own import AddedMetrics
from fedmlh.federated.messages import VERSION as MESSAGE_VERSION
from fedmlh.federated.task import Task
from fedmlh.hashing.families import canonical
from fedmlh.sites.installed import load_kept
from fedmlh.storage import FORMAT_VERSION, Sealed, write_sealed
from fedmlh.untrusted import MOST_JSON, MOST_TOML, parse_json

_SITE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
_MOST_CERTIFICATE = 2**20
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+):(\d{1,5})", re.ASCII)


@dataclass(frozen=True)
class Agreement:
    """The common terms of a federation."""

    address: str  # host:port at which sites reach the server
    sites: tuple[str, ...]  # a site's client_id is its place here
    config: Config
    num_features: int
    labels: Labels
    text: TextFeatures | None
    #: The first feature number of svmlight files; None: there are no such files, or it does not matter.
    first_feature: int | None
    #: The certificate that vouches for the server's, PEM.
    authority: bytes

    def __post_init__(self) -> None:
        split_address(self.address)
        for name in self.sites:
            if not _SITE_NAME.fullmatch(name):
                raise UserError(f"site name {name!a:.40}: use up to 32 of a-z, 0-9, - and _, first a letter or digit")
        if len(set(self.sites)) != len(self.sites):
            raise UserError("two sites have the same name: give each its own")
        if len({canonical(key) for key in self.labels.keys}) != len(self.labels):
            raise UserError("two labels of the catalogue differ only in blanks or in how accents are encoded")
        if self.config.num_clients != len(self.sites):
            raise UserError(f"num_clients is {self.config.num_clients}, but there are {len(self.sites)} sites")
        for name, setting in SETTINGS.items():
            value = getattr(self.config, name)
            if setting.simulation_only and value != setting.default:
                raise UserError(f"{name} is {value!r}: real sites train with {setting.default!r} only")
        AddedMetrics(self.config.metrics, self.config.top_k, len(self.labels)).check_additive()

    @cached_property
    def task(self) -> Task:
        """The learning problem that server and sites share."""
        return Task(self.config, self.num_features, len(self.labels))

    def find_client_id(self, site: str) -> int:
        """Return the client_id by which the site is sampled."""
        if site not in self.sites:
            raise UserError(f"there is no site {site!a:.40} in this federation: its sites are {', '.join(self.sites)}")
        return self.sites.index(site)

    @cached_property
    def terms(self) -> dict[str, Any]:
        """Return every field on which both sides must agree, as JSON values."""
        terms = {
            "format_version": FORMAT_VERSION,
            "message_version": MESSAGE_VERSION,
            "sites": self.sites,
            "num_features": self.num_features,
            "text": None if self.text is None else self.text.to_json(),
            "first_feature": self.first_feature,
            "labels": hashlib.sha256("\n".join(map(canonical, self.labels.keys)).encode()).hexdigest()[:32],
            **self.task.agreed,
            "config_hash": self.task.fingerprint,
        }
        if self.config.foreign:
            terms["parts"] = {f"{part['setting']} {part['name']}": part["sha256"] for part in self.config.foreign}
        return dict(json.loads(json.dumps(terms)))

    def check(self, terms: object, whose: str) -> None:
        """Refuse terms that differ from these, with the name of the field that differs."""
        if not isinstance(terms, dict):
            raise UserError(f"{whose}: its terms cannot be read")
        for field in (*self.terms, *terms):
            mine, theirs = self.terms.get(field, "nothing"), terms.get(field, "nothing")
            if mine != theirs:
                raise UserError(
                    f"{whose}: {field} differs: the federation has {mine!r:.60}, this has {theirs!r:.60}; "
                    "prepare the site again with the federation's folder and the same version of fedmlh"
                )

    def save(self, folder: Path) -> None:
        """Write the folder in one step."""
        about = {"address": self.address, "terms": self.terms}
        files = {
            "federation.json": json.dumps(about, indent=1).encode(),
            "config.toml": self.config.to_toml().encode(),
            "labels.json": json.dumps({"keys": self.labels.keys, "names": self.labels.names}).encode(),
            "ca.crt": self.authority,
        }
        write_sealed(folder, files)

    @classmethod
    def load(cls, folder: Path, root: Path | None = None, parts: Path | None = None) -> "Agreement":
        """Read the folder; refuse terms that do not follow from its config in this version of fedmlh.

        No link is followed below `root` (default: the folder itself). `parts` is the operator's own folder of installed
        parts; without it, parts of users must be loaded already.
        """
        sealed = Sealed(folder, root)
        try:
            about, names = (parse_json(sealed.read(name, MOST_JSON)) for name in ("federation.json", "labels.json"))
            terms = about["terms"]
            # This comes first, since another version may mean something else by the rest.
            if terms["message_version"] != MESSAGE_VERSION:
                raise UserError(
                    f"{folder}: message_version differs: the federation speaks {terms['message_version']!r:.20}, this "
                    f"version of fedmlh {MESSAGE_VERSION}; install the same version everywhere"
                )
            if parts is not None:
                load_kept(parts, root or folder, dict(terms.get("parts", {})))
            agreement = cls(
                str(about["address"]),
                tuple(terms["sites"]),
                Config.from_toml(sealed.read("config.toml", MOST_TOML).decode(), f"{folder / 'config.toml'}"),
                int(terms["num_features"]),
                Labels(tuple(names["keys"]), tuple(names["names"])),
                None if terms["text"] is None else TextFeatures.from_json(terms["text"]),
                terms["first_feature"],
                sealed.read("ca.crt", _MOST_CERTIFICATE),
            )
            if not all(isinstance(name, str) for name in (*agreement.labels.keys, *agreement.labels.names)):
                raise ValueError("a label that is not text")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{folder} is not a federation's folder ({type(error).__name__}: {error})") from None
        agreement.check(terms, str(folder))
        return agreement


def split_address(address: str) -> tuple[str, int]:
    """Return host and port, or raise UserError."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise UserError(f"address {address!a:.60}: say host:port, e.g. server.example.org:9092 (IPv4)")
    return found[1], int(found[2])
