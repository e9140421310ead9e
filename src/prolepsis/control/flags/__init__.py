"""Feature flags: OpenFeature, with flagd's file format evaluated in process."""
