"""Long random work under the shim on a simulated card, with deaths at any moment."""
