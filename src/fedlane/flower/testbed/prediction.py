"""Predict a testbed's runs by simulation: the same links, plus the delays that a calibration measured."""

from pathlib import Path

from fedlane.flower.testbed.app import perceptron
from fedlane.flower.testbed.app.client_app import BATCH_SIZE, DATASET, ITERATIONS, LEARNING_RATE, PARTITION
from fedlane.flower.testbed.calibration import Calibration
from fedlane.flower.testbed.spec import TestbedSpec
from fedlane.scenario import Scenario
from fedlane.simulation.run import Simulation


def prediction_scenario(spec: TestbedSpec, calibration: Calibration | None) -> Scenario:
    """Return the scenario that describes a testbed; without a calibration, delays are those of the links alone."""
    rates = spec.rates_mbps
    return Scenario.from_values(
        {
            "name": "testbed",
            "rounds": spec.rounds,
            "network": {
                "clients": spec.clients,
                "channels": spec.lanes,
                "deadline_s": spec.deadline_s,
                "payload_bits": 8.0 * perceptron.size_bytes(spec.payload_bytes),
                "rates_mbps": rates[0] if len(rates) == 1 else rates,
                "floor_s": calibration.floor_s if calibration else 0.0,
            },
            "compute": {"seconds": max(calibration.compute_s, 1e-6)} if calibration else {},
            "data": {
                "dataset": DATASET,
                "partition": PARTITION.kind,
                "noniid_degree": PARTITION.degree,
                "imbalance": PARTITION.imbalance,
            },
            "learning": {
                "batch_size": BATCH_SIZE,
                "local_iterations": ITERATIONS,
                "learning_rate": LEARNING_RATE,
            },
            "privacy": {"mechanism": "none"},
        }
    )


def predict_total_s(scenario: Path, policy: str, seed: int, calibration: Calibration) -> float:
    """Return the simulated wall-clock time of a whole run, including the time between rounds."""
    simulation = Simulation(Scenario.load(scenario), policy, [seed], learning=False)
    simulation.play()
    return float(simulation.trace.delay_s.sum()) + calibration.between_s * simulation.round
