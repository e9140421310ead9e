"""The application: HTTP, sign-in, admission, streaming, commands. `app.py` puts the rooms together."""
