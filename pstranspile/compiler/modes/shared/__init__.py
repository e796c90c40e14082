"""What several modes of distribution share."""
