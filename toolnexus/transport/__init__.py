"""HTTP, event streams and sockets; nothing here knows a provider."""
