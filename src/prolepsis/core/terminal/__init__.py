"""What the commands of features share: settings, output, and requests to a running server."""
