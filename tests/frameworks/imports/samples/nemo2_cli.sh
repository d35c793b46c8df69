nemo llm pretrain --factory llama3_8b --yes trainer.num_nodes=2 trainer.devices=8 trainer.max_steps=100 \
  trainer.strategy.tensor_model_parallel_size=2 trainer.strategy.pipeline_model_parallel_size=1 \
  trainer.strategy.context_parallel_size=2 trainer.strategy.sequence_parallel=true \
  data.global_batch_size=128 data.micro_batch_size=1 data.seq_length=8192
