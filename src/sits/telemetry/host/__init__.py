"""The machine a gateway or an engine is on: processors, memory, NUMA, pressure, and the TCP connections to engines."""
