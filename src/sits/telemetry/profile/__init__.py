"""Where processor time goes: a sampling profiler with labels, the formats profiles travel in, and what may be said of two of them."""
