"""Urban cells of 3GPP TR 38.901 (version 16.1.0): line of sight, path loss and shadow fading.

The two scenarios are UMi (street canyon, stations below the roofs) and UMa (stations above the roofs), for 0.5 to
100 GHz. Formulas: Table 7.4.1-1 (path loss and shadow fading), Table 7.4.2-1 (probability of line of sight), Table
7.5-6 (correlation distance of the shadow fading), Table 7.6.3.1-2 (correlation distance of the line of sight). The
path loss holds from 10 m to 5 km; shorter distances are raised to 10 m.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlane.records import BoolArray, FloatArray
from fedlane.validate import InputError, unknown

LIGHT_M_S = 3.0e8
"""Propagation velocity in free space, as the report rounds it."""
MIN_DISTANCE_M = 10.0
CLIENT_HEIGHT_M = 1.5
_EFFECTIVE_HEIGHT_M = 1.0
"""Height of the effective environment, which the breakpoint distance subtracts from both heights."""


@dataclass(frozen=True)
class UrbanScenario:
    """The constants of a scenario.

    Attributes:
        name: "umi" or "uma".
        station_height_m: Height of a station's antenna in metres.
        intercept_db: Path loss at 1 m and 1 GHz with line of sight, in dB.
        slope_db: Path loss per decade of distance before the breakpoint, in dB.
        breakpoint_db: Coefficient of the breakpoint's term in the path loss beyond it, in dB.
        blocked: Path loss without line of sight: intercept, per decade of distance, per decade of frequency and per
            metre of the client's height, in dB.
        los_decay_m: Distance over which the probability of line of sight decays, in metres.
        shadowing_db: Standard deviation of the shadow fading with and without line of sight, in dB.
        shadowing_distance_m: Correlation distance of the shadow fading with and without line of sight, in metres.
        los_distance_m: Correlation distance of the state of line of sight, in metres.
        max_client_height_m: Largest height of a client that the formulas here cover, in metres.
    """

    name: str
    station_height_m: float
    intercept_db: float
    slope_db: float
    breakpoint_db: float
    blocked: tuple[float, float, float, float]
    los_decay_m: float
    shadowing_db: tuple[float, float]
    shadowing_distance_m: tuple[float, float]
    los_distance_m: float
    max_client_height_m: float


UMI = UrbanScenario("umi", 10.0, 32.4, 21.0, 9.5, (22.4, 35.3, 21.3, 0.3), 36.0, (4.0, 7.82), (10.0, 13.0), 50.0, 22.5)
UMA = UrbanScenario("uma", 25.0, 28.0, 22.0, 9.0, (13.54, 39.08, 20.0, 0.6), 63.0, (4.0, 6.0), (37.0, 50.0), 50.0, 13.0)
"""Above 13 m, UMa's effective height is random and its probability of line of sight has a further factor."""
SCENARIOS = {scenario.name: scenario for scenario in (UMI, UMA)}


def urban_scenario(name: str) -> UrbanScenario:
    """Return a scenario by its name, or raise InputError."""
    if name not in SCENARIOS:
        raise unknown("3GPP scenario", name, SCENARIOS)
    return SCENARIOS[name]


def check_link(scenario: UrbanScenario, carrier_hz: float, client_height_m: float = CLIENT_HEIGHT_M) -> None:
    """Raise InputError for a carrier or a height that the formulas do not cover."""
    if not 0.5e9 <= carrier_hz <= 100e9:
        raise InputError(f"network.carrier_hz must be between 5e8 and 1e11 for TR 38.901, got {carrier_hz:g}")
    if not 1.5 <= client_height_m <= scenario.max_client_height_m:
        bounds = f"between 1.5 and {scenario.max_client_height_m:g} m for {scenario.name}"
        raise InputError(f"network.client_height_m must be {bounds}, got {client_height_m:g}")


def los_probability(scenario: UrbanScenario, distance_2d_m: ArrayLike) -> FloatArray:
    """Return the probability of line of sight, for clients of at most 13 m height.

    It is 1 up to 18 m, and 18 / d + exp(-d / decay) (1 - 18 / d) beyond.

    Args:
        scenario: `UMI` or `UMA`.
        distance_2d_m: Horizontal distances in metres, any shape.
    """
    distance_m = np.maximum(np.asarray(distance_2d_m, np.float64), 18.0)
    return 18.0 / distance_m + np.exp(-distance_m / scenario.los_decay_m) * (1.0 - 18.0 / distance_m)


def distance_3d_m(
    scenario: UrbanScenario, distance_2d_m: ArrayLike, client_height_m: float = CLIENT_HEIGHT_M
) -> FloatArray:
    """Return the distance from the station's antenna in metres; horizontal distances are raised to 10 m."""
    return np.hypot(np.maximum(distance_2d_m, MIN_DISTANCE_M), scenario.station_height_m - client_height_m)


def breakpoint_m(scenario: UrbanScenario, carrier_hz: float, client_height_m: float = CLIENT_HEIGHT_M) -> float:
    """Return the breakpoint distance d'_BP = 4 (h_BS - h_E) (h_UT - h_E) f_c / c with h_E = 1 m, in metres."""
    heights = (scenario.station_height_m - _EFFECTIVE_HEIGHT_M) * (client_height_m - _EFFECTIVE_HEIGHT_M)
    return 4.0 * heights * carrier_hz / LIGHT_M_S


def path_loss_db(
    scenario: UrbanScenario,
    distance_2d_m: ArrayLike,
    line_of_sight: BoolArray,
    carrier_hz: float,
    client_height_m: float = CLIENT_HEIGHT_M,
) -> FloatArray:
    """Return the path loss in dB, without shadow fading.

    With line of sight there are two slopes, with the breakpoint distance between them; without, the loss is at least
    that with line of sight.

    Args:
        scenario: `UMI` or `UMA`.
        distance_2d_m: Horizontal distances in metres, any shape.
        line_of_sight: Whether there is line of sight, broadcast with the distances.
        carrier_hz: Carrier frequency in Hz.
        client_height_m: Height of the clients' antennas in metres.
    """
    horizontal_m = np.maximum(np.asarray(distance_2d_m, np.float64), MIN_DISTANCE_M)
    log_distance = np.log10(distance_3d_m(scenario, horizontal_m, client_height_m))
    log_ghz = np.log10(carrier_hz / 1e9)
    break_m = breakpoint_m(scenario, carrier_hz, client_height_m)
    square_m2 = break_m**2 + (scenario.station_height_m - client_height_m) ** 2
    near_db = scenario.slope_db * log_distance
    far_db = 40.0 * log_distance - scenario.breakpoint_db * np.log10(square_m2)
    clear_db = scenario.intercept_db + 20.0 * log_ghz + np.where(horizontal_m <= break_m, near_db, far_db)
    constant_db, per_distance, per_frequency, per_metre = scenario.blocked
    blocked_db = constant_db + per_distance * log_distance + per_frequency * log_ghz
    blocked_db -= per_metre * (client_height_m - 1.5)
    return np.where(line_of_sight, clear_db, np.maximum(clear_db, blocked_db))


def thermal_noise_dbm(bandwidth_hz: float, noise_figure_db: float) -> float:
    """Return the noise power of a receiver in dBm: -174 dBm/Hz times the bandwidth, plus its noise figure."""
    return -174.0 + 10.0 * float(np.log10(bandwidth_hz)) + noise_figure_db
