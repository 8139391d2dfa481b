from pathlib import Path

from cluster import mizar
from cluster.images import NODEAGENT, OPERATOR


def test_pods_start_anew_when_their_image_has_other_content() -> None:
    archives = {
        OPERATOR: Path("/cache/images/operator-abc/image.tar"),
        NODEAGENT: Path("/cache/images/nodeagent-def/image.tar"),
    }
    values = mizar.content_values(archives)
    assert values["operator"] == values["webhook"]
    assert values["nodeagent"] == {"annotations": {"mizar.share/image-content": "nodeagent-def"}}


def test_the_chart_has_values_for_local_clusters() -> None:
    assert mizar.LOCAL_VALUES.is_file()
