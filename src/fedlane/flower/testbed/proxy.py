"""The reverse proxy between the nodes and the SuperLink, which passes on a node's calls and rejects all others.

Flower 1.41 serves three APIs on one port: `/v1/fleet/` for nodes, `/v1/control/` for operators and `/v1/runtime/` for
its own processes. Anyone who holds the authority's certificate can register a key and start a run, that is, run code on
every node, through `/v1/control/`. Therefore the SuperLink listens on an address that only its own machine can reach,
and nodes connect to the proxy, which answers 403 to everything but the calls that an admitted node needs.

The proxy also withstands clients that open many connections and never finish a call: it limits the calls in progress
per address, the time for a header and a body's piece, and has room for 16,000 connections. A single address can still
fill it with more connections than that before a header is complete, which only a packet filter can prevent.
"""

import re
import string
from pathlib import Path

from fedlane.flower.testbed.certificates import ServerFiles
from fedlane.validate import InputError, at_least

NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""The fleet API's calls that a registered node needs. `register-node` is not among them: only operators register."""


OPEN_FILES, CONNECTIONS, HEADER_S = 16_384, 16_000, 20
"""Files and connections of the proxy, and seconds for a TLS handshake with the header of a call."""


class _NginxTemplate(string.Template):
    delimiter = "@"  # nginx has its own $variables


_NGINX_CONF = _NginxTemplate("""\
# FedLane: nodes call the fleet API on @listen; the control and runtime APIs stay on the SuperLink's @superlink.
daemon @daemon;
worker_processes 1;
worker_rlimit_nofile @files;
pid "@folder/nginx.pid";
error_log "@folder/nginx-error.log" warn;
# Connections that have not sent a whole header yet cannot be counted by address: there must be room for many.
events { worker_connections @connections; }
http {
    access_log "@folder/nginx-access.log";
    client_body_temp_path "@folder/body";
    proxy_temp_path "@folder/proxy";
    fastcgi_temp_path "@folder/unused";
    uwsgi_temp_path "@folder/unused";
    scgi_temp_path "@folder/unused";
    server_tokens off;
    client_max_body_size @{largest_call_mb}m;
    client_header_timeout @{header_s}s;  # TLS handshake and whole header
    client_body_timeout 60s;  # between two pieces of a body: a lane may be slow
    send_timeout 60s;
    reset_timedout_connection on;
    limit_conn_zone $binary_remote_addr zone=address:10m;
    limit_conn address @calls_per_address;  # calls in progress; idle connections do not count
    limit_conn_status 429;
    limit_conn_log_level warn;
    server {
        listen @listen ssl backlog=4096;
        ssl_certificate "@certificate";
        ssl_certificate_key "@key";
        ssl_protocols TLSv1.2 TLSv1.3;
        keepalive_timeout 300s;
        # One pattern without captures: nginx matches the path after it has resolved dots, slashes and escapes.
        # \\z, because $ would also match before a newline sent as %0a.
        location ~ "^/v1/fleet/(?:@calls)\\z" {
            limit_except POST { deny all; }
            # $uri, not the request's own path: the path that was matched is the path that is passed on.
            proxy_pass https://@superlink$uri;
            proxy_ssl_trusted_certificate "@authority";
            proxy_ssl_verify on;
            proxy_ssl_name "@superlink_name";
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 300s;
            proxy_send_timeout 300s;
        }
        location / { return 403; }
    }
}
""")


def nginx_config(
    *,
    listen: str,
    superlink: str,
    files: ServerFiles,
    folder: Path,
    superlink_name: str = "localhost",
    largest_call_mb: int = 16,
    calls_per_address: int = 256,
    daemon: bool = True,
) -> str:
    """Return a complete nginx.conf that passes a node's calls to the SuperLink and rejects all others.

    Args:
        listen: Address and port for the nodes, with TLS.
        superlink: Address and port of the SuperLink.
        files: Certificates and key of the server.
        folder: Folder for nginx's own files.
        superlink_name: Host name in the SuperLink's certificate (nginx checks names, not addresses).
        largest_call_mb: Largest request in MB. Flower splits arrays into pieces of 5 MiB.
        calls_per_address: Largest number of calls in progress from one address; further ones get status 429. Nodes
            behind one router share an address, and a node has few calls in progress.
        daemon: Whether nginx runs in the background.

    Raises:
        InputError: If an address, a name or a path cannot be written into an nginx configuration.
    """
    at_least("largest_call_mb", largest_call_mb, 1)
    at_least("calls_per_address", calls_per_address, 1)
    for field, address in (("listen", listen), ("superlink", superlink)):
        if re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}", address) is None:
            raise InputError(f"{field} must be address:port, got {address!r}")
    if re.fullmatch(r"[A-Za-z0-9.-]+", superlink_name) is None:
        raise InputError(f"superlink_name must be a host name, got {superlink_name!r}")
    for path in (folder, files.authority, files.certificate, files.key):
        if re.search(r"[\"\\$\n]", str(path)):
            raise InputError(f"paths in an nginx configuration must not contain \", \\, $ or newlines, got '{path}'")
    return _NGINX_CONF.substitute(
        listen=listen,
        superlink=superlink,
        superlink_name=superlink_name,
        folder=folder,
        authority=files.authority,
        certificate=files.certificate,
        key=files.key,
        calls="|".join(NODE_CALLS),
        largest_call_mb=largest_call_mb,
        calls_per_address=calls_per_address,
        files=OPEN_FILES,
        connections=CONNECTIONS,
        header_s=HEADER_S,
        daemon="on" if daemon else "off",
    )
