"""What a machine has and who uses it, asked in one round trip."""
