"""GPUs: what their tools print, read into one form, and NVML."""
