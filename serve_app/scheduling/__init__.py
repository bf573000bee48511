"""The pure core: decides and never acts. No clock, no I/O, no asyncio, no Ray, no numpy.

Time is always an argument: ``now``, in seconds on the caller's monotonic clock. Names that end in ``_s`` are seconds,
and so are deadlines. A ``now`` before an earlier call's makes decisions late or early, but loses nothing.
"""
