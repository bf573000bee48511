"""What a batch holds and when it starts: composition, waiting, variants, and what executions are predicted to take."""
