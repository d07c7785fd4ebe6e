"""Profile of a round on the GPU: its kernels, longest first.

python benchmarks/gpu_profile.py cnn 32
"""

import sys

import gpu
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from fedlane.learning.federation import FederationBatch

if __name__ == "__main__":
    replicas = int(sys.argv[2])
    play = FederationBatch.play
    state = {"round": 0}

    def profiled(self: FederationBatch, round: int, client: np.ndarray, punctual: np.ndarray) -> None:
        if state["round"] == gpu.WARM_UP + 2:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                play(self, round, client, punctual)
                torch.cuda.synchronize()
            print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=18, max_name_column_width=60))
        else:
            play(self, round, client, punctual)
        state["round"] += 1

    FederationBatch.play = profiled  # type: ignore[method-assign]
    gpu.measure(sys.argv[1], replicas, 5, 50, "cuda")
