"""The live path: sans-I/O HTTP, a visible pipeline, a server."""
