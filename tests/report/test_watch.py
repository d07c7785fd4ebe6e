"""`fedlane watch`: a real server, a run that is followed to its end, and requests that must be refused."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from support.browsing import Tab, save_run
from support.terminal import HELD, fedlane

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

FEDLANE = [sys.executable, "-c", "from fedlane.cli import main; main()"]


@contextlib.contextmanager
def watching(folder, *options):
    """Start a server for a folder and yield the address that it printed."""
    command = [*FEDLANE, "watch", str(folder), "--port", "0", "--no-open", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            ask(url)  # returns once the server is up
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(180) == 0
            assert server.stderr.read() == ""


def ask(url, path="/", *, host=None, method="GET", **headers):
    """Send a raw request to the loopback address; return status, headers and text. The path is sent unchanged."""
    port = urlsplit(url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch") / "run"
    save_run(folder, rounds=6, learning=False)
    return folder


@pytest.fixture(scope="module")
def local(finished):
    with watching(finished) as url:
        yield url


def test_only_two_routes_are_served_and_nothing_by_path(local, finished):
    assert ask(local)[0] == 200
    status, _, text = ask(local, "/data")
    assert (status, json.loads(text)["runs"][0]["rounds"]) == (200, 6)
    paths = ("/status.json", "/run/status.json", "/../status.json", "/..%2fstatus.json", "/data/../status.json")
    for path in (*paths, f"//{finished}/status.json", "/%00", "/data/", "/static/", "/docs"):
        status, _, text = ask(local, path)
        assert status in (400, 404, 307), path
        assert "finished" not in text
    assert ask(local, method="POST")[0] == 405


def test_a_foreign_host_name_is_refused(local):
    port = urlsplit(local).port
    for host in ("localhost", f"localhost:{port}", f"[::1]:{port}", "127.0.0.1:9"):  # a tunnel may use another port
        assert ask(local, host=host)[0] == 200
    for host in (
        "[::1",
        "[::1:8",
        "[::1]x",
        "[]",
        "]",
        "[",
        "127.0.0.1:x",
        "localhost:",
        "a@localhost",
        "::1:80",
        "\u00fc",
    ):
        assert ask(local, "/data", host=host.encode("latin-1"))[0] in (400, 421)
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        status, _, text = ask(local, "/data", host=host)
        assert (status, "runs" in text) == (421, False)


def test_unchanged_data_is_not_sent_again(local, finished):
    _, headers, _ = ask(local, "/data")
    status, again, text = ask(local, "/data", If_None_Match=headers["etag"])
    assert (status, text, again["etag"]) == (304, "", headers["etag"])
    (finished / "status.json").touch()
    assert ask(local, "/data", If_None_Match=headers["etag"])[0] == 200


def test_responses_have_security_headers(local):
    for path in ("/", "/data", "/nothing"):
        _, headers, _ = ask(local, path)
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_other_machines_need_a_token(finished):
    with watching(finished, "--host", "0.0.0.0") as url:
        token = re.fullmatch(r"http://[^/]+/\?token=([\w-]{32})", url)[1]
        for path in ("/", "/data", "/?token=wrong", "/?token=", f"/data?token={token}", "/nothing"):
            status, _, text = ask(url, path)
            assert (status, "runs" in text) == (401, False), path
        assert ask(url, Cookie="fedlane-watch=1; fedlane-watch-80=2", Authorization="Bearer wrong")[0] == 401
        status, headers, _ = ask(url, f"/?token={token}")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert ask(url, "/data", Cookie=cookie.split(";")[0])[0] == 200
        assert ask(url, "/data", Authorization=f"Bearer {token}")[0] == 200
        assert ask(url, "/data", host="evil.example", Authorization=f"Bearer {token}")[0] == 421
    with watching(finished, "--host", "0.0.0.0") as url:
        assert token not in url


def test_a_run_is_followed_to_its_end(browser, tmp_path):
    from playwright.sync_api import expect

    folder = tmp_path / "run"
    folder.mkdir()
    settings = ["--set", "learning.evaluate_every=5", "--checkpoint-every", "10", "--rounds", "120", "--quiet"]
    with watching(folder) as url, Tab(browser, url) as tab:
        state = tab.page.locator("#state")
        expect(state).to_have_text("waiting for the first rounds")
        held = [sys.executable, "-c", HELD, "60", str(tmp_path / "seen")]
        with subprocess.Popen([*held, "run", "quickstart", *settings, "--out", str(folder)]) as run:
            expect(state).to_contain_text(re.compile(r"running: round \d+ of 120"))
            first = int(tab.page.locator("#slider").input_value())
            assert 0 < first < 120
            (tmp_path / "seen").touch()
            expect(state).to_have_text("finished")
            assert run.wait() == 0
        assert tab.page.locator("#slider").input_value() == "120"  # the page followed the newest round
        assert tab.page.locator("#learning path.line").count() == 2
        assert tab.errors == []
        assert {request.removeprefix(url) for request in tab.requests} == {"", "data"}


def test_the_page_keeps_the_selected_round_and_reports_a_damaged_folder(browser, finished, tmp_path):
    from playwright.sync_api import expect

    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with watching(folder) as url, Tab(browser, url) as tab:
        tab.look_at_round(3)
        tab.page.locator("#service .figure-numbers summary").first.click()
        longer = tmp_path / "longer"
        save_run(longer, rounds=8, learning=False)
        for name in sorted(path.name for path in longer.iterdir()):
            shutil.move(longer / name, folder / name)
        expect(tab.page.locator(".where")).to_have_text("3 / 8")
        expect(tab.page.locator("#service .figure-numbers table").first).to_be_visible()
        (folder / "clients.parquet").write_bytes(b"nonsense")
        expect(tab.page.locator("#state")).to_contain_text("clients.parquet is damaged")
        assert tab.page.locator(".where").inner_text() == "3 / 8"
        assert tab.errors == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "run folder nowhere does not exist: start the run first"),
        ([".", "--port", "70000"], "--port must be 0 to 65535, got 70000"),
        ([".", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1"),
        ([".", "--host", "no such host"], "cannot listen on no such host"),
    ],
)
def test_bad_input_is_a_one_line_error(tmp_path, arguments, line):
    done = fedlane("watch", *arguments, "--no-open", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert line in done.stderr


def test_a_port_in_use_is_a_one_line_error(local, tmp_path):
    port = str(urlsplit(local).port)
    done = fedlane("watch", tmp_path, "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert "--port 0 chooses a free port" in done.stderr


def test_missing_packages_are_named(tmp_path):
    code = "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None; from fedlane.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "watch", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'fedlane[watch]'" in done.stderr
