"""Settings of the optimisers: local steps, the server's step, aggregation and the learning-rate schedule."""

import math
from dataclasses import dataclass

from fedlane.validate import InputError, at_least, positive, unknown

SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi")
AGGREGATIONS = ("size", "unbiased")
RATE_SCHEDULES = ("constant", "inverse_sqrt", "cosine")
ADAPTIVE_RATE = 0.01
"""Default learning rate of the server for "adam" and "yogi", whose steps do not scale with the update; else 1."""
LARGEST_RATE = 1e12


@dataclass(frozen=True)
class LocalOptimizer:
    """What a client adds to plain SGD in its local steps.

    Attributes:
        momentum: Share of the previous step that a step repeats, in [0, 1); every upload starts without a step.
        proximal: Strength mu of FedProx's term (mu / 2) |w - w_global|^2.
    """

    momentum: float = 0.0
    proximal: float = 0.0

    def first_step_weight(self, learning_rate: float, steps: int) -> float:
        """Return the smallest weight, at most 1, with which the gradient of any of ``steps`` steps enters an upload.

        Momentum repeats a step, so a gradient's weight is at least 1; the proximal term pulls earlier steps back.
        """
        if self.proximal == 0:
            return 1.0
        if self.momentum == 0:
            return float((1 - learning_rate * self.proximal) ** (steps - 1))
        position = velocity = smallest = 1.0
        for _ in range(steps - 1):
            velocity = self.momentum * velocity - learning_rate * self.proximal * position
            position += velocity
            smallest = min(smallest, position)
        return smallest


@dataclass(frozen=True)
class Optimization:
    """How models are optimised, as plain values; the defaults are the paper's federated averaging.

    Attributes:
        server_optimizer: "sgd", "momentum", "adam" or "yogi".
        server_learning_rate: The server's learning rate; 1 with "sgd" replaces the model by the average.
        server_momentum: Momentum of the server, beta_1.
        server_decay: Decay of the mean squared update of "adam" and "yogi", beta_2.
        server_adaptivity: Constant in the denominator of "adam" and "yogi", tau.
        momentum: Momentum of the local steps.
        proximal: Strength mu of FedProx's term in the local steps.
        aggregation: "size" or "unbiased".
        learning_rate_schedule: "constant", "inverse_sqrt" or "cosine".
        rounds: Rounds of the whole run, T; "cosine" reaches 0 after them.
    """

    server_optimizer: str = "sgd"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.9
    server_decay: float = 0.99
    server_adaptivity: float = 1e-3
    momentum: float = 0.0
    proximal: float = 0.0
    aggregation: str = "size"
    learning_rate_schedule: str = "constant"
    rounds: int = 1

    def __post_init__(self) -> None:
        choices = (
            ("server_optimizer", SERVER_OPTIMIZERS),
            ("aggregation", AGGREGATIONS),
            ("learning_rate_schedule", RATE_SCHEDULES),
        )
        for name, known in choices:
            if getattr(self, name) not in known:
                raise unknown(f"learning.{name}", getattr(self, name), known)
        for name in ("server_momentum", "server_decay", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"learning.{name} must be at least 0 and less than 1, got {getattr(self, name)}")
        for name in ("server_learning_rate", "server_adaptivity"):
            positive(f"learning.{name}", getattr(self, name))
        for name in ("server_learning_rate", "server_adaptivity", "proximal"):
            if not getattr(self, name) <= LARGEST_RATE:
                raise InputError(f"learning.{name} must be at most {LARGEST_RATE:g}, got {getattr(self, name)}")
        at_least("learning.proximal", self.proximal, 0)
        at_least("rounds", self.rounds, 1)

    @property
    def averages(self) -> bool:
        """Whether the server's step is plain averaging."""
        return self.server_optimizer == "sgd" and self.server_learning_rate == 1

    @property
    def local(self) -> LocalOptimizer | None:
        """What local steps add to plain SGD, or None if nothing."""
        optimizer = LocalOptimizer(self.momentum, self.proximal)
        return None if optimizer == LocalOptimizer() else optimizer

    def rate_factor(self, round: int) -> float:
        """Return the factor of the local learning rate in a round, counted from 0."""
        if self.learning_rate_schedule == "inverse_sqrt":
            return 1 / math.sqrt(1 + round)
        if self.learning_rate_schedule == "cosine":
            return (1 + math.cos(math.pi * min(round / self.rounds, 1))) / 2
        return 1.0
