"""Long random work under the shim on a simulated card, with processes killed at any moment."""
