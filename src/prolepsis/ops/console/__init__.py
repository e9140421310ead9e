"""The operator console: pages in the browser over the admin routes."""
