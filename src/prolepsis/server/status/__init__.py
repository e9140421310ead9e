"""What says how the server is: health, metrics, records."""
