"""What the hosts of a pool load and run, decided without I/O: a device of the scheduler."""
