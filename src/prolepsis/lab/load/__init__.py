"""Load on a running server, by requests that arrive whether or not it keeps up."""
