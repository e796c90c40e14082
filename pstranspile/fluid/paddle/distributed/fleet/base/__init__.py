"""The parts of Fleet in the first 2.x versions."""
