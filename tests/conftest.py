"""One thread for every test: bits are compared, and forking a process that has more is not safe."""

import torch

torch.set_num_threads(1)
