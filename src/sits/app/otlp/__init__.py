"""OTLP over the network: what sends ours, what takes others', and a configuration for a Collector between them."""
