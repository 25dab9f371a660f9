"""Tests that repeat one check over many methods, networks or moments: which repetitions run in CI.

The others are marked slow and run with `make test-slow`. A number keeps that many repetitions, spread evenly over all;
a tuple keeps those whose id is in it, or begins with an entry that ends in "-".
"""

from __future__ import annotations

from collections.abc import Sequence

METHODS = ("fedavg", "scaffold", "fedbn", "fedetf", "ccvr", "fedrepopt")
"""The reference, state at clients and server, personal entries, a fixed head, queries after the end, own gradients."""
OWN = ("stateful:OwnNorms", "hook_methods:HeadThenBody", "hook_methods:SideModel", "hook_methods:MovingFrame")

IN_CI: dict[str, int | tuple[str, ...]] = {
    "tests/testing/test_check.py::test_every_method_of_the_library_passes": (
        "fedavg",
        "scaffold",
        "fedetf",
        "fedrepopt",
    ),
    "tests/bench/test_bench.py::test_what_cannot_be_raced_gets_one_sentence": 1,
    "tests/bench/test_bench.py::test_two_checkouts_are_raced_in_pairs": 0,
    "tests/bench/test_repopt_round.py::test_the_script_goes_the_whole_way": 0,
    "tests/cli/test_bad_input.py::test_any_terminal_will_do": 1,
    "tests/cli/test_cli.py::test_a_signal_saves_and_says_how_to_continue": ("15",),
    "tests/cli/test_cli.py::test_an_output_that_is_full_is_one_sentence": 1,
    "tests/comparison/test_compare_failures.py::test_a_rejected_comparison_leaves_nothing_behind": 1,
    "tests/report/test_figure.py::test_every_kind_writes_a_valid_file": ("pdf-", "png-accuracy", "png-tsne", "png-cka"),
    "tests/report/test_figure.py::test_the_same_figure_is_the_same_file": ("accuracy", "tsne", "cka"),
    "tests/report/test_legend.py::test_a_legend_takes_at_most_a_fifth": ("1-4", "1-60", "5-60", "8-4", "12-4", "12-60"),
    "tests/report/test_legend.py::test_the_legend_of_every_kind_takes_at_most_a_fifth": (
        "12-5-",
        "3-60-accuracy",
        "3-60-tsne",
        "3-60-losses",
    ),
    "tests/federated/test_upload_hooks.py::test_engines_send_the_same": ("vectorised",),
    "tests/federated/test_upload_hooks.py::test_check": ("method3",),
    "tests/federated/test_uploads.py::test_a_method_that_writes_what_it_received_ends_the_run": (
        "writesw0-serial",
        "writessent-serial",
        "writesinloss-serial",
        "writesw0-vectorised",
        "writesinloss-vectorised",
        "writesinloss-processes",
    ),
    "tests/local/test_traps.py::test_worker_processes_keep_the_memory_layout": ("model",),
    "tests/metrics/test_dead_features.py::test_a_growing_share_of_dead_features_is_told_once": ("serial", "vectorised"),
    "tests/metrics/test_own_metrics.py::test_what_it_raises_on_a_hold_out_names_the_client_too": ("serial",),
    "tests/objectives/test_criteria.py::test_cross_entropy_under_another_name_has_the_same_bits": 2,
    "tests/probe/test_probe.py::test_a_run_that_was_killed_has_the_same_probes": 3,
    "tests/probe/test_probe.py::test_a_run_with_probes_is_the_run_without_to_the_bit": ("serial",),
    "tests/engine/test_processes.py::test_a_dead_worker_is_replaced_when_failures_are_skipped": 0,
    "tests/engine/test_processes.py::test_a_run_from_a_file_is_equal_and_resumes_in_either_engine": 0,
    "tests/engine/test_processes.py::test_workers_die_with_their_parent": 1,
    "tests/data/test_autoaugment.py::test_operations_are_pillows_to_the_bit": 40,
    "tests/data/test_raug.py::test_every_operation_at_every_level_is_pillows": 40,
    "tests/data/test_tiny_imagenet.py::test_both_experiments_on_it_run": 1,
    "tests/local/test_batch.py::test_check": 1,
    "tests/local/test_step.py::test_the_step_can_be_traced_once_and_run_for_every_client": 6,
    "tests/methods/test_fedmr.py::test_compositions_exchange_what_their_parts_do": 3,
    "tests/methods/test_fedmr.py::test_compositions_trace": 1,
    "tests/engine/test_replay.py::test_every_method_trains_as_in_serial": METHODS + OWN,
    "tests/engine/test_replay.py::test_optimisers_schedules_and_odd_batches": 2,
    "tests/engine/test_signals.py::test_a_client_that_ends_the_process_is_named": 2,
    "tests/engine/test_signals.py::test_the_second_signal_ends_a_run_whose_client_never_returns": 1,
    "tests/engine/test_vectorised.py::test_every_method_trains_as_in_serial": METHODS + OWN,
    "tests/engine/test_vectorised_resume.py::test_killed_twice_and_resumed": 2,
    "tests/engine/test_vectorised_resume.py::test_sums_over_a_kept_tree_do_not_depend_on_where_it_comes_from": 1,
    "tests/federated/test_scale.py::test_a_round_costs_the_same_whatever_the_number_of_clients": 1,
    "tests/methods/test_baselines_a.py::test_each_learns_within_five_points_of_fedavg": 0,
    "tests/methods/test_baselines_a.py::test_processes_give_the_same_bits": 0,
    "tests/methods/test_baselines_b.py::test_a_resumed_run_has_the_same_bits": 2,
    "tests/methods/test_baselines_b.py::test_on_digits_they_come_within_five_points_of_fedavg": 0,
    "tests/methods/test_baselines_b.py::test_processes_give_the_same_bits": 0,
    "tests/methods/test_fedetf.py::test_every_network_of_the_library_takes_the_frame": 3,
    "tests/methods/test_fedetf.py::test_the_frame_is_in_the_checkpoint_and_a_resumed_run_takes_it": 0,
    "tests/methods/test_server_optimisers.py::test_they_learn_and_compose": 0,
    "tests/models/test_networks.py::test_a_round_with_two_clients": ("resnet20", "lenet"),
    "tests/models/test_networks.py::test_a_step_under_vmap_and_traced": ("resnet20-8",),
    "tests/models/test_networks.py::test_other_images": ("wrn-28-10-8-1", "efficientnet-b0-8-1", "lenet-"),
    "tests/models/test_repopt.py::test_a_federation_with_unequal_clients_of_which_some_take_part": (
        "-ghost",
        "-vgg",
        "scaffold-vgg",
        "feddecorr-vgg",
    ),
    "tests/runs/test_directory.py::test_a_full_disk_is_one_sentence_and_the_run_continues_once_there_is_room": 1,
    "tests/runs/test_directory.py::test_a_signal_saves_the_last_complete_round": 3,
    "tests/runs/test_ending.py::test_killed_in_the_ending_and_resumed": ("own head-False", "ccvr-True", "ditto-True"),
    "tests/runs/test_ending.py::test_more_rounds_and_damage_start_the_ending_from_scratch": 2,
    "tests/runs/test_resume.py::test_every_method_is_killed_twice_and_resumed": ("fedavg", "scaffold", "ccvr"),
    "tests/runs/test_resume.py::test_killed_and_resumed_with_worker_processes": 1,
    "tests/runs/test_resume.py::test_killed_at_drawn_points_also_while_resuming": 1,
    "tests/runs/test_resume.py::test_killed_before_the_first_round_or_after_the_last": 3,
    "tests/runs/test_resume.py::test_killed_while_a_finished_run_continues_for_more_rounds": (
        "a deletion 2",
        "a checkpoint 1",
        "name of model 1",
    ),
    "tests/runs/test_resume.py::test_killed_in_a_round": (
        "everything-a local step",
        "everything-an upload, not yet summed",
        "everything-half a row",
        "everything-bytes of server",
        "everything-half a note",
        "everything-bytes of manifest",
        "everything-a deletion",
        "state at clients and server-a local step",
    ),
    "tests/runs/test_silent.py::test_every_network_starts_from_the_same_numbers_in_double_precision": 3,
    "tests/cli/test_theory_command.py::test_one_command_a_figure": 3,
}
"""The repetitions that run in CI, by test."""


def left_out(ids: Sequence[str], kept: int | tuple[str, ...]) -> list[int]:
    """Return the positions of the repetitions that do not run in CI, given the ids of all.

    >>> left_out(["a", "b", "c", "d", "e"], 2), left_out(["all-x", "all-y", "b"], ("all-",)), left_out(["a"], 0)
    ([1, 2, 3], [2], [0])
    """
    if isinstance(kept, int):
        spread = {round(k * (len(ids) - 1) / max(1, kept - 1)) for k in range(kept)}
        return [place for place in range(len(ids)) if place not in spread]
    return [
        place
        for place, name in enumerate(ids)
        if not any(name == keep or (keep.endswith("-") and name.startswith(keep)) for keep in kept)
    ]
