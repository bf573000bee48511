"""The asyncio shell around the scheduler."""
