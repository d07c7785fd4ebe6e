"""The rate of each client on each lane: drawn at random, taken from a scenario, or replayed from a measured trace.

Tables of rates are (K, U, N), in Mbit/s of payload: round t uses row t mod K.
"""

import math
from pathlib import Path

import numpy as np

from fedlane.network import RadioNetwork, rate_bps
from fedlane.network.mahimahi import PACKET_BITS
from fedlane.network.trace_files import find_trace, read_lines
from fedlane.records import FloatArray
from fedlane.rng import generator
from fedlane.scenario import Scenario
from fedlane.validate import InputError

MIN_MBPS, MAX_MBPS = 0.05, 1000.0
"""Range of the shaped rates. Silence in a trace becomes the minimum, at which every transfer misses its deadline."""
TRACE_STEP_S = 10.0
"""Length of the piece of the trace that one row averages, about the length of a round."""


def parse_range(text: str) -> tuple[float, float]:
    """Parse ``LOW:HIGH`` in Mbit/s."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise InputError(f"--rates must be LOW:HIGH in Mbit/s, for example 1:20, got '{text}'") from None
    if not MIN_MBPS <= low <= high <= MAX_MBPS:
        raise InputError(f"--rates must have {MIN_MBPS:g} <= LOW <= HIGH <= {MAX_MBPS:g}, got {text}")
    return low, high


def draw_rates(clients: int, lanes: int, low: float, high: float, seed: int) -> FloatArray:
    """Draw a rate for each pair independently, log-uniform between two bounds, the same in all rounds."""
    exponents = generator(seed, "testbed-rates").uniform(math.log(low), math.log(high), (1, clients, lanes))
    return np.asarray(np.exp(exponents))


def scenario_rates(scenario: Scenario, seed: int) -> FloatArray:
    """Return a scenario's rates; for a radio network, those of the slower direction at mean interference."""
    from fedlane.simulation.setup import prepare

    network = scenario.network
    if network.rates_mbps is not None:
        rates = np.array(network.rates_mbps, np.float64).reshape(-1, network.clients, network.channels)
    else:
        radio_network = prepare(scenario, [seed]).network
        if type(radio_network) is not RadioNetwork:
            raise InputError(
                f"the testbed's links do not change with time: {scenario.name} must have the paper's static network "
                'or network.model = "fixed"'
            )
        mean = math.sqrt(2.0 / math.pi)  # of |N(0, 1)|
        rates = np.minimum(
            rate_bps(network.bandwidth_up_hz, radio_network.snr_up, mean * radio_network.scale_up),
            rate_bps(
                network.bandwidth_down_hz,
                radio_network.snr_up * 10 ** ((network.power_down_dbm - network.power_up_dbm) / 10),
                mean * radio_network.scale_down,
            ),
        )
        rates = rates / 1e6
    return np.clip(rates, MIN_MBPS, MAX_MBPS)


def replay_trace(path: str, clients: int, lanes: int, rounds: int, seed: int) -> FloatArray:
    """Replay a measured trace: each pair starts at a random position and advances ten seconds per round."""
    series = read_trace(find_trace(path))
    steps = series[: len(series) // int(TRACE_STEP_S) * int(TRACE_STEP_S)].reshape(-1, int(TRACE_STEP_S)).mean(axis=1)
    if not len(steps):
        raise InputError(f"trace {path} is shorter than {TRACE_STEP_S:g} s")
    begin = generator(seed, "testbed-trace").integers(len(steps), size=(clients, lanes))
    rows = min(rounds, len(steps))  # after that, the rates repeat
    rates = steps[(begin + np.arange(rows)[:, None, None]) % len(steps)]
    return np.clip(rates, MIN_MBPS, MAX_MBPS)


def read_trace(path: Path) -> FloatArray:
    """Read the rate in each second, in Mbit/s.

    The file is in Mahimahi's format, or a CSV file with a column whose name ends in _mbps or _kbps; it may be
    compressed (.xz).
    """
    try:
        lines = read_lines(path)
        if lines[0].isdigit():  # Mahimahi: the millisecond of each packet
            second = np.array([int(line) for line in lines], np.int64) // 1000
            return np.asarray(np.bincount(second) * (PACKET_BITS / 1e6))
        return _parse_csv([line.split(",") for line in lines], path)
    except (ValueError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read the trace {path}: {error}") from error


def _parse_csv(rows: list[list[str]], path: Path) -> FloatArray:
    head = rows[0]
    scales = {"_mbps": 1.0, "_kbps": 1e-3}
    columns = [(i, scale) for unit, scale in scales.items() for i, name in enumerate(head) if name.endswith(unit)]
    if not columns:
        raise InputError(f"trace {path} has no column whose name ends in _mbps or _kbps, only {', '.join(head)}")
    column, scale = columns[0]
    value = np.array([float(row[column]) for row in rows[1:] if row[column]]) * scale
    if not len(value) or not np.isfinite(value).all() or value.min() < 0:
        raise InputError(f"rates in the trace {path} must be finite and at least 0")
    if "t_s" not in head:
        return value  # one row per second
    time_s = np.array([float(row[head.index("t_s")]) for row in rows[1:] if row[column]])
    # Where the time jumps back, another trip begins, which is appended to the previous one.
    offset_s = np.concatenate([[0.0], np.cumsum(np.where(np.diff(time_s) < 0, time_s[:-1] + 1.0, 0.0))])
    second = (time_s + offset_s).astype(np.int64)
    count = np.bincount(second)
    mean = np.bincount(second, value) / np.maximum(count, 1)
    return np.asarray(mean[count > 0])
