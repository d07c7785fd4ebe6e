"""Following a run in the browser: a server for the report page and its data, with two fixed routes."""

import hashlib
import ipaddress
import re
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from fedlane import __version__
from fedlane.report.packing import embedded
from fedlane.report.page import build_page, content_policy
from fedlane.report.page_data import page_data
from fedlane.report.run_files import run_folders, signature
from fedlane.validate import InputError

COOKIE = "fedlane-watch"
HOST = re.compile(r"(?:\[(?P<address>[\w:.%]+)\]|(?P<name>[\w.-]+))(?::[0-9]{1,5})?", re.ASCII)
"""A Host header: an IPv6 address in brackets, or a name or IPv4 address; and perhaps a port."""
HEADERS = {
    "Content-Security-Policy": content_policy(live=True) + "; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Next = Callable[[Request], Awaitable[Response]]


@dataclass
class Watch:
    """A watched folder, the address that serves it, and its access token."""

    folder: Path
    host: str
    port: int
    token: str | None
    """Token that every request must carry; None if only this machine can connect."""
    names: frozenset[str]
    """Host names of this server, which requests may use as well as its addresses."""
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _seen: str = ""
    _data: dict[str, Any] = field(default_factory=lambda: {"runs": []})

    @classmethod
    def on(cls, folder: Path, host: str, bound: socket.socket) -> "Watch":
        """Watch a folder on a bound socket, with a token unless only this machine can connect."""
        address, port = bound.getsockname()[:2]
        local = ipaddress.ip_address(address.split("%")[0]).is_loopback
        names = frozenset(("localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower())) - {""}
        return cls(folder, host, port, None if local else secrets.token_urlsafe(24), names)

    @property
    def url(self) -> str:
        """Address to open, including the token."""
        wildcard = self.host in ("0.0.0.0", "::", "")
        name = socket.gethostname() if wildcard else self.host
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def current(self) -> tuple[str, dict[str, Any]]:
        """Return a tag that changes with the files, and the data of the page.

        If the files cannot be read, the last readable data is returned, with the reason under ``problem``.
        """
        with self._turn:
            problem = ""
            try:
                folders = run_folders([self.folder])
                seen = "\n".join(f"{folder}\n{signature(folder)}" for folder in folders)
                if seen != self._seen:
                    self._data, self._seen = page_data(folders), seen
            except InputError as error:
                empty = self.folder.is_dir() and not self._seen
                problem = "" if empty else str(error)  # an empty folder is not a problem: the run has not written yet
            tag = hashlib.sha256(f"{__version__}\n{self._seen}\n{problem}".encode(errors="replace")).hexdigest()
            return f'"{tag[:32]}"', {**self._data, "problem": problem}

    def allows(self, request: Request) -> bool:
        """Whether a request carries the token, in a cookie or as a bearer token."""
        if self.token is None:
            return True
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        return any(_same(given, self.token) for given in (request.cookies.get(self.cookie, ""), bearer))

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds the token."""
        return f"{COOKIE}-{self.port}"  # with the port: browsers share cookies between ports

    def is_own_host(self, host: str) -> bool:
        """Whether a Host header names this server. The check defeats DNS rebinding by other web pages."""
        parts = HOST.fullmatch(host)
        if parts is None:  # for example an address whose bracket is not closed
            return False
        name = parts["address"] or parts["name"]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self.names
        return True


def application(watched: Watch) -> Starlette:
    """Build the web application: the page at / and its data at /data; no request names a file."""

    async def guard(request: Request, call_next: Next) -> Response:
        if not watched.is_own_host(request.headers.get("host", "")):
            answer: Response = PlainTextResponse("Unknown host name: open the address that fedlane watch printed.", 421)
        elif watched.token and request.url.path == "/" and _same(request.query_params.get("token", ""), watched.token):
            answer = RedirectResponse("/", 303)  # removes the token from the address, and so from the browser's history
            answer.set_cookie(watched.cookie, watched.token, httponly=True, samesite="lax")
        elif not watched.allows(request):
            answer = PlainTextResponse("Missing token: open the address that fedlane watch printed.", 401)
        else:
            answer = await call_next(request)
        for name, value in HEADERS.items():
            answer.headers[name] = value
        return answer

    def page(request: Request) -> Response:
        _, data = watched.current()
        return Response(build_page(data, live=True), media_type="text/html")

    def data(request: Request) -> Response:
        tag, current = watched.current()
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        text = embedded({**current, "live": True, "version": __version__})
        return Response(text, media_type="application/json", headers={"ETag": tag})

    return Starlette(
        routes=[Route("/", page), Route("/data", data)],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)],
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `InputError` if the address is in use or not available here."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(64)  # connections wait until the server is up
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "; --port 0 chooses a free port" if port else ""
        raise InputError(f"cannot listen on {host} port {port}: {reason}{hint}") from error
    return bound


def serve(watched: Watch, bound: socket.socket) -> None:
    """Serve requests until Ctrl-C."""
    config = uvicorn.Config(
        application(watched),
        log_level="warning",
        access_log=False,  # a log would contain the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[bound])


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(errors="replace"), token.encode())
