"""From a scenario and seeds to all that a run needs.

Partition -> mechanism -> label-histogram release -> theta -> quotas -> problem; and the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedlane.learning.architectures import architecture, parameter_count
from fedlane.learning.datasets import DatasetInfo, dataset_info
from fedlane.learning.partition import Partition, label_counts
from fedlane.network import Compute, FixedLinks, Network, Radio, RadioNetwork, Topology, place
from fedlane.privacy import make_mechanism, mechanism_of, released_histogram
from fedlane.records import FloatArray, IntArray, MechanismSpec, Problem
from fedlane.rng import generator
from fedlane.scenario import Scenario
from fedlane.theory import feasible_scale, quotas, theta

FEASIBILITY_SAMPLES = 2000
FEASIBILITY_PAIRS = 20_000
"""Networks with more client-channel pairs are not checked for feasibility: the linear program grows too large."""


@dataclass(frozen=True)
class Setup:
    """A run's world before its first round."""

    scenario: Scenario
    seeds: tuple[int, ...]
    label_counts: IntArray
    """(R, U, M)"""
    mechanism: MechanismSpec
    topology: Topology
    network: Network
    problem: Problem

    @property
    def air(self) -> Network:
        """The old name of ``network``."""
        return self.network

    def feasible_scale(self, quotas: FloatArray) -> FloatArray | None:
        """(R,): the multiple of ``quotas`` (R, U) that the best policy could serve; None on very large networks."""
        if self.problem.clients * self.problem.channels > FEASIBILITY_PAIRS:
            return None
        success = self.network.success_probability(FEASIBILITY_SAMPLES)
        return np.array([feasible_scale(p, beta) for p, beta in zip(success, quotas, strict=True)])


def prepare(scenario: Scenario, seeds: Sequence[int]) -> Setup:
    """Everything that follows from (scenario, seeds)."""
    network, learning = scenario.network, scenario.learning
    data = dataset_info(scenario.data.dataset)
    partition = Partition(scenario.data.partition, scenario.data.noniid_degree, scenario.data.imbalance)
    counts = np.stack([label_counts(partition, data.class_totals, network.clients, seed) for seed in seeds])
    sizes = counts.sum(axis=2).astype(np.float64)

    if ":" not in learning.model:
        architecture(learning.model, data.input_shape, data.classes)  # refuses a mistyped name
    payload_bits, dimension = network.payload_bits, None
    if payload_bits == "model" or scenario.privacy.theta_noise == "sqrt_d":
        weights = _model_size(learning.model, data)
        payload_bits = 32.0 * weights if payload_bits == "model" else payload_bits
        dimension = weights if scenario.privacy.theta_noise == "sqrt_d" else None

    mechanism = make_mechanism(
        scenario.privacy.mechanism,
        scenario.epsilon,
        scenario.per_client(scenario.privacy.delta),
        counts.sum(axis=2),
        clip_norm=learning.clip_norm,
        batch_size=scenario.per_client(learning.batch_size).astype(np.int64),
        local_iterations=learning.local_iterations,
        max_uploads=scenario.max_uploads,
        histogram_noise=scenario.privacy.histogram_noise,
        least_noise=scenario.privacy.least_noise,
    )
    divergence = theta(
        _label_shares(counts, mechanism, seeds),
        sizes,
        mechanism.epsilon,
        scenario.per_client(scenario.privacy.delta),
        local_iterations=learning.local_iterations,
        batch_size=scenario.per_client(learning.batch_size),
        dimension=dimension,
        noise=mechanism_of(mechanism.name).divergence_noise(mechanism),
    )
    topology = place(seeds, network.clients, network.channels, network.area_m)
    compute = _compute(scenario, sizes)
    return Setup(
        scenario=scenario,
        seeds=tuple(seeds),
        label_counts=counts,
        mechanism=mechanism,
        topology=topology,
        network=_network(scenario, seeds, topology, compute, payload_bits),
        problem=Problem(
            clients=network.clients,
            channels=network.channels,
            rounds=scenario.rounds,
            deadline_s=network.deadline_s,
            quotas=quotas(divergence, network.channels),
        ),
    )


def _compute(scenario: Scenario, sizes: FloatArray) -> Compute:
    """Measured seconds where the scenario has them, cycles over frequency elsewhere."""
    compute = scenario.compute
    if compute.seconds is not None:
        return Compute.fixed(np.broadcast_to(scenario.per_client(compute.seconds), sizes.shape).copy())
    return Compute.of(
        sizes,
        scenario.per_client(compute.cycles_per_sample),
        scenario.learning.local_iterations,
        compute.frequency_low_hz,
        compute.frequency_high_hz,
    )


def _network(
    scenario: Scenario, seeds: Sequence[int], topology: Topology, compute: Compute, payload_bits: float
) -> Network:
    """Links of known rates where the scenario has them, the radio elsewhere."""
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
    radio = Radio(
        bandwidth_up_hz=network.bandwidth_up_hz,
        bandwidth_down_hz=network.bandwidth_down_hz,
        power_up_dbm=network.power_up_dbm,
        power_down_dbm=network.power_down_dbm,
        noise_dbm=network.noise_dbm,
        path_loss_db=network.path_loss_db,
        path_loss_slope_db=network.path_loss_slope_db,
        min_distance_m=network.min_distance_m,
        rayleigh=network.fading == "rayleigh",
        interference_db=network.interference_db,
        payload_bits=payload_bits,
    )
    return RadioNetwork(seeds, topology, radio, compute, network.deadline_s)


def _label_shares(counts: IntArray, mechanism: MechanismSpec, seeds: Sequence[int]) -> FloatArray:
    """(R, U, M): the label distributions that the server sees: as they are, or released with noise."""
    if not mechanism.histogram_noise:
        return np.asarray(counts / counts.sum(axis=2, keepdims=True))
    normals = np.stack([generator(seed, "label-release").standard_normal(counts.shape[1:]) for seed in seeds])
    return released_histogram(counts, mechanism.histogram_noise, normals)


def _model_size(name: str, data: DatasetInfo) -> int:
    """Weights of a built-in model by its layers, of anybody's own by making it."""
    if ":" not in name:
        return parameter_count(name, data.input_shape, data.classes)
    from fedlane.learning.models import make_model

    return make_model(name, data.input_shape, data.classes).size
