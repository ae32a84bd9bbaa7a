"""Small MCP servers for the tests: real processes that do what servers in the wild do."""
