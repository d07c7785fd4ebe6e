"""Half-sent requests, as many as used to fill the proxy: an honest node's call still gets through. Loopback only."""

import contextlib
import http.client
import http.server
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from fedlane.flower.testbed.certificates import make_server_files
from fedlane.flower.testbed.proxy import nginx_config
from support.parts import missing

ATTACKER = "127.0.0.2"
"""Source address of the attack; honest calls come from 127.0.0.1."""
CONNECTIONS = 1_500
ATTACK_S = 15.0
"""An honest call gets its answer while the attack lasts: after 20 s the proxy gives up the first half-sent headers."""
HONEST_CALLS = 10
BODY = b"x" * 1000


class Upstream(http.server.ThreadingHTTPServer):
    """Stands for the SuperLink: answers every complete call, and counts those that reached it."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, files):
        self.calls = 0
        super().__init__(("127.0.0.1", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request, client_address):
        """Connections that the proxy gives up are part of the attack."""


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.calls += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    if shutil.which("nginx") is None:
        missing("nginx is not installed")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8192:
        missing("this process may not open enough files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    return make_server_files(tmp_path_factory.mktemp("files"), ["localhost", "127.0.0.1"])


@contextlib.contextmanager
def proxy(files, folder, **changes):
    """Run nginx before an upstream; yields the port of the proxy and the upstream."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    with Upstream(files) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        superlink = f"127.0.0.1:{upstream.server_address[1]}"
        text = nginx_config(listen=f"127.0.0.1:{port}", superlink=superlink, files=files, folder=folder, daemon=False)
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        (folder / "nginx.conf").write_text(text)
        argv = ["nginx", "-e", str(folder / "nginx-error.log"), "-c", str(folder / "nginx.conf")]
        with subprocess.Popen(argv) as nginx:
            try:
                wait_until_it_answers(files, port)
                yield port, upstream
            finally:
                nginx.terminate()
                nginx.wait(10)
                upstream.shutdown()


def wait_until_it_answers(files, port):
    for _ in range(100):
        with contextlib.suppress(OSError):
            return call(files, port)
        time.sleep(0.1)
    raise AssertionError("nginx does not answer")


def client_context(files):
    return ssl.create_default_context(cafile=files.authority)


def call(files, port, timeout=ATTACK_S, source="127.0.0.1"):
    """Make an honest call and return its status."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=client_context(files), timeout=timeout, source_address=(source, 0)
    )
    with contextlib.closing(connection):
        connection.request("POST", "/v1/fleet/push-object", BODY)
        response = connection.getresponse()
        assert response.status != 200 or response.read() == BODY
        return response.status


@contextlib.contextmanager
def half_sent(files, port, count=CONNECTIONS):
    """Hold connections without a handshake, with half a header and with half a body, a third each."""
    context, held, failures = client_context(files), [], 0
    header = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    try:
        while len(held) < count and failures < 20:  # a full proxy accepts no more
            try:
                raw = socket.create_connection(("127.0.0.1", port), timeout=0.5, source_address=(ATTACKER, 0))
                held.append(raw)
                kind = len(held) % 3
                if kind:
                    held[-1] = context.wrap_socket(raw, server_hostname="127.0.0.1")
                    held[-1].sendall(header if kind == 1 else header + b"\r\n" + BODY[:500])
            except OSError:
                failures += 1
        yield held
    finally:
        for connection in held:
            connection.close()


def refused(files, port):
    """Whether an honest call fails."""
    try:
        return call(files, port, timeout=3.0) != 200
    except OSError:
        return True


@pytest.mark.slow
def test_half_sent_requests_do_not_keep_an_honest_node_out(files, tmp_path):
    with proxy(files, tmp_path / "proxy") as (port, upstream):
        before = upstream.calls
        with half_sent(files, port) as held:
            assert len(held) == CONNECTIONS
            answers = [call(files, port) for _ in range(HONEST_CALLS)]
            reached = upstream.calls - before
            assert call(files, port, source=ATTACKER) == 429  # the attacker has used up its share
    assert answers == [200] * HONEST_CALLS
    assert reached <= 256 + 2 * HONEST_CALLS  # the attacker's share, and no more


@pytest.mark.slow
def test_the_same_attack_fills_a_proxy_without_limits(files, tmp_path):
    """The configuration before: 1,024 connections, and no limit per address."""
    old = {"worker_connections 16000": "worker_connections 1024", "limit_conn address 256;": ""}
    with proxy(files, tmp_path / "proxy", **old) as (port, _), half_sent(files, port):
        assert refused(files, port)


def test_half_a_header_is_given_up_in_time(files, tmp_path):
    quick = {
        "client_header_timeout 20s": "client_header_timeout 1s",
        "client_body_timeout 60s": "client_body_timeout 1s",
    }
    with proxy(files, tmp_path / "proxy", **quick) as (port, _), half_sent(files, port, 6) as held:
        for connection in held:
            connection.settimeout(5)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                answer = connection.recv(1000)
                assert answer == b"" or b" 408 " in answer
