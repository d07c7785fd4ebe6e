"""What every policy states about itself, whether it is written for one replica or for many."""

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from fedlane.scheduling.ranges import Tunable
from fedlane.scheduling.requirements import knowledge


class PolicyTraits(ABC):
    """The attributes that `Policy` describes, with their defaults."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    version: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset()
    per_client: ClassVar[frozenset[str] | None] = None
    predicts: ClassVar[bool] = False
    knows: ClassVar[str] = "delays"
    ranges: ClassVar[Mapping[str, Tunable]] = {}
    quota_slack: float = 0.0

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "requires" in vars(cls) and "knows" not in vars(cls):
            cls.knows = knowledge(cls.requires)
