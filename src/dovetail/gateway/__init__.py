"""A gateway: servers elsewhere, of any revision, served as if they were here."""
