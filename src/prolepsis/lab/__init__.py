"""What measures, forecasts and tries out: it reads the server, and nothing in the server reads it."""
