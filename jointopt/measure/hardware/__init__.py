"""GPUs of this machine: clocks, power limits, meters, and whether they are those that a job names."""
