"""Files of requests, and the batches that run them while nothing else waits."""
