"""ShardedOptimizer: each rank averages its shard of the gradients, and steps that shard alone."""
