"""What requests did lately: sums of the last hour, service levels, and the last requests with their rounds."""
