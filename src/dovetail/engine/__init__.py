"""The one place that awaits user code."""
