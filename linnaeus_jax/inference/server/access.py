"""Who may ask the server: the names that it answers to, pages of other sites, and the token."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from starlette.types import Scope

from linnaeus_jax.config.errors import UserError

#: names of this machine for itself, which no other site can have
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: environment variable that may hold the token
TOKEN_VARIABLE = "LINNAEUS_SERVE_TOKEN"
#: is answered without the token
HEALTH = "/health"
#: bytes of a file that holds a token
_LARGEST_TOKEN = 4096
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
#: methods that change nothing, and whose answer a browser shows to no page of another site
_HARMLESS = ("GET", "HEAD", "OPTIONS")
#: browsers then ask for a name and a password
_CHALLENGE = 'Basic realm="linnaeus_jax: any name, the token as password", charset="UTF-8"'


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered: status, reason, and headers of the answer."""

    status: int
    detail: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Access:
    """What a request must bring before anything else of it is looked at.

    Attributes:
      hosts: names and addresses in the header Host, lower case, without port; "*.example.org" is every name below it,
        "*" any name. Without this check a page whose name is made to lead to this machine could use the server.
      addresses: whether any IP address is one of them, as where the server listens on all addresses.
      origins: of pages of other sites that may use it, as "https://example.org".
      token: what every request but `HEALTH` must bring, as bearer token or as the password of basic authentication;
        empty: nothing.
    """

    hosts: frozenset[str] = frozenset(LOOPBACK)
    addresses: bool = False
    origins: frozenset[str] = frozenset()
    token: bytes = b""

    def refusal(self, scope: Scope) -> Refusal | None:
        """None where the request may go on."""
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1") for value in given.get(b"host", [])]
        host = _split(f"//{hosts[0]}") if len(hosts) == 1 else None
        if host is None or not self._is_host((host.hostname or "").rstrip(".")):
            said = ", ".join(hosts)[:100] or "nothing"
            return Refusal(400, f"Host is {said!r}, which is no name of this server; it gets names by --host-names", {})
        if self.token and scope["path"] != HEALTH and not self._has_token(given.get(b"authorization", [])):
            return Refusal(
                401,
                "this server wants a token: send it as Authorization: Bearer TOKEN, or as a password (curl -u :TOKEN)",
                {"WWW-Authenticate": _CHALLENGE},
            )
        if scope["method"] not in _HARMLESS and not self._may_post(host, given):
            return Refusal(
                403,
                "the request comes from a page of another site; whoever runs the server can allow it by --origins",
                {},
            )
        return None

    def _is_host(self, name: str) -> bool:
        if self.hosts & {name, "*"} or (self.addresses and is_address(name)):
            return True
        labels = name.split(".")  # of "a.b.c": "*.b.c" and "*.c"
        return any(".".join(["*", *labels[start:]]) in self.hosts for start in range(1, len(labels)))

    def _has_token(self, given: list[bytes]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, text = given[0].partition(b" ")
        if scheme.lower() == b"basic":
            try:
                text = base64.b64decode(text.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(text.strip(), self.token)

    def _may_post(self, host: SplitResult, given: dict[bytes, list[bytes]]) -> bool:
        """Whether it comes from the page of this server, from a listed one, or from no page at all."""
        sites = given.get(b"sec-fetch-site", [])
        if b"origin" not in given:
            return all(site in (b"same-origin", b"none") for site in sites)
        for value in given[b"origin"]:
            text = value.decode("latin-1").lower()
            origin = _split(text)
            if text not in self.origins and (
                origin is None
                or origin.scheme not in _DEFAULT_PORTS
                or (origin.hostname, _port(origin, origin.scheme)) != (host.hostname, _port(host, origin.scheme))
            ):
                return False
        return True


def access_of(bound: str, names: str = "", origins: str = "", token: str = "") -> Access:
    """From the options of the command line.

    Args:
      bound: the address that the server listens on.
      names, origins: separated by commas.

    Raises:
      UserError: what is no name, no origin.
    """
    address = ipaddress.ip_address(bound.partition("%")[0])
    hosts = {*LOOPBACK, str(address), *map(_host_name, _parts(names))}
    if address.is_unspecified:
        hosts.add(socket.gethostname().lower())
    listed = frozenset(map(_origin, _parts(origins)))
    return Access(frozenset(hosts), address.is_unspecified, listed, token.encode())


def read_token(file: Path | None) -> str:
    """The token in a file, or in the environment variable `TOKEN_VARIABLE`; "" where none is given.

    Raises:
      UserError: both are given, or what is given is no token.
      OSError: the file cannot be read.
    """
    value = os.environ.get(TOKEN_VARIABLE)
    if file is not None and value is not None:
        raise UserError(f"--token-file and the environment variable {TOKEN_VARIABLE} are both given; give one of them")
    if file is not None:
        with file.open("rb") as opened:
            raw = opened.read(_LARGEST_TOKEN + 1)
        value, where = raw.decode("latin-1"), str(file)
    elif value is not None:
        where = f"the environment variable {TOKEN_VARIABLE}"
    else:
        return ""
    token = value.strip()
    if not token or len(token) > _LARGEST_TOKEN or not re.fullmatch(r"[!-~]+", token):
        raise UserError(
            f"{where} holds no token, which is one word of at most {_LARGEST_TOKEN} letters, digits and signs of "
            "ASCII; make one with openssl rand -hex 32"
        )
    return token


def is_address(name: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _split(text: str) -> SplitResult | None:
    """None where it is no address of a server."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return parts if parts.hostname and plain else None


def _port(parts: SplitResult, scheme: str) -> int:
    return parts.port or _DEFAULT_PORTS[scheme]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _host_name(text: str) -> str:
    name = text.lower().rstrip(".").removeprefix("[").removesuffix("]")
    if name == "*" or is_address(name):
        return name
    try:
        name = name.encode("idna").decode() if not name.isascii() else name
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"--host-names holds {text!r}; give names as species.example.org or *.example.org, without scheme and port"
        )
    return name


def _origin(text: str) -> str:
    origin = _split(text.lower())
    if origin is None or origin.scheme not in _DEFAULT_PORTS:
        raise UserError(f"--origins holds {text!r}; give scheme, name and port of a site, as https://example.org:8443")
    return text.lower()
