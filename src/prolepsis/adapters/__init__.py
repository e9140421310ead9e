"""Engines and front ends of others: vLLM, servers behind the API, Ray Serve, drafts from the edge."""
