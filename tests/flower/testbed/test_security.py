"""Access to a federation: real SuperLink, SuperNodes and nginx in isolated namespaces, with TLS and node keys."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from fedlane.flower.testbed import links
from fedlane.flower.testbed.certificates import make_node_files, make_server_files
from fedlane.flower.testbed.processes import CONNECTION, FlowerCluster, ProcessError
from fedlane.flower.testbed.proxy import NODE_CALLS, nginx_config
from fedlane.validate import InputError
from support.parts import missing
from support.superlink import APPS

PORT, NODE_PORT = 9801, 9802
OUTSIDE = "198.51.100.7"
"""A reserved address (RFC 5737): packets to it would leave the machine."""
pytestmark = pytest.mark.xdist_group("flower")
servers = pytest.mark.slow  # these start SuperLink, SuperNodes and nginx


@pytest.fixture(scope="module")
def cell():
    reason = links.unsupported_reason()
    if reason is not None:
        missing(f"real links cannot be built here: {reason}")
    with links.temporary_cell(2) as built:
        built.tune({0: 50.0, 1: 50.0})
        for namespace in built.namespaces:  # the sink counts and discards every packet to the outside
            enter = ["ip", "netns", "exec", namespace]
            ip = ["link add sink arp off type veth peer name void", "link set sink up", "link set void up"]
            subprocess.run(["ip", "-netns", namespace, *ip[0].split()], check=True)
            subprocess.run([*enter, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"], check=True)
            for words in (*ip[1:], "route add default dev sink"):
                subprocess.run(["ip", "-netns", namespace, *words.split()], check=True)
        yield built


@pytest.fixture(scope="module")
def federation(cell, tmp_path_factory):
    if shutil.which("nginx") is None:
        missing("nginx is not installed")
    folder = tmp_path_factory.mktemp("federation")
    with FlowerCluster(
        folder, port=PORT, address=links.SERVER_ADDRESS, namespace=cell.base, node_port=NODE_PORT
    ) as running:
        running.start_superlink()
        key = running.new_node("member")
        running.register(key)
        node = running.start_supernode("member", key, port=9900, namespace=cell.client(0), config={"partition-id": 0})
        running.wait_for_nodes([node])
        yield running


def inside(namespace, code, *arguments):
    """Run Python code in a namespace and return its output."""
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CALL = """
import http.client, ssl, sys
ca, method, *targets = sys.argv[1:]
for target in targets:
    context = ssl.create_default_context(cafile=ca)
    connection = http.client.HTTPSConnection("{address}", {port}, context=context, timeout=60)
    connection.putrequest(method, target, skip_host=False)
    connection.putheader("Content-Type", "application/protobuf")
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    print(connection.getresponse().status)
"""


def statuses(federation, cell, method, *targets, port=NODE_PORT):
    code = CALL.format(address=links.SERVER_ADDRESS, port=port)
    printed = inside(cell.client(1), code, str(federation.files.authority), method, *targets)
    return [int(line) for line in printed.split()]


@servers
def test_strangers_are_refused(federation, cell):
    """No node id for an unregistered key, no key, plaintext, no authority or another authority.

    A node without a key gets none either if it bypasses the proxy.
    """
    authority = ["--root-certificates", str(federation.files.authority)]
    other = make_server_files(federation.folder / "other", [links.SERVER_ADDRESS])
    stranger = federation.new_node("stranger")
    attempts = {
        "unregistered": (stranger, authority, "[code: 2004]"),
        "keyless": (None, authority, "403"),
        "beside": (None, [*authority, "--superlink", federation.superlink_address], "[code: 2001]"),
        "plaintext": (None, ["--insecure"], "400"),
        "no-authority": (federation.new_node("third"), [], "CERTIFICATE_VERIFY_FAILED"),
        "wrong-authority": (stranger, ["--root-certificates", str(other.authority)], "CERTIFICATE_VERIFY_FAILED"),
    }
    started = {
        name: federation.start_supernode(
            name,
            key,
            port=9901 + number,
            namespace=cell.base if name == "beside" else cell.client(1),
            options=[*options, "--max-retries", "0"],
            stock=True,
        )
        for number, (name, (key, options, _)) in enumerate(attempts.items())
    }
    for name, node in started.items():
        reason = attempts[name][2]
        node.wait_for(lambda node=node, reason=reason: reason in node.log_text(), 120, f"refusal with {reason!r}")
        assert not node.admitted(), name
    nodes = json.loads(federation.operate("supernode", "list", CONNECTION, "--format", "json"))["nodes"]
    assert [n["status"] for n in nodes] == ["online"]


@servers
def test_nodes_reach_the_fleet_and_nothing_else(federation, cell):
    """All of Flower's APIs share one port; only a node's calls pass the proxy, however the path is written."""
    fleet = statuses(federation, cell, "POST", *(f"/v1/fleet/{call}" for call in NODE_CALLS))
    assert all(
        status not in (403, 404) for status in fleet
    )  # forwarded to SuperLink, which refuses them without a signature
    assert all(status >= 400 for status in fleet)
    barred = [
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/control/list-runs",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/../control/register-node",
        "/v1/fleet/%2e%2e/control/register-node",
        "/v1/fleet/pull-messages/../../control/register-node",
        "/v1/fleet/pull-messages%2f..%2f..%2fcontrol/register-node",
        "//v1//control//register-node",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages%0a",
        "/docs",
        "/",
    ]
    assert set(statuses(federation, cell, "POST", *barred)) == {403}
    assert set(statuses(federation, cell, "GET", "/v1/fleet/pull-messages")) == {403}


@servers
def test_the_operators_commands_do_not_work_from_a_node(federation, cell, tmp_path):
    """Flower's own command line with the authority's certificate, as a node's owner would try it."""
    attacker = FlowerCluster.__new__(FlowerCluster)
    home = tmp_path / "flwr"
    FlowerCluster._configure(federation.node_address, federation.files.authority, home)
    attacker.namespace = cell.client(1)
    attacker._environment = {**federation._environment, "FLWR_HOME": str(home)}
    key = make_node_files(tmp_path, "attacker")
    for command in (("supernode", "register", str(key.public), CONNECTION), ("run", str(APPS / "mirror"), CONNECTION)):
        with pytest.raises(ProcessError, match="403"):
            attacker.operate(*command)
    with pytest.raises(AssertionError, match="refused"):  # SuperLink itself listens only on its own machine
        statuses(federation, cell, "POST", "/v1/control/list-runs", port=PORT)


@servers
def test_a_registered_node_works_through_the_proxy_and_nothing_is_sent_outside(federation, cell, tmp_path):
    """1 MB down and up through TLS, proxy and shaped link, without a single packet to the outside."""
    out = tmp_path / "same.json"
    run = federation.submit(APPS / "mirror", {"out": str(out)})
    superlink = federation.children[0]
    superlink.wait_for(lambda: out.exists() and out.read_text() != "", 300, "end of the run")
    superlink.wait_for(lambda: federation.status(run).startswith("finished"), 120, "end of the run")
    assert federation.status(run) == "finished:completed"
    assert json.loads(out.read_text()) == [True]
    assert sent_outside(cell) == dict.fromkeys(cell.namespaces, 0)

    inside(cell.client(1), f"import socket; s = socket.socket(); s.settimeout(0.1); s.connect_ex(('{OUTSIDE}', 443))")
    assert sent_outside(cell)[cell.client(1)] > 0  # the counter counts
    inside(cell.base, "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'?', ('127.0.0.53', 53))")
    assert sent_outside(cell)[cell.base] > 0  # a name lookup counts too, even by a local resolver


def sent_outside(cell):
    """Packets to the sink, plus all UDP datagrams: a name lookup may go to a local resolver."""
    counts = {}
    for namespace in cell.namespaces:
        printed = inside(
            namespace,
            "from pathlib import Path\n"
            "rows = [l.split() for l in Path('/proc/net/snmp').read_text().splitlines() if l.startswith('Udp:')]\n"
            "udp = dict(zip(*rows))\n"
            "sink = next(l for l in Path('/proc/net/dev').read_text().splitlines() if 'sink' in l).split()\n"
            "print(int(sink[10]), udp['OutDatagrams'])",
        )
        counts[namespace] = sum(int(count) for count in printed.split())
    return counts


def test_certificates_name_the_server_and_keys_are_private(tmp_path):
    files = make_server_files(tmp_path, ["10.0.0.1", "server.example"], days=3)
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["server.example"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(files.authority.read_bytes()))
    node = make_node_files(tmp_path, "node")
    for secret in (files.key, node.private):
        assert secret.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("ca.key*"))  # so no further certificate can be issued
    with pytest.raises(InputError, match="never overwritten"):
        make_node_files(tmp_path, "node")
    with pytest.raises(InputError, match="never overwritten"):
        make_server_files(tmp_path, ["10.0.0.1"])
    assert x509.load_pem_x509_certificate(files.certificate.read_bytes()) == certificate  # the certificate is unchanged
    with pytest.raises(InputError, match="at least one"):
        make_server_files(tmp_path / "none", [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listen": "0.0.0.0"}, "listen must be address:port"),
        ({"superlink": "127.0.0.1:1; return 200"}, "superlink must be address:port"),
        ({"superlink_name": "a b"}, "superlink_name must be a host name"),
        ({"folder": Path('/a/"b')}, "paths in an nginx configuration"),
        ({"largest_call_mb": 0}, "largest_call_mb must be at least 1"),
    ],
)
def test_the_proxy_refuses_invalid_settings(tmp_path, changes, message):
    files = make_server_files(tmp_path, ["localhost"])
    values = {"listen": "0.0.0.0:443", "superlink": "127.0.0.1:9000", "files": files, "folder": tmp_path}
    assert "location / { return 403; }" in nginx_config(**values)
    with pytest.raises(InputError, match=message):
        nginx_config(**{**values, **changes})
