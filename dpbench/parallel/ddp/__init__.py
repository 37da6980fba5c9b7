"""DistributedDataParallel. Read `reducer` first, then `buckets`, `usage` and `averaging`."""
