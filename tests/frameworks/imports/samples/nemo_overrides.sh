python3 /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py \
  trainer.num_nodes=2 trainer.devices=8 trainer.precision=bf16 exp_manager.explicit_log_dir=/results \
  model.micro_batch_size=2 model.global_batch_size=256 model.tensor_model_parallel_size=2 \
  model.pipeline_model_parallel_size=4 model.encoder_seq_length=4096 model.num_layers=32 model.hidden_size=4096 \
  model.ffn_hidden_size=11008 model.num_attention_heads=32 model.normalization=rmsnorm model.activation=fast-swiglu \
  model.bias=false model.position_embedding_type=rope model.share_embeddings_and_output_weights=false \
  model.hidden_dropout=0 model.attention_dropout=0 +model.sequence_parallel=true model.optim.name=distributed_fused_adam
