"""A server whose process has the SDK of OpenTelemetry, which samples nothing: `traced.py server.py [argument …]`."""

import os
import runpy
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

if __name__ == "__main__":
    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF))
    os.environ["OTEL_TRACES_EXPORTER"] = "console"  # as an agent sets it that starts the program
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
