"""The pure core: it decides and never acts. No clock, no I/O, no asyncio, no Ray, no numpy.

Time is always an argument: ``now``, in seconds on the caller's monotonic clock.
"""
