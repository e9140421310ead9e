"""Arms of speculation, and peers in processes of their own, measured side by side."""
