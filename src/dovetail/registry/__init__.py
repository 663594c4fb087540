"""What a server offers, compiled at registration."""
