"""The pure core: it decides and never acts. No clock, no I/O, no asyncio, no Ray, no numpy.

Time is always an argument: ``now``, in seconds on the caller's monotonic clock. Each call goes by the moment that it is
told. One that lies before an earlier call's makes decisions late or early, and loses nothing.
"""
