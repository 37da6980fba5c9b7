"""DistributedDataParallel. Read `reducer` first, then `buckets` and `usage`."""
