"""When data moves: one file per mode of distribution."""
