"""Certificates and keys: an authority, the server's certificate, and a key pair for each node.

A node verifies the server by the authority's certificate; the server recognises a node by its registered public key.
Only the owner can read the private keys.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlane.validate import InputError, at_least

_PEM = serialization.Encoding.PEM
_CLOCK_SLACK = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class ServerFiles:
    """Files of the server's certificate, and of the authority that issued it."""

    authority: Path
    """The authority's certificate, which every node needs."""
    certificate: Path
    key: Path
    """The server's private key."""


@dataclass(frozen=True)
class NodeFiles:
    """A node's private key, and the public key that the operator registers."""

    private: Path
    public: Path


def make_server_files(folder: Path, addresses: Sequence[str], *, days: int = 30) -> ServerFiles:
    """Create an authority and a server certificate. The authority's private key is never written.

    Args:
        folder: Folder for `ca.crt`, `server.crt` and `server.key`; created if needed.
        addresses: Host names and IP addresses of the server.
        days: Validity of both certificates, in days.

    Raises:
        InputError: If `server.key` exists already, or there are no addresses.
    """
    at_least("days", days, 1)
    if not addresses:
        raise InputError("addresses must name at least one host or IP address")
    folder.mkdir(parents=True, exist_ok=True)
    files = ServerFiles(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "FedLane federation authority")])
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, addresses[0])])
    certificate = (
        _builder(subject, issuer, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(address) for address in addresses]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    _write_secret(  # first, so that an existing key keeps its certificate
        files.key,
        key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    files.authority.write_bytes(authority.public_bytes(_PEM))
    files.certificate.write_bytes(certificate.public_bytes(_PEM))
    return files


def make_node_files(folder: Path, name: str) -> NodeFiles:
    """Create a P-384 key pair in OpenSSH's format, which Flower's node authentication reads.

    Args:
        folder: Folder for the two files; created if needed.
        name: File name of the private key; the public key is `NAME.pub`.

    Raises:
        InputError: If the private key exists already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = NodeFiles(folder / name, folder / f"{name}.pub")
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(
        files.private,
        key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()),
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    files.public.write_bytes(public + b"\n")
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; raise `InputError` if it exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError(f"{path} already exists: keys are never overwritten") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
