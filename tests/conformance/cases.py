"""Which of torch's tests are run with ours, and why the others are not.

Together the tables name every test of the wheel that builds a DistributedDataParallel. Those that
are run, and those in INTERNAL, pass for torch's own class on CPU with gloo; those in UNFIT do not.
"""

from __future__ import annotations

TWO_RANKS = (
    "test_DistributedDataParallel",
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_DistributedDataParallel_with_amp_and_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_ddp_broadcast_buffer",
    "test_ddp_bucket_cap_mb_list",
    "test_ddp_compile_static_graph",
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_create_graph",
    "test_ddp_device_mesh_initialization",
    "test_ddp_forward_backward_hook",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_hook_parity_allreduce",
    "test_ddp_hook_parity_allreduce_process_group",
    "test_ddp_hook_parity_post_localSGD",
    "test_ddp_hook_parity_powerSGD",
    "test_ddp_ignore_params_arg",
    "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
    "test_ddp_join_model_equivalence",
    "test_ddp_join_respects_forward_sync_buffers_false",
    "test_ddp_model_diff_num_params_across_ranks",
    "test_ddp_model_diff_shape_across_ranks",
    "test_ddp_multiple_nested_unused_params_err_ignore_params",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_namedtuple",
    "test_ddp_new_tensor_in_fwd",
    "test_ddp_new_tensor_in_fwd_static_graph",
    "test_ddp_python_error_logged",
    "test_ddp_remove_autograd_hooks",
    "test_ddp_returns_tensor_with_no_grad",
    "test_ddp_shared_grad_acc_unused_params",
    "test_ddp_static_graph_nested_types",
    "test_ddp_uneven_input_exception",
    "test_ddp_uneven_input_join_disable",
    "test_ddp_uneven_inputs",
    "test_ddp_unused_params_rebuild_buckets_exception",
    "test_ddp_zero_output_features",
    "test_grads_same_across_ranks_with_no_sync",
    "test_invalid_static_graph",
    "test_output_unused_in_loss_dict_module",
    "test_output_unused_in_loss_tuple_module",
    "test_post_localSGD_optimizer_parity",
    "test_post_localSGD_optimizer_parity_grad_is_view",
    "test_post_localSGD_optimizer_step_reload",
    "test_stateless_api_with_ddp",
    "test_static_graph_api_cpu",
    "test_static_graph_multi_forward",
    "test_undefined_grad_parity_unused_parameters",
)
FOUR_RANKS = (
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view",
)
# It trains 120 small models.
SLOW = {"test_ddp_uneven_inputs"}

LOG = "asserts on the fields of torch's private log (_get_ddp_logging_data)"
REDUCER = "asserts on methods of torch's C++ reducer"
HELPERS = "a test of private functions of torch; the wrapper is a bystander"
INTERNAL = {
    "test_compute_bucket_assignment_by_size_sparse_error_with_logger": HELPERS,
    "test_compute_bucket_assignment_by_size_sparse_error_without_logger": HELPERS,
    "test_ddp_broadcast_buffer_via_hook": "registers a buffer hook, which is private",
    "test_ddp_buffer_hook_allreduce": "registers a buffer hook, which is private",
    "test_ddp_buffer_hook_allreduce_return_future": "registers a buffer hook, which is private",
    "test_ddp_broadcast_buffers_deprecation_warning": "broadcast_buffers is not deprecated here",
    "test_ddp_build_debug_param_to_name_mapping": HELPERS,
    "test_ddp_build_debug_param_to_name_mapping_requires_grad": HELPERS,
    "test_ddp_comm_hook_logging": LOG,
    "test_ddp_logging_data_cpu": LOG,
    "test_ddp_native_mixed_precision_ignored_params": "mixed_precision needs an accelerator",
    "test_ddp_profiling_autograd_profiler": "counts the profiler's names of torch's own steps",
    "test_ddp_profiling_torch_profiler": "counts the profiler's names of torch's own steps",
    "test_ddp_sink_noclone": "sets a private switch of torch's autograd function",
    "test_ddp_sync_module_states": HELPERS,
    "test_detect_ddp_is_actually_static": REDUCER,
    "test_different_graph_across_ranks": LOG,
    "test_get_data_parallel_params": HELPERS,
    "test_skip_all_reduce_unused_parameters": "skip_all_reduce_unused_params is not offered",
    "test_verify_model_across_rank_with_logger": HELPERS,
    "test_verify_model_across_rank_without_logger": HELPERS,
}

SYNC_BATCH_NORM = "SyncBatchNorm exists for GPUs only"
ACCELERATOR = "streams, events and device indices need an accelerator"
BROKEN = "torch's own class does not pass it anywhere, or it is switched off"
UNFIT = {
    "test_DistributedDataParallel_SyncBatchNorm": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_half": SYNC_BATCH_NORM,
    "test_DistributedDataParallel_non_default_stream": ACCELERATOR,
    "test_ddp_apply_optim_in_backward": ACCELERATOR,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": ACCELERATOR,
    "test_ddp_apply_optim_in_backward_ignored_params": ACCELERATOR,
    "test_ddp_device": ACCELERATOR,
    "test_ddp_has_finalized": BROKEN,
    "test_ddp_hook_pickling_powerSGD": BROKEN,
    "test_ddp_inference": SYNC_BATCH_NORM,
    "test_ddp_logging_data_gpu": LOG,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none": ACCELERATOR,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none": ACCELERATOR,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none": ACCELERATOR,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none": ACCELERATOR,
    "test_ddp_profiling_execution_trace": BROKEN,
    "test_ddp_sync_bn_training_vs_eval": BROKEN,
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": SYNC_BATCH_NORM,
    "test_sync_bn_logged": LOG,
}
