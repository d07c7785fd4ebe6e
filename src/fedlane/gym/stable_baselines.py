"""The fast vector environment for stable-baselines3, whose own vector environments step one network after the other."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from fedlane.gym.memory import FEATURES, index_scores
from fedlane.gym.vector import SchedulingVectorEnv
from fedlane.scenario import Scenario
from fedlane.validate import InputError, unknown

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise InputError("fedlane.gym.stable_baselines needs stable-baselines3: pip install stable-baselines3") from error


ENCODINGS = ("weights", "scores")


class SchedulingVecEnv(VecEnv):
    """`SchedulingVectorEnv` with flat observations, in the form that stable-baselines3's algorithms take.

    An action becomes an assignment in one of two ways:

    - ``weights``: an action has one weight from -1 to 1 for each feature but `round`. A pair's score is the weighted
      sum of its features (`index_scores`), and the round uses the matching with as many pairs as possible and the
      largest sum of scores. There are 7 weights whatever the size of the network, so that PPO learns quickly.
    - ``scores``: an action has U N scores from -1 to 1, as in the other environments; the score of client i on channel
      j is at i N + j. A negative score excludes its pair.

    When the episodes end, new ones start at once: ``info["terminal_observation"]`` is the last observation of the old
    ones, and ``info["episode"]`` their return ``r``, length ``l`` and wall-clock time ``t``. A seed, such as that of
    ``PPO(seed=0)``, decides which networks are drawn. It is not itself the seed of a network.

    Args:
        num_envs: Number of networks that advance together.
        scenario: The scenario, or the name of a preset or path of a TOML file.
        rounds: Rounds of an episode; None for the scenario's.
        V: Weight of time against queues in the reward.
        quota_slack: Share by which the quotas are reduced, from 0 to less than 1.
        networks: Seeds that networks are drawn from; None for all seeds.
        encoding: What an action is: "weights" or "scores".

    Raises:
        InputError: An argument is out of bounds, the scenario is not valid, or stable-baselines3 is not installed.
    """

    def __init__(
        self,
        num_envs: int = 64,
        scenario: Scenario | str = "paper-fmnist",
        *,
        rounds: int | None = None,
        V: float = 5.0,
        quota_slack: float = 0.125,
        networks: Sequence[int] | None = None,
        encoding: str = "weights",
    ) -> None:
        if encoding not in ENCODINGS:
            raise unknown("encoding", encoding, ENCODINGS)
        self.envs = SchedulingVectorEnv(
            num_envs, scenario, rounds=rounds, V=V, quota_slack=quota_slack, networks=networks, flat=True
        )
        scores, weights = self.envs.single_action_space, Box(-1.0, 1.0, (len(FEATURES) - 1,), np.float32)
        super().__init__(num_envs, self.envs.single_observation_space, weights if encoding == "weights" else scores)
        self.encoding = encoding
        self._seen = np.zeros((num_envs, *self.envs.terms.shape, len(FEATURES)), np.float32)
        self._scores: NDArray[Any] | None = None
        self._returns, self._started = np.zeros(num_envs), time.perf_counter()

    def reset(self) -> NDArray[np.float32]:
        """Start new episodes, on networks that the last `seed` decides."""
        if None not in self._seeds:
            self.envs.seed_networks([int(seed) for seed in self._seeds])  # type: ignore[arg-type]  # none is None
        self._reset_seeds()
        self._reset_options()
        return self._new_episodes()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Store the actions of the next round, one row for each network."""
        if actions.shape != (self.num_envs, *self.action_space.shape):  # type: ignore[misc]  # a Box has a shape
            raise InputError(f"actions must be {self.num_envs} rows of {self.action_space.shape}, got {actions.shape}")
        weights = self.encoding == "weights"
        self._scores = index_scores(self._seen, actions).reshape(self.num_envs, -1) if weights else actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Play one round in every network; after the last one, start new episodes."""
        if self._scores is None:
            raise InputError("call step_async before step_wait")
        seen, reward, _, ended, values = self.envs.step(self._scores)
        self._returns += reward
        keys = ("delay_s", "clock_s", "seed")
        rows = zip(*(values[key].tolist() for key in keys), strict=True)
        info: list[dict[str, Any]] = [dict(zip(keys, row, strict=True)) for row in rows]
        if ended.all():  # all episodes have the same length
            seconds = round(time.perf_counter() - self._started, 6)
            for k, entry in enumerate(info):
                entry["terminal_observation"], entry["TimeLimit.truncated"] = seen[k], True
                entry["episode"] = {"r": float(self._returns[k]), "l": self.envs.terms.scenario.rounds, "t": seconds}
            seen = self._new_episodes()
        self._seen = seen.reshape(self._seen.shape)
        return seen, reward.astype(np.float32), ended, info

    def _new_episodes(self) -> NDArray[np.float32]:
        seen, values = self.envs.reset()
        self.reset_infos = [{"seed": seed} for seed in values["seed"].tolist()]
        self._returns, self._seen = np.zeros(self.num_envs), seen.reshape(self._seen.shape)
        return seen

    def close(self) -> None:
        """Do nothing: there are no processes or files to close."""

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Return an attribute of the vector environment, once for every index."""
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Refuse: the networks are rows of one environment, which share their attributes."""
        raise InputError(f"{attr_name} cannot be set: the networks are rows of one environment, not separate ones")

    def env_method(
        self, method_name: str, *method_args: Any, indices: int | Iterable[int] | None = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refuse: the networks are rows of one environment, which have no methods of their own."""
        raise InputError(f"{method_name} cannot be called: the networks are rows of one environment, not separate ones")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: int | Iterable[int] | None = None) -> list[bool]:
        """Return False for every index."""
        return [False for _ in self._get_indices(indices)]
