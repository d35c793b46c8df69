srun -N 2 --ntasks-per-node=8 python examples/nlp/language_modeling/megatron_gpt_pretraining.py trainer.num_nodes=2 \
  trainer.devices=8 trainer.precision=bf16 model.global_batch_size=256 model.encoder_seq_length=1024
