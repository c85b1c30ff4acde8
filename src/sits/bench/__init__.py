"""Runs on purpose: scenarios, workloads, open-loop load, comparisons."""
