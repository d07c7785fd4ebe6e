"""The arena: policies in leagues, in the same worlds and on the same seeds, with equal tuning and yardsticks.

Results are computed by the engine of `fedlane sweep`: every cell once, under a key made from all that changes it.
"""
