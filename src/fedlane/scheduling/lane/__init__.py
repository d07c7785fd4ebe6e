"""`lane`, FedLane's own policy and the default: one file for each idea.

- `observations`: what is recorded about a pair, late uploads included
- `location`: the mean of every pair's log network time, tried or not (a Bayesian factor model)
- `places`: the same from latent places, for networks with many channels
- `spread`: the variance of a pair's log network time from round to round
- `first_looks`: the errors of predictions of untried pairs
- `beliefs`: what follows for every pair
- `delay_rows`: the predictive delay distribution of every pair
- `looking`: the value of trying a pair
- `search`: the matching with the largest objective
- `forgetting`: what to forget when the network has changed
"""

from fedlane.scheduling.lane.rule import Lane

__all__ = ["Lane"]
