"""Models on many ranks of torch.distributed: captured, sharded, partitioned, compiled, and run with its collectives."""
