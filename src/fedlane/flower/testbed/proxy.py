"""What stands between the nodes and the SuperLink: a reverse proxy that knows the fleet's paths and no others.

Flower 1.41 serves three APIs on one port: `/v1/fleet/` for nodes, `/v1/control/` for operators and `/v1/runtime/` for
its own processes. Whoever holds the authority's certificate alone can register a key and start a run, which is code
on every node, over `/v1/control/`. So the SuperLink listens where only its own machine reaches it, and nodes reach
the proxy, which passes on the calls of an admitted node and answers 403 to anything else.
"""

import re
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
"""The fleet's calls that a node with a registered key needs; registering oneself is not among them."""


def nginx_config(
    *,
    listen: str,
    superlink: str,
    files: ServerFiles,
    folder: Path,
    superlink_name: str = "localhost",
    largest_call_mb: int = 16,
    daemon: bool = True,
) -> str:
    """A complete nginx.conf: TLS on ``listen`` (address:port), the fleet's calls to ``superlink``, nothing else.

    ``superlink_name`` is a host name in the SuperLink's certificate (nginx checks names, not addresses);
    ``largest_call_mb`` bounds one request: Flower cuts arrays into pieces of 5 MiB. nginx keeps its own files in
    ``folder``.
    """
    at_least("largest_call_mb", largest_call_mb, 1)
    for field, address in (("listen", listen), ("superlink", superlink)):
        if re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}", address) is None:
            raise InputError(f"{field} must be address:port, got {address!r}")
    if re.fullmatch(r"[A-Za-z0-9.-]+", superlink_name) is None:
        raise InputError(f"superlink_name must be a host name, got {superlink_name!r}")
    for path in (folder, files.authority, files.certificate, files.key):
        if re.search(r"[\"\\$\n]", str(path)):
            raise InputError(f"{path} cannot stand in an nginx configuration")
    calls = "|".join(NODE_CALLS)
    return f"""\
# FedLane: nodes reach the fleet's calls on {listen}; control and runtime stay with the SuperLink on {superlink}.
daemon {"on" if daemon else "off"};
worker_processes 1;
pid "{folder}/nginx.pid";
error_log "{folder}/nginx-error.log" warn;
events {{ worker_connections 1024; }}
http {{
    access_log "{folder}/nginx-access.log";
    client_body_temp_path "{folder}/body";
    proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/unused";
    uwsgi_temp_path "{folder}/unused";
    scgi_temp_path "{folder}/unused";
    server_tokens off;
    client_max_body_size {largest_call_mb}m;
    server {{
        listen {listen} ssl;
        ssl_certificate "{files.certificate}";
        ssl_certificate_key "{files.key}";
        ssl_protocols TLSv1.2 TLSv1.3;
        keepalive_timeout 300s;
        # one capture-free pattern for all: nginx compares the path after it has resolved dots, slashes and escapes
        # (\\z: a $ would also match before a line's end that was sent as %0a)
        location ~ "^/v1/fleet/(?:{calls})\\z" {{
            limit_except POST {{ deny all; }}
            # $uri, not what came: what was compared is what is passed on
            proxy_pass https://{superlink}$uri;
            proxy_ssl_trusted_certificate "{files.authority}";
            proxy_ssl_verify on;
            proxy_ssl_name "{superlink_name}";
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 300s;
            proxy_send_timeout 300s;
        }}
        location / {{ return 403; }}
    }}
}}
"""
