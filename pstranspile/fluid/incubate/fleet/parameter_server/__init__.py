"""Fleet with parameter servers."""
