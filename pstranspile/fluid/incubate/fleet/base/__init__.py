"""What the modes of Fleet share."""
