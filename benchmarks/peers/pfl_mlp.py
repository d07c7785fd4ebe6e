"""pfl on the paper's MLP task: 4 of 10 clients per round, 5 local steps of 64 samples, no per-sample clipping.

The second argument chooses pfl's privacy: ``none``, ``local`` (every client's update is clipped and gets Gaussian
noise) or ``central`` (every update is clipped, and their sum gets the noise).

Run by `fedlane bench peers` in a separate environment, because pfl pins an older dp-accounting.
Prints seconds per round.
"""

import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

CLIENTS, COHORT, STEPS, BATCH = 10, 4, 5, 64


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> dict:
        return {}


def postprocessors(privacy: str) -> list:
    mechanism = GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=1.0)
    central = CentrallyAppliedPrivacyMechanism(mechanism)
    return {"none": [], "local": [mechanism], "central": [central]}[privacy]


def main(rounds: int, privacy: str) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.random((60_000, 784), dtype=np.float32))
    labels = torch.from_numpy(rng.integers(10, size=60_000))

    data = [
        Dataset(raw_data=[images[u * 6000 : (u + 1) * 6000], labels[u * 6000 : (u + 1) * 6000]], user_id=str(u))
        for u in range(CLIENTS)
    ]
    users = FederatedDataset(lambda user: data[int(user)], get_user_sampler("random", [str(u) for u in range(CLIENTS)]))
    module = Mlp()
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    backend = SimulatedBackend(training_data=users, val_data=None, postprocessors=postprocessors(privacy))
    stamps: list[float] = []

    class Clock(TrainingProcessCallback):
        """Records the end of every central iteration."""

        def after_central_iteration(self, metrics, model, *, central_iteration):
            stamps.append(time.perf_counter())
            return False, Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None, local_num_steps=STEPS, local_learning_rate=0.1, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
    )
    print(f"seconds_per_round {np.median(np.diff(stamps[5:])):.6f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2] if len(sys.argv) > 2 else "none")
