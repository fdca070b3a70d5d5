"""`@jit` and its launches: arguments bound and specialised, kernels compiled, cached and run."""
