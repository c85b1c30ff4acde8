"""Runtime adapters: loaded, proven, watched and evicted by one keeper; asked for and counted at a desk in each worker."""
