"""What clients and models stumble over: the definitions that a server lists come in, findings go out."""
