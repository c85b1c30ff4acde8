"""Where it runs: adapters from the Engine port to servers, and the emulated engine."""
