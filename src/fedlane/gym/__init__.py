"""The scheduling problem as a Gymnasium environment, ``FedLane/Scheduling-v0`` (extra `gym`).

Examples:
    >>> import gymnasium, fedlane.gym
    >>> single = gymnasium.make("FedLane/Scheduling-v0", scenario="paper-fmnist")
    >>> vector = gymnasium.make_vec("FedLane/Scheduling-v0", num_envs=64, vectorization_mode="vector_entry_point")
"""

from fedlane.validate import missing_extra

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise missing_extra("fedlane.gym", "gym") from error

from fedlane.gym.environment import SchedulingEnv
from fedlane.gym.episode import Episode, matched
from fedlane.gym.memory import FEATURES, empty_memory, index_scores, observation, remember
from fedlane.gym.vector import SchedulingVectorEnv

ID = "FedLane/Scheduling-v0"

if ID not in gymnasium.registry:
    gymnasium.register(
        ID,
        entry_point="fedlane.gym.environment:SchedulingEnv",
        vector_entry_point="fedlane.gym.vector:SchedulingVectorEnv",
    )

__all__ = [
    "FEATURES",
    "ID",
    "Episode",
    "SchedulingEnv",
    "SchedulingVectorEnv",
    "empty_memory",
    "index_scores",
    "matched",
    "observation",
    "remember",
]
