"""DistributedDataParallel. Read `reducer` first, then `buckets`."""
