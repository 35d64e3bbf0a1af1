"""Under torchrun: each rank takes its share of a batch through verl's ppo_loss; rank 0 saves the averaged gradient."""

import sys

import torch
import torch.distributed as dist
from test_policy_loss import VOCABULARY, recorded_batch, through_verl
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(VOCABULARY, VOCABULARY))
batch = recorded_batch()
share = len(batch["logits"]) // ranks
loss, _ = through_verl(batch, model(batch["logits"]), slice(rank * share, (rank + 1) * share), dp_size=ranks)
loss.backward()
if rank == 0:
    torch.save(model.module.weight.grad, sys.argv[1])
dist.destroy_process_group()
