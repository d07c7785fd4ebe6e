"""The audit of clipping: a search for weights under which a record contributes more than the clip norm C.

Both ways of training are attacked: `train_strictly`, which real clients use, and `train_locally`, which simulations
use. So are the clipped losses that clients report to policies that require them.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedlane.learning.adversary import (
    ClippedSumOf,
    RecordLossesOf,
    batched_sum_on,
    hostile_records,
    largest_contribution,
    largest_loss,
    strict_sum,
)
from fedlane.learning.clipping import clipping_slack
from fedlane.learning.datasets import DATASETS, dataset_info
from fedlane.learning.federation import torch_device
from fedlane.learning.loss_reports import record_losses
from fedlane.learning.models import dataset_model
from fedlane.learning.module_checks import stored_shape

CLIMBS = 20
LOSS_SLACK = 1e-12
"""Rounding error of a contribution's norm in float64."""
LARGE_MODEL = 200_000
"""Models with more weights are attacked with the structured weights alone, which takes a few seconds."""


@dataclass(frozen=True)
class ClippingResult:
    """The worst case that a search over the server's weights has seen.

    Attributes:
        model: Name of the attacked model.
        tried: Number of weight vectors that were evaluated, for both ways of training.
        real: Largest contribution of a record to a real client's sum, in multiples of C. The limit is 1.
        simulated: Largest contribution of a record to a simulated client's sum, in multiples of C.
        simulated_limit: Limit of ``simulated``: 1 and the derived rounding error.
        losses: Largest contribution of a record to released loss sums, in multiples of its bound. The limit is 1.
    """

    model: str
    tried: int
    real: float
    simulated: float
    simulated_limit: float
    losses: float

    @property
    def flagged(self) -> bool:
        """Whether a contribution exceeds its limit."""
        return self.real > 1.0 or self.simulated > self.simulated_limit or self.losses > 1.0 + LOSS_SLACK

    def report(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON; None for a contribution that was not finite."""
        values = {**asdict(self), "flagged": self.flagged}
        return {key: None if value == math.inf else value for key, value in values.items()}


def audit_clipping(
    model_name: str = "mlp",
    dataset: str = "fashion-mnist-mini",
    *,
    seed: int = 0,
    strict: ClippedSumOf = strict_sum,
    batched: ClippedSumOf | None = None,
    device: str = "cpu",
    losses: RecordLossesOf = record_losses,
) -> ClippingResult:
    """Search for weights under which clipping fails.

    Args:
        model_name: Name of a built-in model.
        dataset: Name of the data set whose shapes the model has.
        seed: Seed of the search.
        strict: Sum of a real client.
        batched: Sum of a simulated client; None for that of the device.
        device: Device of the simulated client, `cpu` or `cuda`.
        losses: Clipped losses of records.
    """
    info = DATASETS.get(dataset) or dataset_info(dataset)  # shapes are enough, so no file is read
    model = dataset_model(model_name, info)
    x, targets = hostile_records(stored_shape(info.input_shape), info.classes, copies=1, tokens=info.tokens)
    climbs = 0 if model.size > LARGE_MODEL else CLIMBS
    batched = batched or batched_sum_on(torch_device(device))
    real, simulated = (
        largest_contribution(path, model, x[-1:], targets[-1:], 1.0, climbs, seed) for path in (strict, batched)
    )
    return ClippingResult(
        model=model_name,
        tried=real.tried + simulated.tried,
        real=real.ratio,
        simulated=simulated.ratio,
        simulated_limit=1.0 + clipping_slack(model, 1, "float32" if device == "cpu" else "tf32"),
        losses=largest_loss(losses, model, x, targets, 1.0, seed),
    )
