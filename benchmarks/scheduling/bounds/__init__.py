"""Upper bounds on goodput: what a planner who knows the future could reach at most.

`exact` plans one server by dynamic programming; `linear` relaxes any number of replicas, models and classes to a linear
programme; `capacity` only counts; `choice` picks for a scenario.
"""
