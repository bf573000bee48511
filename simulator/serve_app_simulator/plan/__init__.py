"""Plans of a fleet: where replicas run."""
