"""What is sent to which device, and when."""
