"""What happened: snapshots, timelines and weekly reviews, from the store, a server and Prometheus."""
