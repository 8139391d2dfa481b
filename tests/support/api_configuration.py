"""How clients of an API server that speaks plain HTTP are configured."""

from pathlib import Path

from kubernetes_asyncio.client import Configuration

# Its key is thrown away. A client without an authority of its own, which it has in a pod, reads all
# those of the system, twice.
AUTHORITY = Path(__file__).with_name("nobody.pem")


def plain(url: object, token: str | None = None) -> Configuration:
    """For the API server at the URL."""
    keys = {"BearerToken": f"Bearer {token}"} if token else None
    found = Configuration(str(url).rstrip("/"), keys)
    found.ssl_ca_cert = str(AUTHORITY)
    return found
