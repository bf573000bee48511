"""What pipelines bring: deadlines of the whole kept in the simulator, and the cost of a pipeline on a real server."""
