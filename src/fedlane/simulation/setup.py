"""Preparation of a run from a scenario and seeds.

Partition -> mechanism -> label-histogram release -> theta -> quotas -> problem, and the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from fedlane.learning.architectures import parameter_count
from fedlane.learning.datasets import DatasetInfo, dataset_info
from fedlane.learning.optimization import ADAPTIVE_RATE, Optimization
from fedlane.learning.own_data import runs_user_code
from fedlane.learning.partition import Partition, check_learnable, label_counts, natural_counts
from fedlane.network import Network, Topology
from fedlane.network.availability import AlwaysPresent, Availability
from fedlane.network.energy import EnergyModel
from fedlane.privacy import delta_remark, mechanism_of, released_histogram
from fedlane.privacy.mechanism import draft_mechanism
from fedlane.records import FloatArray, IntArray, MechanismSpec, Problem
from fedlane.rng import generator
from fedlane.scenario import Scenario
from fedlane.scenario.sections import LearningSettings
from fedlane.simulation.world import make_availability, make_compute, make_energy, make_network, make_places
from fedlane.theory import feasible_scale, quotas, theta
from fedlane.validate import InputError

if TYPE_CHECKING:  # only runs that learn load PyTorch
    from fedlane.learning.schedule import LearningTask

FEASIBILITY_SAMPLES = 2000
"""Samples per pair in the estimate of its success probability."""
FEASIBILITY_PAIRS = 20_000
"""Networks with more client-channel pairs are not checked for feasibility, because the linear program is too large."""


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs before its first round: R replicas, U clients, M classes.

    Attributes:
        scenario: The scenario.
        seeds: One seed per replica.
        label_counts: (R, U, M): number of each client's records in each class.
        mechanism: The privacy mechanism.
        topology: Positions of clients and channels.
        network: The network, which determines the delays.
        problem: What policies know: sizes, deadline and quotas.
        availability: Who is there at any instant.
        energy: Constants of a client's energy.
    """

    scenario: Scenario
    seeds: tuple[int, ...]
    label_counts: IntArray
    mechanism: MechanismSpec
    topology: Topology
    network: Network
    problem: Problem
    availability: Availability
    energy: EnergyModel

    @property
    def air(self) -> Network:
        """The old name of ``network``."""
        return self.network

    @property
    def delta_remark(self) -> str | None:
        """One line if a calibrated budget has a delta that is not below 1/|D|; else None."""
        if not mechanism_of(self.mechanism.name).is_calibrated:
            return None
        return delta_remark(self.mechanism.delta, self.label_counts.sum(axis=2))

    @property
    def stationary(self) -> bool:
        """Whether all rounds have the same delay distributions, and every client is always there."""
        return self.always_present and self.network.stationary

    @property
    def always_present(self) -> bool:
        """Whether every client is there in every round: none comes and goes, and none has a battery."""
        return isinstance(self.availability, AlwaysPresent) and self.energy.battery_j is None

    def feasible_scale(self, quotas: FloatArray) -> FloatArray | None:
        """The largest multiple of the quotas that any policy can serve.

        Args:
            quotas: (R, U): share of rounds in which each client should participate.

        Returns:
            (R,); None on networks with more than `FEASIBILITY_PAIRS` client-channel pairs, and in worlds that are not
            stationary: a policy that follows their changes may serve more than their averages suggest.
        """
        if self.problem.clients * self.problem.channels > FEASIBILITY_PAIRS or not self.stationary:
            return None
        success = self.network.success_probability(FEASIBILITY_SAMPLES)
        return np.array([feasible_scale(p, beta) for p, beta in zip(success, quotas, strict=True)])


def prepare(scenario: Scenario, seeds: Sequence[int]) -> Setup:
    """Prepare a run.

    Args:
        scenario: The scenario.
        seeds: One seed per replica. A replica depends on its own seed only.

    Raises:
        InputError: If the scenario names an unknown model or a trace that cannot be read, or if its epsilon allows less
            noise than `privacy.least_noise`.
    """
    network, privacy = scenario.network, scenario.privacy
    data = dataset_info(scenario.data.dataset)
    counts = _label_counts(scenario, seeds)
    sizes = counts.sum(axis=2).astype(np.float64)
    weights = _model_size(scenario, data)
    mechanism = _mechanism(scenario, counts.sum(axis=2))
    divergence = theta(
        _label_shares(counts, mechanism, seeds),
        sizes,
        mechanism.epsilon,
        scenario.per_client(privacy.delta),
        local_iterations=scenario.learning.local_iterations,
        batch_size=scenario.per_client(scenario.learning.batch_size),
        dimension=weights if privacy.theta_noise == "sqrt_d" else None,
        noise=mechanism_of(mechanism.name).divergence_noise(mechanism),
    )
    topology, compute = make_places(scenario, seeds), make_compute(scenario, seeds, sizes, weights)
    payload_bits = network.bits_per_weight * weights if network.payload_bits == "model" else network.payload_bits
    return Setup(
        scenario=scenario,
        seeds=tuple(seeds),
        label_counts=counts,
        mechanism=mechanism,
        topology=topology,
        network=make_network(scenario, seeds, topology, compute, payload_bits),
        problem=Problem(
            clients=network.clients,
            channels=network.channels,
            rounds=scenario.rounds,
            deadline_s=network.deadline_s,
            quotas=quotas(divergence, network.channels),
            sizes=sizes,
        ),
        availability=make_availability(scenario, seeds),
        energy=make_energy(scenario),
    )


def _partition(scenario: Scenario) -> Partition:
    """How the scenario divides its data set."""
    data = scenario.data
    samples = None if data.samples_per_client == "all" else data.samples_per_client
    return Partition(data.partition, data.noniid_degree, data.imbalance, samples)


def _label_counts(scenario: Scenario, seeds: Sequence[int]) -> IntArray:
    """(R, U, M): number of each client's records in each class."""
    partition, data = _partition(scenario), dataset_info(scenario.data.dataset)
    clients = scenario.network.clients
    if partition.kind == "natural":
        return np.stack([natural_counts(data.natural, clients, seed) for seed in seeds])
    return np.stack([label_counts(partition, data.class_totals, clients, seed) for seed in seeds])


def _mechanism(scenario: Scenario, sizes: IntArray) -> MechanismSpec:
    """The scenario's privacy mechanism for clients with ``sizes`` (R, U) records."""
    draft = _draft(scenario, sizes)
    return mechanism_of(draft.name).completed(draft, sizes, scenario.privacy.least_noise)


def uncalibrated_mechanism(scenario: Scenario, seeds: Sequence[int]) -> MechanismSpec:
    """Return the mechanism that a run has, without the noise that would have to be calibrated.

    Where a function returns the data set, it is not called, and every client counts one record.

    Args:
        scenario: The scenario.
        seeds: One seed per replica.
    """
    shape = len(seeds), scenario.network.clients
    foreign = runs_user_code(scenario.data.dataset)  # of a folder that a stranger may have made
    sizes = np.ones(shape, np.int64) if foreign else _label_counts(scenario, seeds).sum(axis=2)
    draft = _draft(scenario, sizes)
    return mechanism_of(draft.name).uncalibrated(draft, sizes)


def _draft(scenario: Scenario, sizes: IntArray) -> MechanismSpec:
    """The scenario's privacy mechanism without its noise."""
    learning, privacy = scenario.learning, scenario.privacy
    return draft_mechanism(
        privacy.mechanism,
        scenario.epsilon,
        scenario.per_client(privacy.delta),
        sizes,
        clip_norm=learning.clip_norm,
        batch_size=scenario.per_client(learning.batch_size).astype(np.int64),
        local_iterations=learning.local_iterations,
        max_uploads=scenario.max_uploads,
        histogram_noise=privacy.histogram_noise,
    )


def _label_shares(counts: IntArray, mechanism: MechanismSpec, seeds: Sequence[int]) -> FloatArray:
    """(R, U, M): the label distributions as the server sees them, including the noise of their release, if any."""
    if not mechanism.histogram_noise:
        return np.asarray(counts / counts.sum(axis=2, keepdims=True))
    normals = np.stack([generator(seed, "label-release").standard_normal(counts.shape[1:]) for seed in seeds])
    return released_histogram(counts, mechanism.histogram_noise, normals)


def _model_size(scenario: Scenario, data: DatasetInfo) -> int:
    """Number of the model's weights; 0 for a user's model whose size is not needed, which is then not loaded."""
    name = scenario.learning.model
    if ":" not in name:
        return parameter_count(name, data.input_shape, data.outputs, data.tokens)  # InputError for an unknown name
    by_size = scenario.network.payload_bits == "model" or scenario.compute.model == "devices"
    if not by_size and scenario.privacy.theta_noise != "sqrt_d":
        return 0
    from fedlane.learning.models import dataset_model

    private = mechanism_of(scenario.privacy.mechanism).has_ledger
    return dataset_model(name, data, per_record=private).size


def own_data_digest(name: str) -> dict[str, str] | None:
    """Return name and SHA-256 of a user's data set, as a run folder records them; None for a built-in one."""
    digest = dataset_info(name).digest
    return {"dataset": name, "sha256": digest} if digest else None


def learning_task(setup: Setup) -> "LearningTask":
    """Return the learning part of a scenario as plain values, usable without the scenario.

    Raises:
        InputError: If there are more clients than training samples.
    """
    from fedlane.learning.schedule import LearningTask

    data = dataset_info(setup.scenario.data.dataset)
    check_learnable(data.class_totals, setup.problem.clients)
    learning = setup.scenario.learning
    if data.objective.kind == "values" and learning.target_accuracy is not None:
        raise InputError(f"learning.target_accuracy needs classes, but data set '{data.name}' has float targets")
    return LearningTask(
        dataset=setup.scenario.data.dataset,
        model=learning.model,
        learning_rate=learning.learning_rate,
        evaluate_every=learning.evaluate_every,
        mechanism=setup.mechanism,
        label_counts=setup.label_counts,
        seeds=np.array(setup.seeds),
        optimization=_optimization(learning, setup.problem.rounds),
        digest=data.digest,
        natural=setup.scenario.data.partition == "natural",
    )


def _optimization(learning: LearningSettings, rounds: int) -> Optimization:
    """Return the optimisers, aggregation and learning-rate schedule of a run, with the server's default rate."""
    rate = learning.server_learning_rate
    if rate is None:
        rate = ADAPTIVE_RATE if learning.server_optimizer in ("adam", "yogi") else 1.0
    names = {field.name for field in fields(Optimization)} - {"rounds", "server_learning_rate"}
    return Optimization(rounds=rounds, server_learning_rate=rate, **{name: getattr(learning, name) for name in names})
