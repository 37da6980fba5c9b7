"""ShardedOptimizer: each rank reduces its share of the gradients, and steps that share alone."""
