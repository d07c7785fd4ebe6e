"""The simulated world: who is present, what ordered clients do, and how it is made from a scenario."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedlane.city_map import CityMap
from fedlane.learning.architectures import multiply_adds
from fedlane.learning.datasets import dataset_info
from fedlane.network import (
    CellNetwork,
    CellSettings,
    Compute,
    ComputeTimes,
    FixedLinks,
    Network,
    Radio,
    RadioNetwork,
    Topology,
    TraceNetwork,
    place,
)
from fedlane.network.availability import AlwaysPresent, Availability, MarkovAvailability
from fedlane.network.energy import EnergyModel
from fedlane.network.link_rate import UPLOAD_FAILURE_PROBABILITY
from fedlane.network.phones import Phones, TrainingWork
from fedlane.network.presence_traces import RecordedAvailability, load_presence
from fedlane.network.streets import place_in_city
from fedlane.network.trace_formats import load_traces
from fedlane.records import BoolArray, Delays, FloatArray
from fedlane.rounds import Arrivals, Orders, Rounds
from fedlane.scenario import Scenario
from fedlane.scenario.sections import NetworkSettings
from fedlane.validate import InputError, printable

if TYPE_CHECKING:
    from fedlane.simulation.setup import Setup


class SimulatedWorld:
    """The clients of a run: their presence, links, computing times, batteries.

    Args:
        setup: The prepared run.
    """

    def __init__(self, setup: "Setup") -> None:
        self.network, self._availability, self._energy = setup.network, setup.availability, setup.energy
        self._power_up_dbm = setup.scenario.network.power_up_dbm

    def present(self, rounds: Rounds) -> BoolArray:
        """Return who is present (R, U): a client is absent if its battery is empty."""
        present = self._availability.present(rounds.clock_s)
        return present if self._energy.battery_j is None else present & (rounds.spent_j < self._energy.battery_j)

    def attempt(self, rounds: Rounds, orders: Orders) -> Arrivals:
        """Return what the ordered clients do in a round that begins now."""
        clock_s, deadline_s = rounds.clock_s, self.network.deadline_s
        delays = self.network.delays(rounds.round, clock_s, orders.channel)
        end_s = np.where(orders.given, clock_s[:, None] + np.fmin(delays.total_s, deadline_s), np.nan)
        left = self._availability.leaves(clock_s, end_s)
        parts = (delays.download_s, delays.compute_s, delays.upload_s)
        known = (np.where(left | ~np.isfinite(part), np.nan, part) for part in parts)
        energy_j = attempt_energy_j(self._energy, self.network.compute, self._power_up_dbm, delays, deadline_s)
        return Arrivals(Delays(*known), ~left, np.where(orders.given, energy_j, 0.0))


def changes_with_time(scenario: Scenario) -> bool:
    """Whether the scenario's links are those of a `CellNetwork`: cells whose state follows the simulated time."""
    network = scenario.network
    slow = network.mobility != "static" or bool(network.shadowing_db) or network.drift_s > 0
    return network.model in ("3gpp", "city") or (network.model == "paper" and slow)


def make_places(scenario: Scenario, seeds: Sequence[int]) -> Topology:
    """Return the positions of channels, and of clients at the beginning."""
    network = scenario.network
    cell = _cell(scenario)
    if cell.city is None:
        topology = place(seeds, network.clients, network.channels, network.area_m)
    else:
        topology = place_in_city(seeds, network.clients, network.channels, cell.city)
    mobility = cell.mobility(seeds, topology.client_xy_m)
    return Topology(mobility.position_m(np.zeros(len(seeds))), topology.channel_xy_m)


def make_compute(scenario: Scenario, seeds: Sequence[int], sizes: FloatArray, weights: int) -> ComputeTimes:
    """Return the computing times: on phones, as measured, or cycles divided by frequency.

    Args:
        scenario: The scenario.
        seeds: R seeds, one per replica.
        sizes: (R, U) training samples of each client.
        weights: Number of the model's weights.
    """
    compute, learning = scenario.compute, scenario.learning
    if compute.model == "devices":
        data = dataset_info(scenario.data.dataset)
        built_in = ":" not in learning.model  # a user's model is taken for one of dense layers
        work = multiply_adds(learning.model, data.input_shape, data.outputs, data.tokens) if built_in else weights
        batch = float(np.max(learning.batch_size))
        training = TrainingWork(weights, work, batch, learning.local_iterations)
        return Phones(seeds, scenario.network.clients, training)
    if compute.seconds is not None:
        return Compute.fixed(np.broadcast_to(scenario.per_client(compute.seconds), sizes.shape).copy())
    return Compute.of(
        sizes,
        scenario.per_client(compute.cycles_per_sample),
        learning.local_iterations,
        compute.frequency_low_hz,
        compute.frequency_high_hz,
    )


def make_network(
    scenario: Scenario, seeds: Sequence[int], topology: Topology, compute: ComputeTimes, payload_bits: float
) -> Network:
    """Return the links of the scenario's `network.model`."""
    network = scenario.network
    if network.rates_mbps is not None:
        floor = network.floor_s
        return FixedLinks(
            seeds,
            1e6 * np.array(network.rates_mbps, np.float64).reshape(-1, network.clients, network.channels),
            payload_bits,
            floor if isinstance(floor, tuple) else (floor, floor),
            compute,
            network.deadline_s,
        )
    if network.trace is not None:
        sizes, traces = (network.clients, network.channels), load_traces(network.trace)
        return TraceNetwork(seeds, sizes, traces, network.uplink_share, payload_bits, compute, network.deadline_s)
    radio = Radio(
        bandwidth_up_hz=network.bandwidth_up_hz,
        bandwidth_down_hz=network.bandwidth_down_hz,
        power_up_dbm=network.power_up_dbm,
        power_down_dbm=network.power_down_dbm,
        noise_dbm=network.noise_dbm,
        path_loss_db=network.path_loss_db,
        path_loss_slope_db=network.path_loss_slope_db,
        min_distance_m=network.min_distance_m,
        rayleigh=network.fading == "rayleigh" and not changes_with_time(scenario),
        interference_db=network.interference_db,
        payload_bits=payload_bits,
    )
    if changes_with_time(scenario):
        return CellNetwork(seeds, topology, radio, compute, network.deadline_s, _cell(scenario))
    return RadioNetwork(seeds, topology, radio, compute, network.deadline_s)


def _cell(scenario: Scenario) -> CellSettings:
    """Return what changes with time in the scenario's cell."""
    network = scenario.network
    urban = network.cell if network.model == "3gpp" else None
    city = None if network.map is None else _fitting_map(network)
    return CellSettings(
        area_m=network.area_m,
        horizon_s=scenario.rounds * network.deadline_s,
        speed_m_s=None if network.mobility == "static" else network.speed_m_s,
        urban=urban,
        city=city,
        carrier_hz=network.carrier_hz,
        shadowing_db=network.shadowing_db,
        shadowing_distance_m=network.shadowing_distance_m,
        fading=network.fading == "rayleigh",
        drift_s=network.drift_s,
        upload_failure=UPLOAD_FAILURE_PROBABILITY if urban or city else 0.0,
    )


def _fitting_map(network: NetworkSettings) -> CityMap:
    """Return the map of a city; one that does not fit the scenario's carrier or channels is refused."""
    city = CityMap.load(network.map or "")
    if city.carrier_hz not in (None, network.carrier_hz):
        raise InputError(
            f"network.carrier_hz must be {city.carrier_hz:g}, the carrier of the city map {printable(city.name)}, "
            f"got {network.carrier_hz:g}"
        )
    if network.channels < city.stations:
        raise InputError(
            f"network.channels must be at least {city.stations}, one for each station of the city map "
            f"{printable(city.name)}, got {network.channels}"
        )
    return city


def make_availability(scenario: Scenario, seeds: Sequence[int]) -> Availability:
    """Return who is there at any instant."""
    settings, clients = scenario.availability, scenario.network.clients
    if settings.model == "markov":
        return MarkovAvailability(seeds, clients, settings.mean_on_s, settings.mean_off_s)
    if settings.trace is not None:
        return RecordedAvailability(seeds, clients, load_presence(settings.trace))
    return AlwaysPresent(len(seeds), clients)


def make_energy(scenario: Scenario) -> EnergyModel:
    """Return the constants of a client's energy."""
    energy = scenario.energy
    return EnergyModel(energy.kappa, energy.efficiency, energy.idle_w, energy.battery_j, energy.device_w)


def attempt_energy_j(
    model: EnergyModel, compute: ComputeTimes, power_up_dbm: float, delays: Delays, deadline_s: float
) -> FloatArray:
    """Return the energy of attempts (R, U) in joules: late and failed ones count until the deadline, which ends them.

    Args:
        model: The constants.
        compute: The network's `ComputeTimes`.
        power_up_dbm: Radiated power of a client in dBm.
        delays: What each client would need, infinite for a transfer that never ends.
        deadline_s: The deadline in seconds.
    """
    download_s = np.minimum(delays.download_s, deadline_s)
    compute_s = np.minimum(delays.compute_s, deadline_s - download_s)
    upload_s = np.minimum(delays.upload_s, deadline_s - download_s - compute_s)
    share = compute_s / delays.compute_s  # of the computation that was done
    compute_j = share * compute.energy_j(model, delays.compute_s)
    return model.round_energy_j(compute_j, power_up_dbm, download_s, upload_s)
