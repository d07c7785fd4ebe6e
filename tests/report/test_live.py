"""The live panel at any size, and the real program on a real terminal."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedlane import Scenario, Simulation
from fedlane.cli.display import Display, live_view
from fedlane.report.live import live_line, live_panel, sparkline
from fedlane.report.live_view import Assigned, Finished, LiveView, PrivacySpent

FEDLANE = str(Path(sys.executable).parent / "fedlane")


def view(clients=10, channels=4, **changes):
    assigned = tuple(
        Assigned(client=clients - 1 - j, channel=j, download_s=1.0, compute_s=0.5, upload_s=0.5)
        for j in range(min(clients, channels))
    )
    record = LiveView(
        scenario="quickstart",
        policy="lane",
        seeds=(7,),
        round=50,
        rounds=200,
        channels=channels,
        deadline_s=4.0,
        assigned=assigned,
        queue=np.arange(clients) / 10,
        available=np.ones(clients, np.bool_),
        delay_s=np.full(50, 2.0),
        accuracy=np.array([0.1, 0.4, 0.713]),
        spent=PrivacySpent("rigorous", 5.214, 8.0, 23, 1e-5),
        rounds_per_s=10.0,
    )
    return replace(record, **changes)


def shown(record, width=80, height=23, **options):
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    lines = console.render_lines(live_panel(record, width, height, **options), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def lane(lines, channel, client):
    (line,) = [line for line in lines if re.match(rf"\W+{channel} +{client} ", line)]
    return line


@pytest.mark.parametrize(("clients", "channels"), [(1, 1), (10, 4), (3, 40), (40, 30), (5000, 500)])
@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 40), (60, 12), (59, 23), (200, 60), (80, 11), (20, 5)])
def test_the_panel_fits(clients, channels, width, height):
    done = tuple(Finished(f"mamab-om:V={v}", 2e6, 0.5, 0.7) for v in range(9))
    for record in (view(clients, channels), view(clients, channels, finished=done, seeds=tuple(range(30)))):
        for ascii_only in (False, True):
            lines = shown(record, width, height, ascii_only=ascii_only)
            assert len(lines) <= height
            assert max(map(len, lines)) <= width
            assert not ascii_only or set("".join(lines)) & set("░▓█━■▁▂▃▄▅▆▇▶") == set()


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_shows_what_the_view_contains(width):
    text = "\n".join(shown(view(), width))
    for words in (
        "quickstart · lane · seed 7",
        "round 50 of 200 · 10 rounds/s · 0:15 left",
        "deadline 4 s",
        "  0.713",
        "2.00 s · 100 s simulated",
        "rigorous: epsilon 5.21 of 8 at delta 1e-05 · uploads left 23",
    ):
        assert words in text
    for client in range(10):
        assert re.search(rf" {client} [■ ]{{8}} +{client / 10:.1f}", text)
    averaged = "\n".join(shown(view(seeds=(0, 1, 2)), width))
    assert "seed 0 of 3 seeds" in averaged
    assert averaged.count("mean of 3 seeds") == 2
    assert "accuracy" not in "\n".join(shown(view(accuracy=np.empty(0), spent=None)))
    paper = "\n".join(shown(view(spent=PrivacySpent("paper", 12.06, 0.8, 3, 1e-3))))
    assert "epsilon 12.1 at delta 0.001 by its formula, 0.8 per round" in paper
    assert "finished    random  2,010 s of simulated time, 17.5% late" in "\n".join(
        shown(view(finished=(Finished("random", 2010.4, 0.175, None),)))
    )


def test_bars_are_proportional_to_delays_and_late_ones_are_marked():
    punctual, late = Assigned(3, 0, 1.0, 0.5, 0.5), Assigned(8, 1, 3.0, 1.0, 0.5)
    hopeless = Assigned(5, 3, 400.0, 1e5, 1e9)
    lines = shown(view(assigned=(punctual, late, hopeless)))
    bars = lane(lines, 0, 3)
    down, work, up = (bars.count(glyph) for glyph in "░▓█")
    mark = bars.index("│", 20) - bars.index("░")  # position of the deadline of 4 s
    assert (down, work, up) == (round(mark / 4), round(mark * 1.5 / 4) - round(mark / 4), round(mark / 2) - down - work)
    assert bars.rstrip(" │").endswith("2.00 s")
    over = lane(lines, 1, 8)
    assert sum(over.count(glyph) for glyph in "░▓█") == round(mark * 4.5 / 4)
    assert "4.50 s late" in over
    assert "▶" in lane(lines, 3, 5)
    assert "late" in lane(lines, 3, 5)
    assert lane(lines, 2, "-")  # an idle channel


def test_of_many_clients_the_slowest_and_the_longest_queues_are_shown():
    clients, channels = 300, 100
    rng = np.random.default_rng(0)
    assigned = tuple(Assigned(2 * j, j, *map(float, rng.exponential(1.0, 3))) for j in range(channels))
    record = view(clients, channels, assigned=assigned, queue=rng.permutation(clients) / 2.0)
    lines = shown(record)
    slowest = sorted(assigned, key=lambda client: -client.total_s)
    for client in slowest[:5]:
        assert f"{client.total_s:.2f} s" in lane(lines, client.channel, client.client)
    late = sum(client.total_s > 4.0 for client in assigned)
    (rest,) = [line for line in lines if "slowest clients" in line]
    assert f"on 100 channels, {late} late in total" in rest
    for client in np.argsort(-record.queue)[:6]:
        assert re.search(rf" {client} ■+ +{record.queue[client]:.1f}", "\n".join(lines))
    spent = np.ones(clients, np.bool_)
    spent[np.argmax(record.queue)] = False
    assert f"{np.argmax(record.queue)}x■" in "\n".join(shown(replace(record, available=spent)))


def test_sparkline():
    assert sparkline(np.array([0.0, 0.5, 1.0]), 10) == "▁▅█"
    assert sparkline(np.zeros(3), 10) == "▁▁▁"
    assert sparkline(np.empty(0), 10) == ""
    assert sparkline(np.repeat([0.0, 1.0, 0.25], 40), 3) == "▁█▃"
    assert len(sparkline(np.arange(1234.0), 30)) == 30


def test_the_view_of_a_real_run():
    """The view agrees with the run's tables."""
    simulation = Simulation(Scenario.load("quickstart").with_values({"rounds": 30}), "mamab-om", [3, 4], learning=True)
    for _ in range(25):
        simulation.step()
    record = live_view(simulation.info, simulation.last_round(), 12.0)
    run = simulation.result()
    rounds = run.rounds.to_pylist()
    assert (record.round, record.rounds, record.seeds) == (25, 30, (3, 4))
    assert record.clock_s == pytest.approx(np.mean([row["clock_s"] for row in rounds if row["round"] == 24]))
    tested = [row["accuracy"] for row in rounds if row["accuracy"] is not None]
    assert record.accuracy == pytest.approx(np.mean(np.reshape(tested, (2, 2)), axis=0))
    last = [row for row in run.assignments.to_pylist() if (row["replica"], row["round"]) == (0, 24)]
    assert {(row["client"], row["channel"], row["delay_s"]) for row in last} == {
        (client.client, client.channel, client.total_s) for client in record.assigned
    }
    queue = [row["queue"] for row in run.clients.to_pylist() if row["replica"] == 0]
    assert record.queue.tolist() == queue
    assert record.spent.epsilon == pytest.approx(run.summary["privacy"]["epsilon"]["largest"])
    assert record.spent.uploads_left == 140 - run.summary["privacy"]["uploads"]["largest"]
    assert record.eta_s == pytest.approx(5 / 12)
    assert live_line(record).startswith("mamab-om: round 25 of 30, ")


def test_plain_lines_are_printed_at_intervals(monkeypatch):
    """One line per tenth of the run, at most one per second, and at least one every five seconds."""
    now = [0.0]
    monkeypatch.setattr("fedlane.cli.display.time.monotonic", lambda: now[0])
    simulation = Simulation(Scenario.load("quickstart").with_values({"rounds": 100}), "random")
    console = Console(file=io.StringIO(), width=80)
    display = Display(console)
    display.begin(simulation)
    printed = []
    for seconds in [0.3] * 40 + [1.3] * 20:
        simulation.step()
        now[0] += seconds
        before = len(console.file.getvalue())
        display.update(simulation)
        if len(console.file.getvalue()) > before:
            printed.append(simulation.round)
    assert printed == [10, 20, 30, 40, 44, 48, 50, 54, 58, 60]
    assert console.file.getvalue().startswith("random: round 10 of 100, ")


def on_a_terminal(arguments, cwd, columns=80, rows=24, interrupt=None):
    """Run the program on a terminal of this size; return its exit code, output and terminal text.

    Ctrl-C is sent as soon as the text ``interrupt`` appears.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR", "CI")}
    process = subprocess.Popen(
        [FEDLANE, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(slave)
    seen, deadline = b"", time.monotonic() + 400
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the program has closed its end
                break
            seen += piece
            if interrupt is not None and interrupt.encode() in seen:
                process.send_signal(signal.SIGINT)
                interrupt = None
    output, _ = process.communicate(timeout=180)
    os.close(master)
    return process.returncode, output.decode(), seen.decode()


@pytest.mark.slow
def test_a_terminal_shows_the_panel_and_the_cursor_is_restored(tmp_path):
    options = ("--policy", "lane", "--policy", "random", "--rounds", "3000", "--no-learning", "--out", "o")
    code, output, seen = on_a_terminal(("compare", "quickstart", *options), tmp_path, 100, 30)
    assert code == 0
    assert "╭─ fedlane · quickstart · lane · seed 0" in seen
    assert "╭─ fedlane · quickstart · random · seed 0" in seen
    assert re.search(r"finished +\S*lane +[\d,]+ s of simulated time", re.sub(r"\x1b\[[\d;]*m", "", seen))
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0
    assert "random" in output
    assert "╭─" not in output


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_saves_and_says_how_to_continue(tmp_path):
    command = ("run", "--rounds", "400000", "--no-learning", "--out", "o")
    code, _, seen = on_a_terminal(command, tmp_path, interrupt=" s simulated")
    assert code == 130
    text = seen.replace("\r\n", "")
    assert re.search(r"interrupted: the first \d+ rounds are saved; continue with fedlane run --resume o", text)
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0
    assert json.loads((tmp_path / "o" / "status.json").read_text())["state"] == "interrupted"


@pytest.mark.slow
def test_json_on_a_terminal_is_only_json(tmp_path):
    code, output, seen = on_a_terminal(("run", "--rounds", "50", "--no-learning", "--json", "--out", "o"), tmp_path)
    assert (code, seen) == (0, "")
    assert json.loads(output)["rounds"] == 50


@pytest.mark.parametrize(
    ("cost_s", "processor_share", "min_count", "max_count"), [(0, 1, 18, 20), (0.004, 1, 4, 6), (0.004, 0, 1, 1)]
)
def test_the_panel_is_drawn_at_most_ten_times_a_second_and_takes_a_hundredth_of_the_time(
    cost_s, processor_share, min_count, max_count, monkeypatch
):
    """In two seconds: as often as allowed; limited to 1% of the time; once if the program gets no processor time."""
    now, worked, drawn = [0.0], [0.0], []

    def picture(*_, **__):
        drawn.append(now[0])
        worked[0] += cost_s
        return "picture"

    monkeypatch.setattr("fedlane.cli.display.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fedlane.cli.display.time.thread_time", lambda: worked[0])
    monkeypatch.setattr("fedlane.cli.display.live_panel", picture)
    simulation = Simulation(Scenario.load("quickstart"), "random")
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with Display(console) as display:
        display.begin(simulation)
        simulation.step()
        drawn.clear()
        worked[0] += 1e-9
        if not processor_share:
            display._rest_s = 1.0
        for _ in range(2100):
            now[0] += 0.001
            worked[0] += 0.001 * processor_share
            display.update(simulation)
    assert min_count <= len(drawn) <= max_count
    assert np.diff(drawn).min(initial=1.0) >= 0.099
