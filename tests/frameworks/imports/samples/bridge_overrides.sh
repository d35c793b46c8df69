torchrun --nproc_per_node=8 --nnodes=4 scripts/performance/run_recipe.py --recipe llama3_8b_pretrain_config \
  train.micro_batch_size=1 train.global_batch_size=128 model.tensor_model_parallel_size=2 \
  model.pipeline_model_parallel_size=1 model.context_parallel_size=2 model.sequence_parallel=true \
  dataset.sequence_length=8192 ddp.use_distributed_optimizer=true mixed_precision=bf16_with_fp8_current_scaling_mixed
