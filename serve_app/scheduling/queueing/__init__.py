"""The order of entries: queues, shares of classes and tenants, and what may be queued at all."""
