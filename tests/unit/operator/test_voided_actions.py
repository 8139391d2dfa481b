"""What of a plan is left out after a failure, where a whole plan would be too much to set up."""

from mizar_core.names import CreationReason, ReapReason
from mizar_core.planning.actions import CreatePod, CreateShadow, Drain, LetPreempt
from mizar_core.planning.node_fit import NO_NEEDS
from mizar_operator.voided_actions import VoidedActions
from property.plan.snapshots import NOW


def test_gates_depend_on_nothing_and_nothing_depends_on_them() -> None:
    voided, opening = VoidedActions(), LetPreempt(("team-a", "p"), "uid")
    drain = Drain(("team-a", "shadow"), NOW, ReapReason.IDLE)
    voided.note_failure(opening, planned_anew=False)
    assert not voided.include(drain)
    voided.note_failure(drain, planned_anew=False)
    assert voided.include(drain) and not voided.include(opening)


def test_nothing_is_done_about_a_shadow_pod_whose_creation_was_voided() -> None:
    voided = VoidedActions()
    voided.note_failure(CreatePod(("team-a", "first"), NO_NEEDS), planned_anew=False)
    second = CreateShadow(
        shadow=("team-a", "second"),
        pool="pool",
        quota="quota",
        quota_uid="u",
        resource="team-a.mizar.share/gpu.2",
        devices=2,
        cards=1,
        sequence=1,
        needs=NO_NEEDS,
        reason=CreationReason.DEMAND,
    )
    assert voided.include(second)
    assert voided.include(Drain(second.shadow, NOW, ReapReason.IDLE))
    assert not voided.include(Drain(("team-a", "third"), NOW, ReapReason.IDLE))
