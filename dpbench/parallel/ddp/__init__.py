"""DistributedDataParallel: one replica per process of a torch.distributed group."""
