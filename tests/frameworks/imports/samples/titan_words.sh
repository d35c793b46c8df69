NGPU=8 torchrun --nnodes=2 --nproc_per_node=8 -m torchtitan.train --model.name llama3 --model.flavor 8B \
  --training.local_batch_size 2 --training.seq_len 4096 --parallelism.tensor_parallel_degree 2 \
  --parallelism.data_parallel_shard_degree=8 --activation_checkpoint.mode full --training.steps 20
