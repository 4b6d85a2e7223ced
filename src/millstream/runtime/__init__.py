"""Running pipelines: start, recover, deliver, stop, verify."""
