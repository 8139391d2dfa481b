"""Code that drivers load when it is first used: counted, with room kept until the agent looks."""

from __future__ import annotations

import pytest

from .conftest import run
from .slot import MIB, Card, Slot, card_uuid

CASES = [
    "launches_count_once",
    "each_handle_counts",
    "graphs_count",
    "captured_launches_count",
    "contexts_count",
    "names_of_what_was_unloaded_count_again",
    "what_fails_counts_again",
    "questions_before_the_start_settle_nothing",
    "memory_waits_for_a_look",
    "memory_of_the_dead_that_the_agent_still_reports_is_waited_for",
    "the_dead_leave_no_room_that_the_agent_does_not_find",
    "eager_code_does_not_count",
    "very_many",
    "uses_begin_and_end",
    "stacks_are_charged_when_they_grow",
    "kernels_of_libraries_have_stacks_too",
    "a_handle_is_another_function_s_after_its_module",
    "stacks_of_graphs_count",
    "who_finds_no_room_for_stacks_is_not_launched",
    "a_limit_makes_no_stack_smaller_than_was_needed",
    "nobody_relies_on_a_limit_that_waits",
    "a_graph_that_waits_has_brought_nothing",
    "a_kernel_comes_to_each_context",
    "what_is_made_and_ended_without_an_agent_is_not_lost",
    "graphs_are_absent_until_they_are_launched",
    "imports_may_be_absent",
    "what_may_have_been_nothing_stays_until_a_look",
    "what_comes_with_a_module_is_left_to_the_agent",
    "a_module_without_room_is_unloaded_if_nvml_finds_it",
    "a_module_has_room_kept_before_it_is_loaded",
    "a_page_is_kept",
    "what_was_not_seen_yet_has_room",
    "no_use_passes_the_limit",
    "what_is_freed_is_room",
    "what_pools_keep_is_room",
    "who_has_no_room_waits_for_a_look",
    "nobody_waits_longer_than_a_second",
    "scribbled_counts_lift_no_limit",
]


def test_every_case_is_run(env: dict[str, str]) -> None:
    assert run("uses", env=env).stdout.split() == CASES


@pytest.mark.parametrize("mode", [0, 1], ids=["unmetered", "metered"])
@pytest.mark.parametrize("case", CASES)
def test_code_that_comes_when_it_is_used(
    case: str, mode: int, env: dict[str, str], slot: Slot
) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=mode, core_share=9000))
    run("uses", case, "link", env=env)


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc_v1"])
def test_however_its_functions_were_looked_up(way: str, env: dict[str, str]) -> None:
    run("uses", "each_handle_counts", way, env=env)
