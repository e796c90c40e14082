"""Parts that several modes of distribution share."""
