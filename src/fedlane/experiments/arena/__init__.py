"""The arena: policies in leagues, in the same worlds and on the same seeds, with equal tuning and yardsticks.

Results are computed by the engine of `fedlane sweep`, which computes every cell once and stores it under a key made
from everything that affects its result.
"""
