"""Models in several versions: which version answers a request, changes of that at run time, and shadow requests."""
