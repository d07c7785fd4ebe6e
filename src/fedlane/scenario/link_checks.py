"""Which keys of [network] go together: a key without effect is refused, so that nobody relies on it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlane.scenario.sections import NetworkSettings

RADIO = ("paper", "3gpp", "city")
"""Models whose links are computed from positions, and may change with time."""


def check_links(network: "NetworkSettings") -> None:
    """Raise ValueError, with the key first, for keys that contradict each other or have no effect."""
    low, high = network.speed_m_s
    if low > high:
        raise ValueError(f"speed_m_s must be [low, high] with low at most high, got [{low:g}, {high:g}]")
    for key, model in (("rates_mbps", "fixed"), ("trace", "trace"), ("map", "city")):
        given = getattr(network, key) is not None
        if given and network.model != model:
            raise ValueError(f'{key} needs model = "{model}", got "{network.model}"')
        if network.model == model and not given:
            raise ValueError(f'model "{model}" needs {key}')
    for key, models in _EFFECTIVE.items():
        default = type(network).model_fields[key].default
        if network.model not in models and getattr(network, key) != default:
            known = " or ".join(f'"{model}"' for model in models)
            raise ValueError(f'{key} has no effect with model "{network.model}": it needs {known}')
    if network.mobility == "static" and network.speed_m_s != type(network).model_fields["speed_m_s"].default:
        moving = "streets" if network.model == "city" else "waypoint"
        raise ValueError(f'speed_m_s has no effect with mobility "static": set mobility = "{moving}"')
    if network.mobility != "static" and (network.mobility == "streets") != (network.model == "city"):
        needed = '"city"' if network.mobility == "streets" else '"paper" or "3gpp"'
        raise ValueError(f'mobility "{network.mobility}" needs model {needed}, got "{network.model}"')
    if network.model != "3gpp" and network.shadowing_distance_m is not None and not network.shadowing_db:
        raise ValueError("shadowing_distance_m has no effect without shadowing_db")
    if network.model == "3gpp" and not 5e8 <= network.carrier_hz <= 1e11:
        raise ValueError(f'carrier_hz must be between 5e8 and 1e11 for model "3gpp", got {network.carrier_hz:g}')


_EFFECTIVE = {
    **dict.fromkeys(("mobility", "shadowing_db", "shadowing_distance_m", "drift_s"), RADIO),
    "uplink_share": ("trace",),
    "cell": ("3gpp",),
    "area_m": ("paper", "3gpp", "trace", "fixed"),  # a city map has its own size
    "fading": (*RADIO, "fixed"),  # scenarios with rates_mbps may have had it
}
"""Key -> models in which it has an effect."""
