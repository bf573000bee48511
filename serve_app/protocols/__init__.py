"""Protocol adapters: what clients speak, translated to entries and payloads and back."""
