"""The way in: sockets, heads of requests, browsers, and who is signed in."""
