"""What the scheduler is worth: experiments in the simulator, ``python -m benchmarks.scheduling``."""
