"""Enrolments: what a site hands to the server to take part: its name, its key and its number of points."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedmlh.errors import UserError
from fedmlh.sites.agreement import Agreement
from fedmlh.sites.consent import HOW_TO_AGREE
from fedmlh.untrusted import parse_json, read_bytes

_MOST_EXAMPLES = 2**31
#: The most bytes of an enrolment: a key, two numbers and the terms, with the names of all sites.
_MOST_BYTES = 2**24
_MOST_KEY = 1000


@dataclass(frozen=True)
class Enrolment:
    """What a site says about itself."""

    site: str
    public_key: str  # as OpenSSH writes it, without a comment
    examples: int
    held_out: int

    @classmethod
    def load(cls, path: Path, agreement: Agreement) -> "Enrolment":
        """Read an enrolment; one made under other terms is refused with the field that differs."""
        try:
            content = parse_json(read_bytes(path, _MOST_BYTES))
            agreement.check(content["terms"], str(path))
            examples, held_out = content["examples"], content["held_out"]
            if not all(type(number) is int and 0 <= number < _MOST_EXAMPLES for number in (examples, held_out)):
                raise ValueError("numbers of points")
            site, key = content["site"], content["public_key"]
            if not isinstance(site, str) or not isinstance(key, str) or not examples:
                raise ValueError("site, key or examples")
            if agreement.config.training == "one-round" and content.get("open_statistics") is not True:
                raise UserError(f"{path}: this site has not agreed to open statistics: {HOW_TO_AGREE}")
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror})") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a site's enrolment ({type(error).__name__}: {error})") from None
        agreement.find_client_id(site)
        return cls(site, _read_key(key, f"{path}: the key of site {site}"), examples, held_out)


def _read_key(text: str, whose: str) -> str:
    """Return a site's public key in the form that is compared and registered, without its comment."""
    try:
        if len(text) > _MOST_KEY or "\n" in text:
            raise ValueError("not one line")
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(f"{whose} cannot be read: hand in the enrolment.json that `site prepare` wrote") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(f"{whose} is not of the kind that `site prepare` makes (ECDSA, P-384): prepare the site again")
    return str(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())
