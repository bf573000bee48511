"""A Triton model repository as a configuration: `repository.read_repository` translates it, and says what differs."""
