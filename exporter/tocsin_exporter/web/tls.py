"""The TLS part of the web configuration file as an `ssl` context."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import ssl
from typing import cast

from tocsin_exporter.errors import ConfigError
from tocsin_exporter.web.connection import Stream, WouldBlockError
from tocsin_exporter.web.webconfig import FLAG, Material, TlsSettings

__all__ = ["TlsStream", "build", "san_allowed"]

log = logging.getLogger(__name__)

# TLS hands out one record at a time.
_MOST_RECORD = 16 * 1024

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = ("TLS10", "TLS11")
# The names of the file are Go's; TLS 1.2 only.
_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
_SUITES_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")


def build(settings: TlsSettings, bodies: dict[str, bytes]) -> ssl.SSLContext:
    """
    Return the context for *settings*; *bodies* are the bytes of each `Material` by its name.

    Raises:
        ConfigError: What is wrong with it, or what this server cannot do.

    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _verify_mode(settings.client_auth)
    context.minimum_version = _version("min_version", settings.min_version)
    context.maximum_version = _version("max_version", settings.max_version)
    if context.minimum_version > context.maximum_version:
        raise ConfigError(f"{FLAG}: min_version {settings.min_version} is above max_version")
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.prefer_server_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    if settings.cipher_suites:
        context.set_ciphers(":".join(_suite(name) for name in settings.cipher_suites))
    if settings.curves:
        context.set_ecdh_curve(_curve(settings.curves))
    _load_pair(context, settings, bodies)
    if settings.client_ca is not None:
        _load_authorities(context, settings.client_ca, bodies)
    return context


def _verify_mode(name: str) -> ssl.VerifyMode:
    if name in _UNVERIFIED:
        raise ConfigError(
            f"{FLAG}: client_auth_type {name} takes certificates that nobody verified, which this server "
            "cannot and which proves nothing; use RequireAndVerifyClientCert with client_ca_file"
        )
    mode = _VERIFY.get(name)
    if mode is None:
        raise ConfigError(f"{FLAG}: client_auth_type {name!r} is not one of {', '.join(_VERIFY)}")
    return mode


def _version(key: str, name: str) -> ssl.TLSVersion:
    if name in _OLD_VERSIONS:
        raise ConfigError(f"{FLAG}: {key} {name} is not offered; write TLS12 or TLS13")
    version = _VERSIONS.get(name)
    if version is None:
        raise ConfigError(f"{FLAG}: {key} {name!r} is not one of {', '.join(_VERSIONS)}")
    return version


def _suite(name: str) -> str:
    if name in _SUITES_13:
        raise ConfigError(
            f"{FLAG}: cipher_suites: {name} belongs to TLS 1.3, whose suites cannot be chosen; leave it out"
        )
    suite = _SUITES.get(name)
    if suite is None:
        raise ConfigError(f"{FLAG}: cipher_suites: {name!r} is not one of {', '.join(_SUITES)}")
    return suite


def _curve(names: tuple[str, ...]) -> str:
    for name in names:
        if name not in _CURVES:
            raise ConfigError(f"{FLAG}: curve_preferences: {name!r} is not one of {', '.join(_CURVES)}")
    if len(names) > 1:
        raise ConfigError(
            f"{FLAG}: curve_preferences: this server can be held to one curve, not to an order of several; "
            "keep one or leave the list out"
        )
    return _CURVES[names[0]]


def _load_pair(context: ssl.SSLContext, settings: TlsSettings, bodies: dict[str, bytes]) -> None:
    for material in (settings.cert, settings.key):
        if b"-----BEGIN " not in bodies[material.name]:
            raise ConfigError(f"{FLAG}: {material.name} has no PEM block")
    # `ssl` loads a pair from paths only. The bytes that were read are what is loaded, so that a file that is
    # replaced meanwhile cannot be half of the pair, and a key from the configuration touches no disk.
    descriptors = []
    try:
        for material in (settings.cert, settings.key):
            descriptors.append(os.memfd_create("tocsin-tls", os.MFD_CLOEXEC))
            os.write(descriptors[-1], bodies[material.name])
        cert, key = (f"/proc/self/fd/{descriptor}" for descriptor in descriptors)
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as err:
        raise ConfigError(
            f"{FLAG}: {settings.cert.name} and {settings.key.name} are not a certificate and its key: "
            f"{err.reason or 'unreadable'}"
        ) from None
    except OSError as err:
        raise ConfigError(f"{FLAG}: certificate and key cannot be loaded: {err.strerror}") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _no_passphrase() -> str:
    # Without this, OpenSSL asks the terminal and waits.
    raise ConfigError(f"{FLAG}: the key is encrypted; a key without a passphrase is needed")


def _load_authorities(context: ssl.SSLContext, material: Material, bodies: dict[str, bytes]) -> None:
    try:
        context.load_verify_locations(cadata=bodies[material.name].decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as err:
        reason = getattr(err, "reason", None) or "no certificate in it"
        raise ConfigError(f"{FLAG}: {material.name} is not a list of certificates: {reason}") from None


def san_allowed(connection: ssl.SSLSocket, allowed: frozenset[str]) -> bool:
    """Say whether the client's verified certificate has one of the *allowed* alternative names."""
    found: set[str] = set()
    names = cast("tuple[tuple[str, str], ...]", (connection.getpeercert() or {}).get("subjectAltName", ()))
    for kind, value in names:
        if kind == "IP Address":
            try:
                found.add(str(ipaddress.ip_address(value)))
            except ValueError:
                log.debug("unreadable address in a client certificate")
        elif kind in ("DNS", "email", "URI"):
            found.add(value)
    return not found.isdisjoint(allowed)


class TlsStream(Stream):
    """The server's side of a TLS connection."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, allowed_sans: frozenset[str]) -> None:
        self._tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(self._tls)
        self._allowed_sans = allowed_sans

    def handshake(self) -> None:
        """Go on; raises OSError when it fails or the client's certificate is not one of those let in."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            raise WouldBlockError(write=False) from None
        except ssl.SSLWantWriteError:
            raise WouldBlockError(write=True) from None
        if self._allowed_sans and not san_allowed(self._tls, self._allowed_sans):
            raise PermissionError("the client's certificate has none of client_allowed_sans")

    def receive(self) -> bytes:
        """Return what has come, b"" at the end."""
        try:
            return self._tls.recv(_MOST_RECORD)
        except ssl.SSLWantReadError:
            raise WouldBlockError(write=False) from None
        except ssl.SSLWantWriteError:
            raise WouldBlockError(write=True) from None

    def send(self, data: memoryview) -> int:
        """Return how many bytes were taken, at most one record."""
        try:
            return self._tls.send(data[:_MOST_RECORD])
        except ssl.SSLWantWriteError:
            raise WouldBlockError(write=True) from None
        except ssl.SSLWantReadError:
            raise WouldBlockError(write=False) from None

    def pending(self) -> bool:
        """Say whether a record was decrypted and not handed out."""
        return self._tls.pending() > 0

    def farewell(self) -> None:
        """Say that nothing more will be sent, within TLS and below."""
        # unwrap() would also wait for the other side's farewell, which the drain does not need.
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        self._tls.shutdown(socket.SHUT_WR)
