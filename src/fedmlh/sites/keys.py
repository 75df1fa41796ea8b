"""Certificates and keys of a federation: an authority of its own, a server that it vouches for, a key for each site."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class ServerIdentity:
    """The authority's certificate, which sites get, and the server's certificate and key; all PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_server_identity(hosts: list[str], days: int) -> ServerIdentity:
    """Make an authority and one certificate for these hosts; the authority's key is thrown away after signing it."""
    now = datetime.datetime.now(datetime.UTC)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmlh federation")])
    begin = now - datetime.timedelta(hours=1)  # clocks differ

    def start(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(authority_name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(begin).not_valid_after(now + datetime.timedelta(days=days))

    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    usage = dict.fromkeys(
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign "
        "encipher_only decipher_only".split(),
        False,
    )
    authority = (
        start(authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**(usage | {"key_cert_sign": True, "crl_sign": True})), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    names: list[x509.GeneralName] = [_general_name(host) for host in dict.fromkeys(hosts)]
    certificate = (
        start(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]), server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**(usage | {"digital_signature": True})), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(server_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    return ServerIdentity(
        authority.public_bytes(Encoding.PEM),
        certificate.public_bytes(Encoding.PEM),
        server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def make_node_key() -> tuple[bytes, bytes]:
    """Make a site's private and public key, as OpenSSH writes them (ECDSA, P-384)."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
