from cluster.cli import app

app(prog_name="python -m cluster")
