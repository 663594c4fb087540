"""Where records live that outlast a request: keys, counters, event logs and wake-ups; bytes in, bytes out."""
